import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms
from tff_fedss.models import placement

OPTIMIZERS = {
    "sgd": lambda: tff.learning.optimizers.build_sgdm(0.1),
    "momentum": lambda: tff.learning.optimizers.build_sgdm(0.1, 0.9),
    "adam": lambda: tff.learning.optimizers.build_adam(0.1),
}


def structures():
    rng = np.random.default_rng(0)
    while True:
        shapes = ([3, 5], [7], [])
        a, b, c = (tf.constant(rng.normal(size=s), tf.float32) for s in shapes)
        yield (a, b), c


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_numbers_are_the_same_to_the_bit(name):
    with placement.as_if_gpus():
        ours = algorithms.over_one_vector(OPTIMIZERS[name]())
    theirs = OPTIMIZERS[name]()
    draw = structures()
    weights = next(draw)
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), weights)
    states = [optimizer.initialize(specs) for optimizer in (ours, theirs)]
    both = [weights, weights]
    for _ in range(3):
        gradient = next(draw)
        for k, optimizer in enumerate((ours, theirs)):
            states[k], both[k] = optimizer.next(states[k], both[k], gradient)
    tf.nest.map_structure(np.testing.assert_array_equal, *both)
    assert ours.get_hparams(states[0]) == theirs.get_hparams(states[1])


def test_hyperparameters_can_be_set():
    with placement.as_if_gpus():
        optimizer = algorithms.over_one_vector(OPTIMIZERS["sgd"]())
    state = optimizer.initialize(tf.TensorSpec([2], tf.float32))
    state = optimizer.set_hparams(
        state, {**optimizer.get_hparams(state), "learning_rate": 1.0}
    )
    _, weights = optimizer.next(state, tf.zeros([2]), tf.ones([2]))
    np.testing.assert_array_equal(weights, [-1, -1])


def test_without_gpus_it_is_the_optimizer_itself():
    optimizer = OPTIMIZERS["sgd"]()
    assert algorithms.over_one_vector(optimizer) is optimizer
