import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from sklearn.metrics import pairwise, roc_curve

from tests.metrics.test_retrieval import brute_force, one_by_one
from tests.refusals import refused
from tff_fedss import metrics, tasks
from tff_fedss.datasets.federated.clients import InMemoryClientData
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut

LABELS = np.repeat(np.arange(100, 110, dtype=np.int32), [2, 3, 4, 5, 1, 6, 2, 2, 9, 4])


def unseen_dataset(images, labels=LABELS):
    clients = {"a": (np.zeros([3, 4, 4, 1], np.uint8), np.array([0, 1, 1]))}
    return FederatedDataset.from_arrays(clients, (images, labels), test_is_unseen=True)


def flatten():
    """phi: one trainable scale on the pixels."""
    inputs = tf.keras.Input([4, 4, 1])
    features = tf.keras.layers.Dense(16, use_bias=False)(
        tf.keras.layers.Flatten()(inputs)
    )
    return tf.keras.Model(inputs, features)


def weights():
    return tff.learning.models.ModelWeights([np.eye(16), np.zeros([2, 16])], [])


def test_evaluation_is_of_the_features():
    images = np.random.default_rng(0).integers(0, 256, [len(LABELS), 4, 4, 1], np.uint8)
    task = tasks.Retrieval(unseen_dataset(images), flatten)
    features = images.reshape(-1, 16).astype(float)
    expected, _ = brute_force(features, LABELS, 10)
    assert 0 < expected < 1
    cosines = pairwise.cosine_similarity(features)
    pairs = metrics.draw_pairs(LABELS, 100_000, seed=0)
    scores = cosines[pairs.first, pairs.second].round(6)
    far, tar, _ = roc_curve(pairs.is_same, scores, drop_intermediate=False)
    assert task.evaluate(weights()) == collections.OrderedDict(
        map_at_10=pytest.approx(expected),
        r_precision=pytest.approx(one_by_one(features, LABELS)[0]),
        tar_at_far=pytest.approx(tar[far <= 1e-3].max()),
        mean_cosine=pytest.approx(cosines[~np.eye(len(LABELS), dtype=bool)].mean()),
    )


def test_features_that_are_not_finite_end_a_run_as_diverged():
    images = np.random.default_rng(0).integers(1, 256, [len(LABELS), 4, 4, 1], np.uint8)
    task = tasks.Retrieval(unseen_dataset(images), flatten)
    huge = tff.learning.models.ModelWeights([1e38 * np.eye(16), np.zeros([2, 16])], [])
    measured = task.evaluate(huge)
    assert np.isnan(measured["map_at_10"])


def test_ten_images_are_too_few_for_map_at_10():
    images, labels = np.zeros([10, 4, 4, 1], np.uint8), np.arange(10) // 2 + 5
    with refused("MAP@10 needs 11 test images or more, found 10."):
        tasks.Retrieval(unseen_dataset(images, labels), flatten)


def test_a_test_set_may_be_shuffled():
    images = np.eye(16, dtype=np.uint8)[LABELS - 100].reshape(-1, 4, 4, 1)
    dataset = unseen_dataset(images)
    data = dataset.test.data.shuffle(len(LABELS), seed=1)
    test = dataclasses.replace(dataset.test, data=data)
    task = tasks.Retrieval(dataclasses.replace(dataset, test=test), flatten)
    assert task.evaluate(weights())["tar_at_far"] == 1


@pytest.mark.parametrize("labels", [np.arange(12), np.zeros(12, int)])
def test_without_pairs_of_both_kinds_nothing_is_measured(labels):
    images = np.zeros([12, 4, 4, 1], np.uint8)
    with refused("needs test images of two classes, and two of one class"):
        tasks.Retrieval(unseen_dataset(images, labels), flatten)


def test_chance_is_what_random_features_get():
    rng = np.random.default_rng(1)
    task = tasks.Retrieval(
        unseen_dataset(np.zeros([len(LABELS), 4, 4, 1], np.uint8)), flatten
    )
    trials = [
        metrics.map_at_r(rng.normal(size=[len(LABELS), 8]), LABELS) for _ in range(300)
    ]
    error = np.std(trials) / np.sqrt(len(trials))
    assert abs(task.chance - np.mean(trials)) < 4 * error
    assert error < 0.1 * task.chance


def test_training_images_are_classified_among_the_n_classes():
    dataset = unseen_dataset(np.zeros([len(LABELS), 4, 4, 1], np.uint8))
    images = np.zeros([3, 4, 4, 1], np.uint8)
    images[:, 0, 0, 0] = 1, 1, 200  # Near classes 0, 0 and 1; the labels are 0, 1, 1.
    images[:, 1, 0, 0] = 255, 255, 10
    clients = InMemoryClientData({"a": (images, np.array([0, 1, 1], np.int32))})
    task = tasks.Retrieval(dataclasses.replace(dataset, train=clients), flatten)
    w = np.zeros([2, 16])
    w[0, 4], w[1, 0] = 3.0, 1.0
    assert task.train_top1(
        tff.learning.models.ModelWeights([np.eye(16), w.astype(np.float32)], [])
    ) == pytest.approx(2 / 3)


def test_classification_measures_unseen_classes_as_retrieval_does():
    kernel = np.eye(16, dtype=np.float32)
    model = tff.learning.models.ModelWeights([kernel, kernel[:2]], [])
    images = np.random.default_rng(1).integers(0, 256, [len(LABELS), 4, 4, 1], np.uint8)
    dataset = unseen_dataset(images)
    seen = dataclasses.replace(
        dataset,
        test=HeldOut.from_arrays(images[:3], np.array([0, 1, 1], np.int32)),
        test_is_unseen=False,
    )
    assert list(tasks.Classification(seen, flatten).evaluate(model)) == [
        "top1",
        "mean_cosine",
    ]
    both = dataclasses.replace(seen, unseen=dataset.test)
    measured = tasks.Classification(both, flatten).evaluate(model)
    expected, _ = brute_force(images.reshape(-1, 16), LABELS, 10)
    assert measured["unseen_map_at_10"] == pytest.approx(expected, abs=1e-9)


class OfChance(tasks.Classification):
    """A task of n classes, without data."""

    def __init__(self, num_classes):
        self._num_classes = num_classes

    @property
    def chance(self):
        return 1 / self._num_classes


@pytest.mark.parametrize(
    "num_classes, top1, mean_cosine, expected",
    [
        (1000, 0.004, 0.99, True),
        (1000, 0.006, 0.99, False),  # More than five times chance.
        (1000, 0.001, 0.90, False),  # Images do not look alike.
        (7, 0.22, 0.99, True),
        (7, 0.25, 0.99, False),  # Five times chance would be 0.71.
    ],
)
def test_collapse(num_classes, top1, mean_cosine, expected):
    measured = {"top1": top1, "mean_cosine": mean_cosine}
    assert OfChance(num_classes).has_collapsed(measured) == expected
