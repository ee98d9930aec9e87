"""How clients' updates become one: the default, TFF's own factories, and weights."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy
from tests.algorithms.toy import (
    EMBEDDING_DIM,
    NUM_CLASSES,
    build,
    make_cohort,
    rounds_like_the_twin,
    same_bytes,
    to_tff,
    to_twin,
    weights_of,
)
from tff_fedss import algorithms, class_sets
from tff_fedss.algorithms import aggregation


def one_round(cohort=None, **kwargs):
    return toy.one_round(build(**kwargs), cohort)


def mean_delta(after):
    """What the server added to its model: its first step is the mean delta itself."""
    before = build().initialize()
    return [
        np.asarray(a, np.float64) - b
        for a, b in zip(weights_of(after), weights_of(before), strict=True)
    ]


def test_the_order_of_the_keys_changes_nothing():
    """The sparse mean is that of dense matrices, whatever the keys' order."""
    rows_type = toy.rows_type(4, EMBEDDING_DIM)
    process = aggregation.SparseRowsFactory().create(
        rows_type, tff.TensorType(np.float32)
    )

    def mean(updates, weights):
        result = process.next(process.initialize(), updates, weights).result
        return toy.dense_of(result)

    rng = np.random.default_rng(0)
    weights = [np.float32(3), np.float32(5)]
    updates, total = [], np.zeros((NUM_CLASSES, EMBEDDING_DIM))
    for weight in weights:
        keys = rng.choice(NUM_CLASSES, 4, replace=False).astype(np.int32)
        rows = rng.normal(size=(4, EMBEDDING_DIM)).astype(np.float32)
        total[keys] += weight * rows / 8.0
        updates.append(aggregation.SparseRows(keys, rows))
    np.testing.assert_allclose(mean(updates, weights), total, rtol=1e-5, atol=1e-7)
    turned = [aggregation.SparseRows(u.keys[::-1], u.rows[::-1]) for u in updates]
    np.testing.assert_allclose(mean(turned, weights), total, rtol=1e-5, atol=1e-7)


def test_scattered_rows_in_tffs_mean_are_the_default():
    scattered = aggregation.ScatteredRowsFactory(
        aggregation.mean_factory(), NUM_CLASSES
    )
    ours, metrics = one_round()
    theirs, their_metrics = one_round(
        rows_aggregator=scattered, phi_aggregator=tff.aggregators.MeanFactory()
    )
    assert metrics == their_metrics
    toy.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "weighting, weight_of", [("uniform", lambda n: 1.0), (tf.math.sqrt, np.sqrt)]
)
def test_client_weights(weighting, weight_of):
    """Against each client's own delta, from rounds of one client."""
    cohort = make_cohort()
    deltas = [mean_delta(one_round([client])[0]) for client in cohort]
    weights = np.array([weight_of(len(client["label"])) for client in cohort])
    state, _ = one_round(client_weighting=weighting)
    for found, *each in zip(mean_delta(state), *deltas, strict=True):
        expected = np.tensordot(weights / weights.sum(), np.stack(each), 1)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_the_state_of_an_aggregator_is_kept():
    """Adaptive clipping moves its norm from round to round, and measures it."""
    clipping = tff.aggregators.zeroing_factory(
        tff.aggregators.PrivateQuantileEstimationProcess.no_noise(0.01, 0.5, 1.0),
        aggregation.mean_factory(),
    )
    process = build(phi_aggregator=clipping)
    state, norms = process.initialize(), []
    for r in range(3):
        state, metrics = process.next(state, to_tff(make_cohort(r)))
        norms.append(metrics["phi/zeroing_norm"])
        assert metrics["phi/zeroed_count"] in (0, 1, 2, 3)
    assert norms[0] == pytest.approx(0.01) and len(set(norms)) == 3
    weights = process.get_model_weights(state)
    assert process.set_model_weights(state, weights).aggregation == state.aggregation


def test_full_softmax_takes_a_factory_for_all_of_w():
    total, _ = one_round(
        method="full_softmax",
        client_weighting="uniform",
        rows_aggregator=tff.aggregators.SumFactory(),
    )
    before = build("full_softmax").initialize().classifier
    each = [
        one_round([client], method="full_softmax")[0].classifier - before
        for client in make_cohort()
    ]
    np.testing.assert_allclose(total.classifier - before, sum(each), atol=1e-5)


def test_a_loss_and_class_sets_of_ones_own():
    """NegOnly's loss over class sets of ones own making is NegOnly."""

    def loss(logits, targets, class_set):
        is_negative = class_set.is_member & ~class_set.is_positive
        own = tf.gather(logits, targets, axis=1, batch_dims=0)
        own = tf.linalg.diag_part(own)[:, tf.newaxis]
        others = tf.where(
            is_negative, logits + class_set.log_correction, logits.dtype.min
        )
        everything = tf.concat([own, others], 1)
        return tf.reduce_logsumexp(everything, 1) - own[:, 0]

    builder = class_sets.SampledClasses(NUM_CLASSES, 4, 5)
    process = build(builder=builder, loss_fn=loss)
    rounds_like_the_twin(process, "neg_only", num_rounds=1)


def test_tffs_names_of_weightings():
    names = tff.learning.ClientWeighting
    for weighting in names:
        update = algorithms.ServerUpdate(client_weighting=weighting)
        assert update.client_weighting == weighting.name.lower()
    mean = tff.aggregators.UnweightedMeanFactory()
    algorithms.ServerUpdate(phi_aggregator=mean, client_weighting=names.UNIFORM)


def test_rows_of_too_few_clients_are_dropped_and_counted():
    """Keys repeat in padding, with rows of zeros, also in front of the real one."""
    keys = tf.constant([4, 4, 2, 4, 7, 2, 9, 9])
    rows = np.zeros([8, 2], np.float32)
    rows[1:5] = [1, 0], [2, 2], [0, 3], [4, 4]
    kept, dropped = aggregation.drop_rare_rows(keys, rows, 2)
    # 4 has two contributors, 2 and 7 have one, 9 has none.
    expected = np.zeros([8, 2])
    expected[[1, 3]] = [1, 0], [0, 3]
    np.testing.assert_array_equal(kept, expected)
    assert dropped == 2


# --- Clients get more than they ask for, or rare rows are dropped -----------------

M = 4


def two_rounds(process):
    """The state and the metrics of each round."""
    state, measured = process.initialize(), []
    for r in range(2):
        state, metrics = process.next(state, to_tff(make_cohort(seed=r)))
        measured.append(dict(metrics))
    return state, measured


@pytest.mark.parametrize(
    "requests", ["union", pytest.param("all", marks=pytest.mark.slow)]
)
def test_what_else_a_client_gets_changes_no_byte(requests):
    """Nor does a threshold that one contributor reaches."""
    expected, of_sampled = two_rounds(build("fedss", M))
    factory = aggregation.SparseRowsFactory(1)
    process = build("fedss", M, requests=requests, rows_aggregator=factory)
    found, metrics = two_rounds(process)
    same_bytes(weights_of(expected), weights_of(found))
    for r, (ours, theirs) in enumerate(zip(metrics, of_sampled, strict=True)):
        assert theirs.pop("rows_per_client") == theirs["classes_per_client"]
        rows = ours.pop("rows_per_client")
        assert ours.pop("w/dropped_rows") == 0
        assert ours == theirs
        union = set()
        for client in to_twin(make_cohort(seed=r), "fedss", M):
            union |= {*client["labels"], *client["negatives"]}
        assert rows == (NUM_CLASSES if requests == "all" else len(union))
    # A union that is everything would not be tested against `all`.
    assert requests == "all" or len(union) < NUM_CLASSES


# A small scale: no row's gradient is lost in float32, so that who moves a row is clear.
@pytest.mark.parametrize(
    "threshold, requests",
    [(2, "all"), pytest.param(3, "union", marks=pytest.mark.slow)],
)
def test_rare_rows_are_dropped_as_in_the_twin(threshold, requests):
    process = build(
        "fedss",
        M,
        logit_scale=3.0,
        requests=requests,
        rows_aggregator=aggregation.SparseRowsFactory(threshold),
    )
    initial = process.initialize().classifier
    for r in range(2):
        state, metrics = rounds_like_the_twin(
            process, "fedss", M, r + 1, scale=3.0, threshold=threshold
        )
        counts = np.zeros(NUM_CLASSES, int)
        for client in to_twin(make_cohort(seed=r), "fedss", M):
            counts[sorted({*client["labels"], *client["negatives"]})] += 1
        dropped = (counts > 0) & (counts < threshold)
        assert metrics["w/dropped_rows"] == dropped.sum()
        if r == 0:
            np.testing.assert_array_equal(
                (state.classifier != initial).any(1), counts >= threshold
            )
