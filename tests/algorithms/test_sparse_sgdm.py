import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms
from tff_fedss.algorithms import sparse_sgdm

PHI, W = np.float32([0.5, -1.0]), np.arange(12, dtype=np.float32).reshape(4, 3)
SPECS = (tf.TensorSpec([2]), tf.TensorSpec([4, 3]))


def gradients(step):
    """With an index that comes up twice, and rows that none names."""
    rng = np.random.default_rng(step)
    rows = tf.constant(rng.normal(size=(3, 3)).astype(np.float32))
    w_gradient = tf.IndexedSlices(rows, tf.constant([2, 0, 2]), tf.constant([4, 3]))
    return tf.constant(rng.normal(size=2).astype(np.float32)), w_gradient


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_tffs_sgdm(momentum):
    ours = algorithms.build_sparse_sgdm(0.3, momentum)
    theirs = tff.learning.optimizers.build_sgdm(0.3, momentum)
    our_state, their_state = ours.initialize(SPECS), theirs.initialize(SPECS)
    tf.nest.assert_same_structure(our_state, their_state)
    assert ours.get_hparams(our_state) == theirs.get_hparams(their_state)
    our_w = their_w = (tf.constant(PHI), tf.constant(W))
    for step in range(4):
        our_state, our_w = ours.next(our_state, our_w, gradients(step))
        their_state, their_w = theirs.next(their_state, their_w, gradients(step))
        for a, b in zip(
            tf.nest.flatten((our_state, our_w)),
            tf.nest.flatten((their_state, their_w)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert not np.allclose(our_w[1][2], W[2])
    np.testing.assert_array_equal(our_w[1][3], W[3])


def test_a_row_without_a_slice_moves_by_its_momentum():
    optimizer = algorithms.build_sparse_sgdm(1.0, 0.5)
    spec, w = tf.TensorSpec([2, 1]), tf.zeros([2, 1])
    state = optimizer.initialize(spec)
    slices = tf.IndexedSlices(tf.constant([[8.0]]), tf.constant([0]), [2, 1])
    state, w = optimizer.next(state, w, slices)
    nothing = tf.IndexedSlices(tf.zeros([0, 1]), tf.zeros([0], tf.int32), [2, 1])
    _, w = optimizer.next(state, w, nothing)
    np.testing.assert_array_equal(w, [[-8.0 - 4.0], [0.0]])


def test_hyperparameters_can_be_changed_in_a_state():
    optimizer = algorithms.build_sparse_sgdm(1.0, 0.5)
    state = optimizer.initialize(SPECS)
    hparams = optimizer.get_hparams(state)
    hparams["learning_rate"] = 0.25
    assert optimizer.set_hparams(state, hparams)["learning_rate"] == 0.25


def test_bad_hyperparameters_are_refused():
    with pytest.raises(ValueError, match="learning_rate=-1.* must be at least 0"):
        algorithms.build_sparse_sgdm(-1.0)
    with pytest.raises(ValueError, match="momentum=1.5 must be .* at most 1"):
        algorithms.build_sparse_sgdm(1.0, 1.5)


@pytest.mark.parametrize("length", [0, 1, 20])
def test_a_dense_sum_adds_what_comes_up_twice(length):
    rng = np.random.default_rng(length)
    keys = rng.integers(0, 7, length).astype(np.int32)
    rows = rng.normal(size=(length, 3)).astype(np.float32)
    expected = np.zeros((7, 3), np.float32)
    np.add.at(expected, keys, rows)

    @tf.function
    def total(keys, rows):
        return sparse_sgdm.dense_sum(tf.IndexedSlices(rows, keys), 7)

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
    monkeypatch.setattr(
        sparse_sgdm.tf_config, "is_op_determinism_enabled", lambda: True
    )
    assert step()[0]  # A CPU's is the same each time anyway.
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a GPU"])
    scatters, found = step()
    assert not scatters
    np.testing.assert_allclose(found, expected, rtol=1e-6)
