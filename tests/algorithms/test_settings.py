"""What does not fit is refused when a process is built, with what would fit."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy
from tff_fedss import class_sets
from tff_fedss.algorithms import (
    ClassSets,
    ClientTraining,
    ServerUpdate,
    aggregation,
    build_fedss,
)


@pytest.mark.parametrize(
    "group, arguments, message",
    [
        (ClientTraining, {"batch_size": 0}, "batch_size"),
        (ClientTraining, {"num_epochs": 0}, "num_epochs"),
        (ClientTraining, {"logit_scale": np.nan}, "logit_scale=nan must be above 0"),
        (ClientTraining, {"logit_scale": 0.0}, "logit_scale=0.0 must be above 0"),
        (
            ServerUpdate,
            {"client_weighting": lambda n: n * np.nan},
            "client_weighting .* found nan",
        ),
        (
            ServerUpdate,
            {"client_weighting": lambda n: -n},
            "client_weighting .* found -1",
        ),
        (ServerUpdate, {"client_weighting": "examples"}, "num_examples"),
        (
            ServerUpdate,
            {"phi_aggregator": tff.aggregators.SumFactory()},
            'client_weighting="uniform"',
        ),
        (
            aggregation.SparseRowsFactory,
            {"threshold": 0},
            "threshold=0 must be",
        ),
        (
            ClassSets,
            {"requests": "some"},
            "requests=.some. must be one of",
        ),
        (
            ClassSets,
            {"num_negatives": 4, "builder": class_sets.AllClasses(9)},
            "num_negatives=4 has no meaning",
        ),
    ],
)
def test_values_out_of_range(group, arguments, message):
    with pytest.raises(ValueError, match=message):
        group(**arguments)


@pytest.mark.parametrize(
    "group, arguments, message",
    [
        (ClientTraining, {"optimizer": tf.keras.optimizers.SGD()}, "build_sgdm"),
        (
            ServerUpdate,
            {"optimizer": tf.keras.optimizers.legacy.SGD()},
            "optimizer of ServerUpdate must be .*SGD object",
        ),
        (ServerUpdate, {"phi_aggregator": tff.aggregators.MeanFactory}, "a factory of"),
        (ServerUpdate, {"rows_aggregator": "mean"}, "a factory of tff.aggregators"),
    ],
)
def test_objects_of_another_kind(group, arguments, message):
    with pytest.raises(TypeError, match=message):
        group(**arguments)


@pytest.mark.parametrize(
    "method, arguments, message",
    [
        ("neg_only", {"max_positives": 5}, "at least 1"),
        ("pos_only", {"max_positives": 5, "num_negatives": 3}, "draws no negatives"),
        ("pos_only", {}, "pos_only needs max_positives"),
        ("fedss", {"builder": class_sets.SampledClasses(5, 1, 2)}, "is for 5 classes"),
        ("full_softmax", {"requests": "union"}, "'union' has no meaning"),
    ],
)
def test_class_sets_that_do_not_suit_the_method(method, arguments, message):
    with pytest.raises(ValueError, match=message):
        build_fedss(
            toy.dense_features, toy.NUM_CLASSES, ClassSets(**arguments), method=method
        )


def test_rows_of_w_have_a_length():
    with pytest.raises(ValueError, match="initial_norm=0.0 must be above 0"):
        build_fedss(toy.dense_features, 13, ClassSets(5), initial_norm=0.0)
