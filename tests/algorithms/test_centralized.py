import itertools

import numpy as np
import pytest
import tensorflow as tf

from examples import fedss_numpy
from tests.algorithms import toy
from tff_fedss import algorithms


def build(optimizer):
    return algorithms.Centralized(toy.dense_features(), toy.NUM_CLASSES, optimizer)


def test_steps_equal_the_numpy_twin():
    algorithm = build(tf.keras.optimizers.SGD(toy.ETA))
    theta = [np.array(p, np.float64) for p in algorithm.weights.trainable]
    for r in range(3):
        client = toy.make_cohort(r)[r]
        sums = algorithm.update(
            tf.constant(client["image"]), tf.constant(client["label"])
        )
        loss, _, gradients = fedss_numpy.loss_and_gradients(
            "full_softmax",
            *theta,
            client["image"].reshape(len(client["label"]), -1) / 255.0,
            client["label"],
            [],
            [],
            False,
            20.0,
        )
        theta = [p - toy.ETA * g for p, g in zip(theta, gradients)]
        assert sums["loss"] == pytest.approx(loss * len(client["label"]), rel=1e-5)
        for ours, twins in zip(algorithm.weights.trainable, theta):
            np.testing.assert_allclose(ours, twins, rtol=1e-4, atol=1e-6)


def test_it_starts_where_the_federated_process_starts():
    state = toy.build("full_softmax").initialize()
    toy.same_bytes(
        build(tf.keras.optimizers.SGD()).weights.trainable, toy.weights_of(state)
    )


def test_correct_examples_are_counted():
    algorithm = build(tf.keras.optimizers.SGD(0.0))
    client = toy.make_cohort()[2]
    a, b, w = algorithm.weights.trainable
    features = client["image"].reshape(len(client["label"]), -1) / 255.0 @ a + b
    nearest = (features @ fedss_numpy.normalize(w).T).argmax(1)
    labels = np.where(np.arange(len(nearest)) % 2, nearest, (nearest + 1) % len(w))
    sums = algorithm.update(tf.constant(client["image"]), tf.constant(labels, tf.int32))
    assert sums["accuracy"] == len(nearest) // 2


def test_batches_visit_every_example_once_an_epoch_in_a_new_order():
    def three_epochs():
        data = tf.data.Dataset.range(10)
        stream = iter(algorithms.iid_batches(data, 10, batch_size=4, seed=1))
        for _ in range(3):
            batches = [b.numpy() for b in itertools.islice(stream, 3)]
            assert [len(b) for b in batches] == [4, 4, 2]
            yield np.concatenate(batches).tolist()

    epochs = list(three_epochs())
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert list(three_epochs()) == epochs
