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


@pytest.mark.parametrize("norm, factor", [(2.0, 2 / 5), (5.0, 1.0), (7.0, 1.0)])
def test_gradients_are_clipped_by_the_norm_of_all(norm, factor):
    optimizer = algorithms.clip_gradients(tff.learning.optimizers.build_sgdm(0.5), norm)
    weights = (tf.constant([1.0, 2.0]), tf.constant([[3.0]]))
    gradient = (tf.constant([3.0, 0.0]), tf.constant([[4.0]]))  # A norm of 5.
    state = optimizer.initialize(
        tf.nest.map_structure(tf.type_spec_from_value, weights)
    )
    _, (a, b) = optimizer.next(state, weights, gradient)
    np.testing.assert_allclose(a, [1 - 0.5 * 3 * factor, 2], rtol=1e-6)
    np.testing.assert_allclose(b, [[3 - 0.5 * 4 * factor]], rtol=1e-6)


def test_a_clipped_gradient_that_is_not_finite_stays_so():
    optimizer = algorithms.clip_gradients(tff.learning.optimizers.build_sgdm(0.5), 1)
    weights = (tf.constant([1.0]),)
    state = optimizer.initialize(
        tf.nest.map_structure(tf.type_spec_from_value, weights)
    )
    _, (updated,) = optimizer.next(state, weights, (tf.constant([np.inf]),))
    assert not np.isfinite(updated).any()
