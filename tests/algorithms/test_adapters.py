"""TFF's factories over sparse rows give what they give over dense deltas."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy
from tests.algorithms.toy import NUM_CLASSES, build, make_cohort, to_tff, weights_of
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
    rows, w = np.array(rows, np.float32), np.zeros(DENSE_SPEC.shape, np.float32)
    np.add.at(w, keys, rows)
    return (np.array(phi, np.float32),), (
        aggregation.SparseRows(np.array(keys, np.int32), rows),
        w,
    )


def dense_of(w):
    if not isinstance(w, aggregation.SparseRows):
        return w
    result = np.zeros(DENSE_SPEC.shape, np.float32)
    np.add.at(result, w.keys, w.rows)
    return result


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
            result = np.concatenate([result.phi[0], dense_of(result.w).ravel()])
        else:
            result = dense_of(result).ravel()
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
SECURE = tff.aggregators.SecureSumFactory(20.0)
# The sum of all, of integers, for clients and weights.
SECURELY = tff.learning.secure_aggregator(zeroing=False, clipping=False)
FACTORIES = {
    "mean": MEAN,
    "uniform mean": UNIFORM,
    "robust": tff.learning.robust_aggregator(),
    "secure sum": SECURE,
    "secure": SECURELY,
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


def test_random_quantization_is_within_a_step():
    factory = tff.aggregators.EncodedSumFactory.quantize_above_threshold(8, 3)
    ((ours, _),) = rounds(adapters.UnionRowsFactory(factory, 6), ROWS_TYPE, False, 1)
    expected = sum(sparse_and_dense(client)[1][1] for client in CLIENTS).ravel()
    # The range of the first client's rows is 13, in 255 steps.
    assert 0 < np.abs(ours - expected).max() < 14 / 255


def test_a_union_that_is_too_large_fails_the_round():
    factory = adapters.UnionRowsFactory(UNIFORM, 3)
    with pytest.raises(RuntimeError, match="more classes than union_size.*4"):
        rounds(factory, ROWS_TYPE, False)


PRIVATE = tff.aggregators.DifferentiallyPrivateFactory


def private(name, specs):
    if name == "gaussian":
        return PRIVATE.gaussian_fixed(0.0, 3, clip=1.0)
    if name == "adaptive gaussian":
        return PRIVATE.gaussian_adaptive(0.0, 3, learning_rate=0.9)
    if name == "tree":
        return PRIVATE.tree_aggregation(0.5, 3, 1.0, specs, noise_seed=7)
    return PRIVATE.tree_adaptive(
        0.0, 3, specs, restart_warmup=1, restart_frequency=2, clipped_count_stddev=0.0
    )


@pytest.mark.parametrize(
    "name, is_joint",
    [
        ("gaussian", False),
        ("adaptive gaussian", True),
        ("tree", True),
        ("adaptive tree", False),
    ],
)
def test_differential_privacy(name, is_joint):
    """Without noise; the tree with the noise of its seed, on all rows."""
    factory = private(name, JOINT_SPECS if is_joint else DENSE_SPEC)
    sparse, dense = check_equals_dense(
        adapters.NoisedRowsFactory(factory, NUM_CLASSES), factory, is_joint
    )
    for (result, ours), (_, theirs) in zip(sparse, dense, strict=True):
        assert ours == {
            name.removeprefix("dp_query_metrics/"): pytest.approx(value)
            for name, value in theirs.items()
        }
        assert (name == "tree") == bool(np.all(result))


def test_gaussian_noise_is_on_all_rows_and_new_in_each_round():
    factory = PRIVATE.gaussian_fixed(0.6, 3, clip=0.5)
    process = adapters.NoisedRowsFactory(factory, 2000).create(ROWS_TYPE)
    state, noise = process.initialize(), []
    for _ in range(2):
        output = process.next(state, [])
        state = output.state
        noise.append(output.result.ravel() / (0.6 * 0.5 / 3))
    # Of 4,000 numbers: 1.1 % and 0.016 are one standard deviation.
    assert np.std(noise, axis=1) == pytest.approx([1, 1], rel=0.06)
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.08


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
        UNIFORM,
        adapters.UnionRowsFactory(UNIFORM, 6),
        aggregation.ScatteredRowsFactory(UNIFORM, 13),
        adapters.WrappedRowsFactory(
            WRAPPERS["clip"], adapters.UnionRowsFactory(UNIFORM, 6)
        ),
    ],
)
def test_what_ignores_weights_says_so(factory):
    with pytest.raises(ValueError, match="which ignores weights"):
        algorithms.ServerUpdate(rows_aggregator=factory)
    algorithms.ServerUpdate(rows_aggregator=factory, client_weighting="uniform")


@pytest.mark.parametrize(
    "make",
    [
        lambda: PRIVATE.gaussian_fixed(0.5, 3, clip=1.0),
        lambda: tff.learning.dp_aggregator(0.5, 99),
    ],
)
def test_noise_on_the_union_is_refused(make):
    adapter = adapters.UnionRowsFactory(make(), 6)
    with pytest.raises(ValueError, match="adds noise.*NoisedRowsFactory"):
        adapter.create(ROWS_TYPE, tff.TensorType(np.float32))


def test_a_round_of_each():
    """What bounds nothing is the default; each works in a process."""
    tff_clip = functools.partial(tff.aggregators.clipping_factory, 1e6)
    exact = adapters.WrappedRowsFactory(tff_clip)

    def after(**server):
        process = build(**server)
        state, metrics = process.next(process.initialize(), to_tff(make_cohort()))
        return np.concatenate([np.ravel(w) for w in weights_of(state)]), metrics

    default, _ = after()
    clipped, metrics = after(joint_aggregator=exact)
    np.testing.assert_allclose(clipped, default, rtol=1e-5, atol=1e-6)
    assert metrics["clipped_count"] == 0
    over_union, _ = after(joint_aggregator=adapters.UnionRowsFactory(MEAN, 13))
    np.testing.assert_allclose(over_union, default, rtol=1e-5, atol=1e-6)
    # W is dense in FullSoftmax, and TFF's own serves as it is.
    dense, _ = after(method="full_softmax")
    clipped, metrics = after(method="full_softmax", joint_aggregator=tff_clip(MEAN))
    np.testing.assert_allclose(clipped, dense, rtol=1e-5, atol=1e-6)
    assert metrics["clipped_count"] == 0
    noised = adapters.NoisedRowsFactory(PRIVATE.gaussian_fixed(0.1, 3, 1.0), 13)
    private_, _ = after(joint_aggregator=noised, client_weighting="uniform")
    assert np.all(private_ != default)
