import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import losses, metrics


def test_neighbors_are_those_that_the_regularizer_pushes():
    w = np.random.default_rng(0).normal(size=(60, 8)) * np.linspace(0.1, 9, 60)[:, None]
    units = w / np.linalg.norm(w, axis=1, keepdims=True)
    distances = np.sqrt(np.maximum(0, 2 - 2 * units @ units.T)) + 9 * np.eye(60)
    for margin in (0.3, 0.8, 1.2):
        expected = np.mean(np.sum(distances < margin, axis=1))
        assert metrics.neighbors_within(w, margin) == pytest.approx(expected)
        is_pushed = losses.spreadout_loss(tf.constant(w), margin).numpy() > 0
        assert is_pushed == (expected > 0)
    assert metrics.neighbors_within(w, 0.3) == 0 < metrics.neighbors_within(w, 1.2)


def test_of_many_classes_some_stand_for_all():
    w = np.repeat(np.eye(4), 500, axis=0)
    assert metrics.neighbors_within(w, 1.0) == 499
    assert metrics.neighbors_within(w, 2.0) == 1999


def test_a_class_without_direction():
    w = np.array([[0.0, 0.0], [3.0, 0.0]])
    assert metrics.neighbors_within(w, 0.99) == 0
    assert metrics.neighbors_within(w, 1.01) == 1
