"""User-level DP: the clipped mean exact, the noise what it should be, epsilon tried."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from scipy import stats

from examples import fedss_numpy
from tests import arrays
from tests.algorithms import toy
from tests.algorithms.toy import (
    BATCH_SIZE,
    ETA,
    NUM_CLASSES,
    build,
    dense_of,
    make_cohort,
    same_bytes,
    to_tff,
    to_twin,
    weights_of,
)
from tff_fedss import training
from tff_fedss.algorithms import aggregation, dp_noise, user_level_dp
from tff_fedss.privacy import accounting

K = 3
ADAPTIVE_TREE = {
    "noise_multiplier": 0.1,
    "adaptive_clip": user_level_dp.AdaptiveClip(quantile=1.0, count_stddev=0.6),
    "restart_every": 3,
}


def factory(**kwargs):
    kwargs = {
        "num_classes": NUM_CLASSES,
        "clients_per_round": K,
        "noise_multiplier": 0.0,
        "clip": 1.0,
        "seed": 0,
        **kwargs,
    }
    return user_level_dp.PrivateMeanFactory(**kwargs)


# Of a problem that has no model: phi is two numbers, d is 2, L is 3.
@functools.cache
def process_of(num_classes=NUM_CLASSES, is_sparse=True, **kwargs):
    w_type = tff.TensorType(np.float32, [num_classes, 2])
    if is_sparse:
        w_type = toy.rows_type(3, 2)
    phi_type = (tff.TensorType(np.float32, [2]),)
    value_type = tff.to_type(aggregation.ModelDelta(phi_type, w_type))
    return factory(num_classes=num_classes, **kwargs).create(value_type)


def delta(phi, rows, is_sparse=True):
    """A client's delta: rows by key; further keys repeat the last, with zeros."""
    if not is_sparse:
        w = np.zeros((NUM_CLASSES, 2), np.float32)
        for key, row in rows.items():
            w[key] = row
        return aggregation.ModelDelta((np.array(phi, np.float32),), w)
    padding = 3 - len(rows)
    keys = [*rows, *[max(rows)] * padding]
    values = [*rows.values(), *[(0, 0)] * padding]
    return aggregation.ModelDelta(
        (np.array(phi, np.float32),),
        aggregation.SparseRows(np.array(keys, np.int32), np.array(values, np.float32)),
    )


def rounds(process, clients, num_rounds, state=None):
    """Yields the output of each of some rounds with the same deltas."""
    state = process.initialize() if state is None else state
    for _ in range(num_rounds):
        output = process.next(state, clients)
        state = output.state
        yield output


# Norms 13, 0.5 and 0.
CLIENTS = [
    ((3, 4), {1: (12, 0)}),
    ((0, 0.3), {1: (0.4, 0), 7: (0, 0)}),
    ((0, 0), {0: (0, 0)}),
]


@pytest.mark.parametrize("is_sparse", [True, False])
def test_phi_and_rows_are_clipped_as_one_vector(is_sparse):
    process = process_of(is_sparse=is_sparse)
    clients = [delta(*client, is_sparse) for client in CLIENTS]
    output = process.next(process.initialize(), clients)
    expected = np.zeros((NUM_CLASSES, 2))
    expected[1] = (12 / 13 + 0.4) / K, 0
    np.testing.assert_allclose(dense_of(output.result.w), expected, rtol=1e-6)
    expected = [3 / 13 / K, (4 / 13 + 0.3) / K]
    np.testing.assert_allclose(output.result.phi[0], expected, rtol=1e-6)
    assert output.measurements["dp"]["clip"] == 1
    assert output.measurements["dp"]["clipped_share"] == pytest.approx(1 / K)


def test_the_mean_is_over_the_clients_that_were_expected():
    """Not over those that came: their number is a secret of those who did not."""
    process = process_of()
    output = process.next(process.initialize(), [delta(*CLIENTS[0])])
    phi = output.result.phi[0]
    np.testing.assert_allclose(phi, np.array([3, 4]) / 13 / K, rtol=1e-6)
    assert output.measurements["dp"]["clipped_share"] == 1
    empty = process.next(process.initialize(), [])
    assert not empty.result.phi[0].any() and not empty.result.w.keys.size
    assert empty.measurements["dp"]["clipped_share"] == 0


def test_the_clip_follows_the_quantile():
    """Against the rule of Andrew et al. (2021), with norms 13, 0.5 and 0."""
    adaptive = user_level_dp.AdaptiveClip(quantile=0.8, learning_rate=0.5)
    process = process_of(adaptive_clip=adaptive, clip=0.4)
    clip = 0.4
    for output in rounds(process, [delta(*client) for client in CLIENTS], 6):
        assert output.measurements["dp"]["clip"] == pytest.approx(clip, rel=1e-5)
        below = np.mean(np.array([13, 0.5, 0]) <= clip)
        clip *= math.exp(-0.5 * (below - 0.8))
    assert clip > 0.5  # Both sides of a norm have been seen.


def clipped_rounds(clip, num_rounds, num_clients=3):
    """FedSS in NumPy with clipped updates at uniform weights, and its metrics."""
    theta = [np.array(p, np.float64) for p in weights_of(build().initialize())]
    velocity = [np.zeros_like(p) for p in theta]
    norms = []
    for r in range(num_rounds):
        mean = [np.zeros_like(p) for p in theta]
        for client in to_twin(make_cohort(r), "fedss", 4):
            update, _ = fedss_numpy.client_update(
                "fedss", *theta, client, ETA, BATCH_SIZE, True, scale=20.0, proximal=0.0
            )
            norms.append(np.sqrt(sum(np.sum(u**2) for u in update)))
            for m, u in zip(mean, update, strict=True):
                m += min(1, clip / norms[-1]) * u / num_clients
        velocity = [0.9 * v + m for v, m in zip(velocity, mean, strict=True)]
        theta = [p + v for p, v in zip(theta, velocity, strict=True)]
    return theta, norms


CLIP = 2.0


@functools.cache
def fedss_without_noise():
    return build(joint_aggregator=factory(clip=CLIP), client_weighting="uniform")


def test_a_round_may_have_no_clients():
    """With independent sampling, a round without clients still adds noise."""
    process = fedss_without_noise()
    state, metrics = process.next(process.initialize(), [])
    assert metrics["num_clients"] == 0
    same_bytes(weights_of(state), weights_of(process.initialize()))


def test_three_rounds_without_noise_equal_the_numpy_twin():
    process, clipped = fedss_without_noise(), []
    state = process.initialize()
    for r in range(3):
        state, metrics = process.next(state, to_tff(make_cohort(r)))
        clipped.append(metrics["dp/clipped_share"])
        assert metrics["dp/clip"] == CLIP
    theta, norms = clipped_rounds(CLIP, 3)
    arrays.assert_close(weights_of(state), theta, 1e-4, 1e-6)
    assert np.mean(clipped) == pytest.approx(np.mean(np.array(norms) > CLIP))
    # Or the clip would have done nothing, or had nothing to leave alone.
    assert min(norms) < CLIP < max(norms)


def noise_of(process, num_rounds):
    """What rounds add to updates of zero: [rounds, numbers], phi's and all of W's."""
    results = [
        x.result for x in rounds(process, [delta((0, 0), {5: (0, 0)})], num_rounds)
    ]
    return np.array([np.concatenate([x.phi[0], x.w.ravel()]) for x in results])


def test_independent_noise_is_on_all_numbers_and_new_in_each_round():
    noise = noise_of(process_of(2000, noise_multiplier=0.6, clip=0.5), 3)
    assert noise.shape == (3, 4002)
    unit = noise / (0.6 * 0.5 / K)
    for each in unit:
        assert stats.kstest(each, "norm").pvalue > 0.01
    # Of 4,002 pairs: 0.016 is one standard deviation.
    assert np.abs(np.corrcoef(unit) - np.eye(3)).max() < 0.06
    shifted = np.corrcoef(unit[0][:-1], unit[0][1:])[0, 1]
    assert abs(shifted) < 0.06
    again = noise_of(process_of(2000, noise_multiplier=0.6, clip=0.5, seed=0), 3)
    same_bytes(noise, again)
    other = noise_of(process_of(2000, noise_multiplier=0.6, clip=0.5, seed=1), 1)
    assert abs(np.corrcoef(noise[0], other[0])[0, 1]) < 0.06


def test_noise_of_a_tree_has_the_variance_of_its_nodes():
    """A sum over t rounds has a node of height h for each bit of t.

    With the weights of Honaker (2015) it has variance 1 / (2 - 2^-h). After a restart,
    that comes on top of what the old tree has left.
    """

    def variance(t):
        return sum(1 / (2 - 2.0**-h) for h in range(t.bit_length()) if t >> h & 1)

    noise = noise_of(
        process_of(2000, noise_multiplier=0.6, clip=0.5, restart_every=6), 15
    )
    sums = np.cumsum(noise / (0.6 * 0.5 / K), axis=0)
    for t in range(1, 16):
        expected = t // 6 * variance(6) + variance(t % 6)
        # 2.2 % is one standard deviation.
        assert np.var(sums[t - 1]) == pytest.approx(expected, rel=0.1), t
    # Independent noise would have 6 and 15 by then.
    assert np.var(sums[5]) < 2 and np.var(sums[14]) < 5


def test_adaptive_clipping_shares_the_noise_out():
    """Andrew et al. (2021), Theorem 1: z^-2 = z_delta^-2 + (2 sigma_b)^-2."""
    adaptive = user_level_dp.AdaptiveClip(learning_rate=0.0, count_stddev=0.75)
    process = process_of(2000, noise_multiplier=0.9, adaptive_clip=adaptive)
    delta_multiplier = (0.9**-2 - 1.5**-2) ** -0.5
    assert np.std(noise_of(process, 1)) == pytest.approx(delta_multiplier / K, rel=0.05)


def test_the_noise_of_the_count_moves_the_clip():
    adaptive = user_level_dp.AdaptiveClip(learning_rate=1.0, count_stddev=0.3)
    process = process_of(noise_multiplier=0.5, adaptive_clip=adaptive)
    state, steps = process.initialize(), []
    for _ in range(60):
        output = process.next(state, [delta(*client) for client in CLIENTS])
        # Held where two of three are below.
        steps.append(-math.log(output.state.clip))
        same = {"clip": np.float32(1.0), "estimate": np.float32(1.0)}
        state = output.state._replace(**same)
    assert np.mean(steps) == pytest.approx(2 / 3 - 0.5, abs=4 * 0.1 / math.sqrt(60))
    assert np.std(steps) == pytest.approx(0.3 / K, rel=0.35)


def test_the_covariance_of_a_tree_is_that_of_its_draws():
    rounds, restart_every, draws = 13, 5, 40_000
    noise = dp_noise.TreeNoise(tf.TensorSpec([draws]), 7, restart_every)
    state, drawn = noise.initialize(), []
    for round_num in range(rounds):
        of_round, state = noise.next(state, tf.constant(round_num))
        drawn.append(of_round.numpy())
    expected = dp_noise.tree_covariance(rounds, restart_every)
    # The standard error of an empirical covariance is at most (2 / draws)^0.5 v.
    np.testing.assert_allclose(
        np.cov(drawn), expected, atol=5 * 0.0071 * expected.max()
    )
    # The sums over a whole tree have the noise of log2 of its rounds, not of all.
    total = expected[:4, :4].sum()
    assert total < np.trace(expected[:4, :4]) / 2
    # Trees know nothing of each other.
    assert not expected[:5, 5:].any()


def test_a_tree_keeps_its_clip_until_it_restarts():
    process = process_of(**ADAPTIVE_TREE)
    outputs = list(rounds(process, [delta(*client) for client in CLIENTS], 7))
    clips = [float(output.measurements["dp"]["clip"]) for output in outputs]
    estimates = [float(output.state.estimate) for output in outputs]
    assert clips == [1.0] * 3 + [estimates[2]] * 3 + [estimates[5]]
    assert len(set(estimates)) == 7


def test_a_resumed_run_ends_in_the_same_bytes(tmp_path):
    """With all that has a state: an adaptive clip and a tree that restarts."""
    process = process_of(**ADAPTIVE_TREE)
    clients = [delta(*client) for client in CLIENTS]
    outputs = list(rounds(process, clients, 5))
    training.Checkpoints(tmp_path).save(outputs[2].state, 3)
    state, round_num = training.Checkpoints(tmp_path).restore(process.initialize())
    *_, last = rounds(process, clients, 5 - round_num, state)
    same_bytes(last.result, outputs[-1].result)
    same_bytes(last.state, outputs[-1].state)


def epsilon_at_least(scores_with, scores_without, delta_):
    """A lower bound on epsilon, right with 95 %, from the best of all thresholds.

    A test that says "there" with probability at least a (Clopper-Pearson) where the
    canary is, and at most b where it is not, has epsilon >= log((a - delta) / b). So
    has one that says "not there". Threshold and test come from one half of the runs,
    the bound from the other.
    """

    def bound(with_, without, threshold):
        hits, alarms = np.sum(with_ > threshold), np.sum(without > threshold)
        num = len(with_)
        a = stats.beta.ppf(0.025, hits, num - hits + 1) if hits else 0.0
        b = stats.beta.ppf(0.975, alarms + 1, num - alarms) if alarms < num else 1.0
        return math.log(max(a - delta_, 1e-9) / b)

    with_, without = np.split(scores_with, 2), np.split(scores_without, 2)
    there, not_there = (with_, without), (np.negative(without), np.negative(with_))
    tests = [
        (a, b, threshold)
        for a, b in (there, not_there)
        for threshold in np.concatenate([a[0], b[0]])
    ]
    a, b, threshold = max(
        tests, key=lambda test: bound(test[0][0], test[1][0], test[2])
    )
    return bound(a[1], b[1], threshold)


NUM_CANARIES = 2000
DELTA = 0.05  # At a smaller one the best tests say "there" too rarely to be counted.


def canary_scores(num_rounds=1, sampling_rate=1.0, noise_multiplier=1.0):
    """What the means tell of canaries, and of as many that are not there.

    Each canary is a client that alone holds a class: a row of W and its noise, which
    no other canary touches, so that a round tries all of them. It comes with
    probability q. The score is its likelihood ratio.
    """
    process = process_of.__wrapped__(
        2 * NUM_CANARIES, noise_multiplier=noise_multiplier
    )
    rng, state = np.random.default_rng(0), process.initialize()
    scores = np.zeros(2 * NUM_CANARIES)
    for _ in range(num_rounds):
        comes = np.flatnonzero(rng.random(NUM_CANARIES) < sampling_rate)
        canaries = [delta((0, 0), {k: (100, 0)}) for k in comes]
        output = process.next(state, canaries)
        state = output.state
        seen = K * dense_of(output.result.w, 2 * NUM_CANARIES)[:, 0]
        scores += np.log1p(sampling_rate * np.expm1(seen - 0.5))
    return np.split(scores, 2)


RIGHT_RECORD = user_level_dp._record


# TFF allows neither defaults nor *args.
def record_with_twice_the_clip(clip, estimate, delta):
    return RIGHT_RECORD(2 * clip, estimate, delta)


# What would go wrong: noise, clipping.
MUTANTS = {
    "half of the noise": ("_split", lambda z, *_: (z / 2, 0.0)),
    "half of the clipping": ("_record", record_with_twice_the_clip),
}


@pytest.mark.slow
@pytest.mark.parametrize("num_rounds, sampling_rate", [(1, 1.0), (12, 0.5)])
def test_an_attacker_learns_what_epsilon_says_and_no_more(num_rounds, sampling_rate):
    clients_per_round = round(2000 * sampling_rate)
    accountant = accounting.PoissonSampling(1.0, DELTA, 2000, clients_per_round)
    found = epsilon_at_least(*canary_scores(num_rounds, sampling_rate), DELTA)
    # 1.05 of 1.57 in one round, 2.44 of 4.45 in twelve.
    assert 0.5 < found <= accountant.epsilon(num_rounds)
    if num_rounds > 1:  # An accountant that forgets rounds is found out: 1.64.
        assert found > accountant.epsilon(num_rounds // 4)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_attacker_finds_a_wrong_mechanism_out(mutant, monkeypatch):
    monkeypatch.setattr(user_level_dp, *MUTANTS[mutant])
    claimed = accounting.PoissonSampling(1.0, DELTA, 2000, 2000).epsilon(1)
    found = epsilon_at_least(*canary_scores(), DELTA)
    assert found > claimed
