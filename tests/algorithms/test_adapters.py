"""TFF's factories over sparse rows give what they give over dense deltas."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy
from tests.algorithms.toy import NUM_CLASSES
from tff_fedss import algorithms
from tff_fedss.algorithms import adapters, aggregation

# Phi is two numbers, d is 2, L is 3.
PHI_TYPE = (tff.TensorType(np.float32, [2]),)
DENSE_TYPE = tff.TensorType(np.float32, [NUM_CLASSES, 2])
DENSE_SPEC = tf.TensorSpec([NUM_CLASSES, 2])
JOINT_SPECS = aggregation.ModelDelta((tf.TensorSpec([2]),), DENSE_SPEC)
ROWS_TYPE = toy.rows_type(3, 2)
# Phi, keys and rows. Keys are shared, repeat in padding, and come in any order.
CLIENTS = [
    ((3, 4), [1, 9, 9], [(12, 0), (-1, 2), (0, 0)]),
    ((0, 0.3), [7, 1, 0], [(0.1, 0), (0.4, -0.2), (0.2, 0.2)]),
    ((0, -0.1), [0, 0, 0], [(0, 0), (0, 0), (0, 0)]),
]
WEIGHTS = [np.float32(w) for w in (3, 1, 2)]


def sparse_and_dense(client):
    phi, keys, rows = client
    rows = aggregation.SparseRows(np.array(keys, np.int32), np.array(rows, np.float32))
    dense = np.float32(toy.dense_of(rows))
    return (np.array(phi, np.float32),), (rows, dense)


def rounds(factory, w_type, is_joint, num_rounds=3):
    """The results of rounds over the clients, as dense vectors, and measurements."""
    value_type = tff.to_type(aggregation.ModelDelta(PHI_TYPE, w_type))
    value_type = value_type if is_joint else value_type.w
    process = aggregation.weighted(factory).create(
        value_type, tff.TensorType(np.float32)
    )
    values, is_dense = [], w_type is DENSE_TYPE
    for client in CLIENTS:
        phi, w = sparse_and_dense(client)
        delta = aggregation.ModelDelta(phi, w[is_dense])
        values.append(delta if is_joint else delta.w)
    state, results = process.initialize(), []
    for _ in range(num_rounds):
        output = process.next(state, values, WEIGHTS)
        state, result = output.state, output.result
        if is_joint:
            result = np.concatenate([result.phi[0], toy.dense_of(result.w).ravel()])
        else:
            result = toy.dense_of(result).ravel()
        results.append((result, dict(aggregation.flat_scalars(output.measurements))))
    return results


def check_equals_dense(adapter, factory, is_joint, where=...):
    sparse = rounds(adapter, ROWS_TYPE, is_joint)
    dense = rounds(factory, DENSE_TYPE, is_joint)
    for (ours, _), (theirs, _) in zip(sparse, dense, strict=True):
        np.testing.assert_allclose(ours[where], theirs[where], rtol=1e-5, atol=1e-6)
    assert np.abs(dense[0][0]).max() > 0.01
    return sparse, dense


def quantile(start):
    """A norm that follows the middle of the clients' norms."""
    return tff.aggregators.PrivateQuantileEstimationProcess.no_noise(start, 0.5, 0.7)


WRAPPERS = {
    "clip": functools.partial(tff.aggregators.clipping_factory, 1.5),
    "adaptive clip": functools.partial(tff.aggregators.clipping_factory, quantile(0.4)),
    "zero": functools.partial(tff.aggregators.zeroing_factory, 5.0),
    "adaptive zero and clip": lambda inner: tff.aggregators.zeroing_factory(
        quantile(20.0), tff.aggregators.clipping_factory(0.3, inner), 2.0
    ),
}


@pytest.mark.parametrize(
    "name, is_joint", [*((name, True) for name in WRAPPERS), ("clip", False)]
)
def test_clipping_and_zeroing(name, is_joint):
    wrap = WRAPPERS[name]
    sparse, dense = check_equals_dense(
        adapters.WrappedRowsFactory(wrap), wrap(aggregation.mean_factory()), is_joint
    )
    assert [m for _, m in sparse] == [pytest.approx(m) for _, m in dense]
    plain = rounds(aggregation.default_factory(ROWS_TYPE), ROWS_TYPE, False)
    assert is_joint or np.abs(plain[0][0] - sparse[0][0]).max() > 0.1


MEAN, UNIFORM = tff.aggregators.MeanFactory(), tff.aggregators.UnweightedMeanFactory()
FACTORIES = {
    "mean": MEAN,
    "robust": tff.learning.robust_aggregator(),
    # The sum of all, of integers, for clients and weights.
    "secure": tff.learning.secure_aggregator(zeroing=False, clipping=False),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_any_factory_over_the_union(name):
    factory = FACTORIES[name]
    check_equals_dense(adapters.UnionRowsFactory(factory, 6), factory, True)


def test_quantization_over_the_union():
    """Over [n, d] it makes another number of each zero, as well where all are zero."""
    quantized = tff.aggregators.EncodedSumFactory.quantize_above_threshold(
        8, 3, stochastic=False
    )
    is_there = np.repeat(np.isin(range(NUM_CLASSES), [0, 1, 7, 9]), 2)
    factory = tff.aggregators.MeanFactory(quantized)
    sparse, dense = check_equals_dense(
        adapters.UnionRowsFactory(factory, 6), factory, False, is_there
    )
    assert dense[0][0].all() and not sparse[0][0][~is_there].any()


def test_a_union_that_is_too_large_fails_the_round():
    factory = adapters.UnionRowsFactory(UNIFORM, 3)
    with pytest.raises(RuntimeError, match="more classes than union_size.*4"):
        rounds(factory, ROWS_TYPE, False)


PRIVATE = tff.aggregators.DifferentiallyPrivateFactory


@pytest.mark.parametrize("name", ["adaptive gaussian", "tree"])
def test_differential_privacy(name):
    """Without noise; the tree with the noise of its seed, on all rows."""
    is_tree = name == "tree"
    if is_tree:
        factory = PRIVATE.tree_aggregation(0.5, 3, 1.0, JOINT_SPECS, noise_seed=7)
    else:
        factory = PRIVATE.gaussian_adaptive(0.0, 3, learning_rate=0.9)
    sparse, dense = check_equals_dense(
        adapters.NoisedRowsFactory(factory, NUM_CLASSES), factory, is_joint=is_tree
    )
    for (result, ours), (_, theirs) in zip(sparse, dense, strict=True):
        assert ours == {
            name.removeprefix("dp_query_metrics/"): pytest.approx(value)
            for name, value in theirs.items()
        }
        assert is_tree == bool(np.all(result))


def test_zeroing_around_noise():
    zero = functools.partial(tff.aggregators.zeroing_factory, 5.0)
    factory = PRIVATE.gaussian_fixed(0.0, 3, clip=1.0)
    ours = adapters.WrappedRowsFactory(
        zero, adapters.NoisedRowsFactory(factory, NUM_CLASSES)
    )
    check_equals_dense(ours, zero(factory), True)


@pytest.mark.parametrize(
    "factory",
    [
        aggregation.ScatteredRowsFactory(UNIFORM, 13),
        adapters.WrappedRowsFactory(
            WRAPPERS["clip"], adapters.UnionRowsFactory(UNIFORM, 6)
        ),
        adapters.WrappedRowsFactory(
            WRAPPERS["clip"],
            aggregation.PhiAndRowsFactory(UNIFORM, aggregation.SparseRowsFactory()),
        ),
    ],
)
def test_what_ignores_weights_says_so(factory):
    with pytest.raises(ValueError, match="which ignores weights"):
        algorithms.ServerUpdate(rows_aggregator=factory)
    algorithms.ServerUpdate(rows_aggregator=factory, client_weighting="uniform")


def test_noise_on_the_union_is_refused():
    adapter = adapters.UnionRowsFactory(tff.learning.dp_aggregator(0.5, 99), 6)
    with pytest.raises(ValueError, match="adds noise.*NoisedRowsFactory"):
        adapter.create(ROWS_TYPE, tff.TensorType(np.float32))
