import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.arrays import assert_close
from tff_fedss import algorithms
from tff_fedss.algorithms import optimizers
from tff_fedss.models import layers

PHI, W = np.float32([0.5, -1.0]), np.arange(12, dtype=np.float32).reshape(4, 3)
SPECS = (tf.TensorSpec([2]), tf.TensorSpec([4, 3]))


def gradients(step):
    """With an index that comes up twice, another in each step, and a row never."""
    rng = np.random.default_rng(step)
    rows = tf.constant(rng.normal(size=(3, 3)).astype(np.float32))
    keys = tf.constant([2, 0, 2] if step % 2 == 0 else [0, 1, 0])
    w_gradient = tf.IndexedSlices(rows, keys, tf.constant([4, 3]))
    return tf.constant(rng.normal(size=2).astype(np.float32)), w_gradient


@pytest.mark.parametrize("rate, momentum", [(0.3, 0.0), (0.3, 0.9), (1, 1)])
def test_it_is_tffs_sgdm(rate, momentum):
    ours = algorithms.build_sparse_sgdm(rate, momentum)
    theirs = tff.learning.optimizers.build_sgdm(float(rate), float(momentum))
    our_state, their_state = ours.initialize(SPECS), theirs.initialize(SPECS)
    tf.nest.assert_same_structure(our_state, their_state)
    assert ours.get_hparams(our_state) == theirs.get_hparams(their_state)
    our_w = their_w = (tf.constant(PHI), tf.constant(W))
    for step in range(4):
        our_state, our_w = ours.next(our_state, our_w, gradients(step))
        their_state, their_w = theirs.next(their_state, their_w, gradients(step))
        found, expected = (our_state, our_w), (their_state, their_w)
        assert_close(*map(tf.nest.flatten, (found, expected)), 1e-6, 1e-6)
    assert not np.allclose(our_w[1][2], W[2])
    np.testing.assert_array_equal(our_w[1][3], W[3])


@pytest.mark.parametrize("length", [0, 1, 20])
def test_a_dense_sum_adds_what_comes_up_twice(length):
    rng = np.random.default_rng(length)
    keys = rng.integers(0, 7, length).astype(np.int32)
    rows = rng.normal(size=(length, 3)).astype(np.float32)
    expected = np.zeros((7, 3), np.float32)
    np.add.at(expected, keys, rows)

    @tf.function
    def total(keys, rows):
        return optimizers.dense_sum(tf.IndexedSlices(rows, keys), 7)

    np.testing.assert_allclose(total(keys, rows), expected, rtol=1e-6, atol=1e-6)


def test_with_determinism_gpus_do_not_scatter(monkeypatch):
    """TensorFlow would do it on the CPU, in an order that is always the same."""
    optimizer, w = algorithms.build_sparse_sgdm(1.0, 0.5), tf.constant(W)
    state = optimizer.initialize(SPECS[1])

    def step():
        graph = tf.function(lambda: optimizer.next(state, w, gradients(0)[1])[1])
        ops = {op.type for op in graph.get_concrete_function().graph.get_operations()}
        return "TensorScatterAdd" in ops, graph()

    scatters, expected = step()
    assert scatters
    monkeypatch.setattr(optimizers.tf_config, "is_op_determinism_enabled", lambda: True)
    assert step()[0]  # A CPU's is the same each time anyway.
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a GPU"])
    scatters, found = step()
    assert not scatters
    np.testing.assert_allclose(found, expected, rtol=1e-6)


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
    with layers.as_if_gpus():
        ours = algorithms.over_one_vector(OPTIMIZERS[name]())
    assert isinstance(ours, optimizers._OverOneVector)
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
    with layers.as_if_gpus():
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


def test_a_row_with_several_slices_counts_once():
    optimizer = algorithms.clip_gradients(tff.learning.optimizers.build_sgdm(1.0), 1.0)
    weights = (tf.zeros([3, 2]),)
    slices = tf.IndexedSlices(tf.ones([4, 2]), tf.constant([2, 0, 2, 2]), [3, 2])
    state = optimizer.initialize((tf.TensorSpec([3, 2], tf.float32),))
    _, (sparse,) = optimizer.next(state, weights, (slices,))
    _, (dense,) = optimizer.next(state, weights, (tf.convert_to_tensor(slices),))
    np.testing.assert_allclose(np.linalg.norm(sparse), 1.0, rtol=1e-6)
    np.testing.assert_allclose(sparse, dense, rtol=1e-6)


def test_a_clipped_gradient_that_is_not_finite_stays_so():
    optimizer = algorithms.clip_gradients(tff.learning.optimizers.build_sgdm(0.5), 1)
    weights = (tf.constant([1.0]),)
    state = optimizer.initialize(
        tf.nest.map_structure(tf.type_spec_from_value, weights)
    )
    _, (updated,) = optimizer.next(state, weights, (tf.constant([np.inf]),))
    assert not np.isfinite(updated).any()


def steps_of(optimizer, gradients):
    """The weights after each step, from two variables of ones and twos."""
    variables = [tf.Variable([1.0, 1.0]), tf.Variable(2.0)]
    optimizer.build(variables)
    found = []
    for gradient in gradients:
        optimizer.apply_gradients(zip(gradient, variables, strict=True))
        found.append([v.numpy().copy() for v in variables])
    return found


GRADIENTS = [
    [tf.constant(np.float32(g)), tf.constant(np.float32(g[0]))]
    for g in np.random.default_rng(0).normal(size=(6, 2))
]


def test_the_rate_multiplies_the_momentum():
    schedule = algorithms.CosineByEpoch(0.4, epochs=3, steps_per_epoch=2)
    found = steps_of(algorithms.SGDUnderRate(schedule, 0.9), GRADIENTS)
    weights = [np.ones(2), np.float64(2.0)]
    momentums = [np.zeros(2), 0.0]
    for step, gradient in enumerate(GRADIENTS):
        rate = 0.4 * 0.5 * (1 + np.cos(np.pi * (step // 2) / 3))
        for i, g in enumerate(gradient):
            momentums[i] = 0.9 * momentums[i] + np.float64(g)
            weights[i] = weights[i] - rate * momentums[i]
            np.testing.assert_allclose(found[step][i], weights[i], rtol=1e-5)


def test_with_a_constant_rate_it_is_keras_s():
    ours = steps_of(algorithms.SGDUnderRate(0.1, 0.9), GRADIENTS)
    theirs = steps_of(tf.keras.optimizers.SGD(0.1, 0.9), GRADIENTS)
    assert_close(tf.nest.flatten(ours), tf.nest.flatten(theirs), 1e-5)
