import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from sklearn.metrics import pairwise

from tff_fedss import tasks
from tff_fedss.datasets.federated.clients import InMemoryClientData, dataset_from_arrays
from tff_fedss.datasets.federated.dataset import FederatedDataset

LABELS = np.repeat(np.arange(100, 110, dtype=np.int32), [2, 3, 4, 5, 1, 6, 2, 2, 9, 4])


def unseen_dataset(images):
    clients = InMemoryClientData(
        {"a": (np.zeros([3, 4, 4, 1], np.uint8), np.array([0, 1, 1], np.int32))}
    )
    return FederatedDataset(
        name="toy",
        num_classes=2,
        image_shape=(4, 4, 1),
        train=clients,
        num_examples=clients.num_examples,
        positives=clients.positives,
        max_positives=2,
        test=dataset_from_arrays(images, LABELS),
        num_test_examples=len(LABELS),
        test_is_unseen=True,
    )


def flatten():
    """phi: one trainable scale on the pixels."""
    inputs = tf.keras.Input([4, 4, 1])
    features = tf.keras.layers.Dense(16, use_bias=False)(
        tf.keras.layers.Flatten()(inputs)
    )
    return tf.keras.Model(inputs, features)


def weights():
    return tff.learning.models.ModelWeights([np.eye(16), np.zeros([2, 16])], [])


def slow_map_at_10(features, labels):
    """Eq. 9, query by query."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    scores = []
    for q in range(len(labels)):
        order = np.argsort(np.linalg.norm(unit - unit[q], axis=1), kind="stable")
        found = labels[order[order != q][:10]] == labels[q]
        scores.append(sum(found[: i + 1].mean() for i in range(10) if found[i]) / 10)
    return np.mean(scores)


def test_evaluation_is_map_at_10_of_the_features():
    images = np.random.default_rng(0).integers(0, 256, [len(LABELS), 4, 4, 1], np.uint8)
    task = tasks.Retrieval(unseen_dataset(images), flatten)
    expected = slow_map_at_10(images.reshape(-1, 16).astype(float), LABELS)
    assert 0 < expected < 1
    cosines = pairwise.cosine_similarity(images.reshape(-1, 16))
    assert task.evaluate(weights()) == collections.OrderedDict(
        map_at_10=pytest.approx(expected),
        mean_cosine=pytest.approx(cosines[~np.eye(len(LABELS), dtype=bool)].mean()),
    )


def test_chance_is_what_random_features_get():
    rng = np.random.default_rng(1)
    task = tasks.Retrieval(
        unseen_dataset(np.zeros([len(LABELS), 4, 4, 1], np.uint8)), flatten
    )
    trials = [
        slow_map_at_10(rng.normal(size=[len(LABELS), 8]), LABELS) for _ in range(300)
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


def test_unseen_classes_cannot_be_classified():
    dataset = unseen_dataset(np.zeros([len(LABELS), 4, 4, 1], np.uint8))
    with pytest.raises(ValueError, match="no client has"):
        tasks.Classification(dataset, flatten)
