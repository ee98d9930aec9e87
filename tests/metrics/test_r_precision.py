import importlib

import numpy as np
import pytest

from tests.metrics.labelled_features import images
from tff_fedss import metrics


def one_by_one(features, labels):
    """The slow twin."""
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    shares = []
    for k, unit in enumerate(units):
        others = np.flatnonzero(np.arange(len(units)) != k)
        r = np.sum(labels[others] == labels[k])
        if r:
            near = others[np.argsort(-(units[others] @ unit), kind="stable")[:r]]
            shares.append(np.mean(labels[near] == labels[k]))
    return np.mean(shares)


@pytest.mark.parametrize("block_numbers", [None, 3000])
def test_equals_the_search_for_one_query_at_a_time(block_numbers, monkeypatch):
    if block_numbers:
        # The package has a function of the module's name.
        module = importlib.import_module("tff_fedss.metrics.r_precision")
        monkeypatch.setattr(module, "_BLOCK_NUMBERS", block_numbers)
    features, labels = images()
    expected = one_by_one(features, labels)
    assert 0.2 < expected < 0.9
    np.testing.assert_allclose(metrics.r_precision(features, labels), expected)


@pytest.mark.parametrize("r", [1, 5, 20])
def test_one_search_measures_both_to_the_bit(r):
    """Of classes with fewer and with more images than R, and with one."""
    features, labels = images()
    features[7] = features[3]
    assert metrics.map_and_r_precision(features, labels, r) == (
        metrics.map_at_r(features, labels, r),
        metrics.r_precision(features, labels),
    )


def test_classes_apart_are_found_whole():
    labels = np.array([0, 0, 0, 1, 1])
    assert metrics.r_precision(np.eye(2)[labels], labels) == 1
