import importlib

import numpy as np
import pytest

from tests.metrics.labelled_features import images
from tff_fedss import metrics


def one_by_one(features, labels, rank=10):
    """The slow twin: R-precision, MAP at each query's R, and recall at 1 and a rank."""
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    rows = []
    for k, unit in enumerate(units):
        others = np.flatnonzero(np.arange(len(units)) != k)
        r = np.sum(labels[others] == labels[k])
        if not r:
            continue
        near = others[np.argsort(-(units[others] @ unit), kind="stable")]
        right = labels[near] == labels[k]
        precisions = [np.mean(right[: i + 1]) for i in range(r) if right[i]]
        rows.append(
            (np.mean(right[:r]), sum(precisions) / r, right[0], right[:rank].any())
        )
    return np.mean(rows, 0)


@pytest.mark.parametrize("block_numbers", [None, 3000])
def test_equals_the_search_for_one_query_at_a_time(block_numbers, monkeypatch):
    if block_numbers:
        # The package has a function of the module's name.
        module = importlib.import_module("tff_fedss.metrics.r_precision")
        monkeypatch.setattr(module, "_BLOCK_NUMBERS", block_numbers)
    features, labels = images()
    expected = one_by_one(features, labels)
    assert np.all((expected > 0.1) & (expected < 1))
    np.testing.assert_allclose(metrics.r_precision(features, labels), expected[0])
    scores = metrics.retrieval_scores(features, labels)
    np.testing.assert_allclose(scores[1:], expected)


@pytest.mark.parametrize("r", [1, 5, 20])
def test_one_search_measures_both_to_the_bit(r):
    """Of classes with fewer and with more images than R, and with one."""
    features, labels = images()
    features[7] = features[3]
    assert metrics.retrieval_scores(features, labels, r)[:2] == (
        metrics.map_at_r(features, labels, r),
        metrics.r_precision(features, labels),
    )


def test_classes_apart_are_found_whole():
    labels = np.array([0, 0, 0, 1, 1])
    assert metrics.r_precision(np.eye(2)[labels], labels) == 1


def test_effective_rank_counts_directions():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20_000, 8))
    assert 7.9 < metrics.effective_rank(features) <= 8
    assert metrics.effective_rank(np.ones([5, 8])) == 0
    on_a_line = np.outer([1.0, -1, 1, -1], np.eye(8)[2])
    np.testing.assert_allclose(metrics.effective_rank(on_a_line), 1, rtol=1e-6)
