import itertools

import numpy as np
import pytest

from tff_fedss.samplers import self_paced


def objective(weights, losses, clusters, easiness, diversity):
    """E(W) of LEAP, 3.2, for weights in {0, 1}."""
    norms = sum(
        np.sqrt(np.square(weights[clusters == k]).sum()) for k in np.unique(clusters)
    )
    return weights @ losses - easiness * weights.sum() - diversity * norms


@pytest.mark.parametrize("seed", range(12))
def test_no_other_weights_are_better(seed):
    generator = np.random.default_rng(seed)
    losses = generator.exponential(1.0, 9)
    clusters = generator.integers(3, size=9) * 5
    easiness, diversity = generator.uniform(0, 1, 2)
    chosen = self_paced.select(losses, clusters, easiness, diversity)
    problem = (losses, clusters, easiness, diversity)
    best = min(
        objective(np.array(w, float), *problem)
        for w in itertools.product((0, 1), repeat=9)
    )
    assert objective(chosen.astype(float), *problem) == pytest.approx(best, abs=1e-12)


def test_the_minimum_over_fractions_is_not_lower():
    # The objective is concave in W, so that its minimum over a box is at a corner.
    generator = np.random.default_rng(0)
    losses, clusters = generator.exponential(1.0, 6), np.array([0, 0, 0, 1, 1, 2])
    problem = (losses, clusters, 0.4, 0.5)
    chosen = self_paced.select(*problem).astype(float)
    fractions = generator.uniform(0, 1, (20_000, 6))
    values = [objective(w, *problem) for w in fractions]
    assert min(values) >= objective(chosen, *problem) - 1e-9


def test_it_is_line_19_of_algorithm_2():
    losses = np.array([0.3, 0.9, 0.5, 0.31, 0.2, 5.0])
    clusters = np.array([0, 0, 0, 1, 1, 2])
    easiness, diversity = 0.25, 0.5
    expected = np.zeros(6, bool)
    for k in range(3):
        members = sorted(np.flatnonzero(clusters == k), key=lambda i: losses[i])
        for i, member in enumerate(members, start=1):
            threshold = easiness + diversity / (np.sqrt(i) + np.sqrt(i - 1))
            expected[member] = losses[member] < threshold
    chosen = self_paced.select(losses, clusters, easiness, diversity)
    np.testing.assert_array_equal(chosen, expected)
    assert 0 < chosen.sum() < 6


def test_without_diversity_it_is_a_threshold_and_strict():
    losses = np.array([0.1, 0.5, 0.2, 0.5000001, np.nan])
    chosen = self_paced.select(losses, np.zeros(5, int), 0.5, 0.0)
    assert chosen.tolist() == [True, False, True, False, False]


def test_infinite_easiness_takes_everything():
    losses = np.array([1e30, np.nan, np.inf])
    assert self_paced.select(losses, np.zeros(3, int), np.inf, 0.5).all()


def test_diversity_reaches_more_clusters():
    # One cluster is easy throughout, the others are hard.
    losses = np.concatenate([np.full(20, 0.1), np.full(20, 0.6)])
    clusters = np.concatenate([np.zeros(20, int), np.arange(1, 21)])
    greedy = self_paced.select(losses, clusters, 0.3, 0.0)
    diverse = self_paced.select(losses, clusters, 0.3, 0.5)
    assert len(np.unique(clusters[greedy])) == 1
    assert len(np.unique(clusters[diverse])) == 21


def test_a_threshold_pace_multiplies():
    pace = self_paced.ThresholdPace(0.1, 0.5, 1.1, 1.2)
    for epoch in range(4):
        easiness, diversity = pace.at(epoch, np.zeros(3), np.zeros(3, int))
        assert easiness == pytest.approx(0.1 * 1.1**epoch)
        assert diversity == pytest.approx(0.5 * 1.2**epoch)
    assert pace.at(10**6, np.zeros(3), np.zeros(3, int)) == (np.inf, np.inf)


@pytest.mark.parametrize("diversity", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("cap", [0.65, 1.0])
def test_a_share_pace_takes_a_growing_share(diversity, cap):
    losses = np.random.default_rng(0).exponential(1.0, 1000)
    clusters = np.random.default_rng(1).integers(20, size=1000)
    pace = self_paced.SharePace(0.1, 0.1, diversity, 1.0, cap)
    shares = []
    for epoch in range(10):
        easiness, gamma = pace.at(epoch, losses, clusters)
        assert gamma == diversity
        chosen = self_paced.select(losses, clusters, easiness, gamma)
        shares.append(chosen.mean())
    np.testing.assert_allclose(shares, np.minimum(np.arange(1, 11) / 10, cap))


def test_lambda_is_the_largest_that_takes_so_many():
    # float32, as losses come: rounding must not take one more or one less.
    losses = np.random.default_rng(0).exponential(1.0, 40).astype(np.float32)
    clusters = np.random.default_rng(1).integers(4, size=40)
    for count in (1, 7, 39, 40):
        easiness = self_paced.easiness_for(losses, clusters, 0.7, count)
        assert self_paced.select(losses, clusters, easiness, 0.7).sum() == count
        if count == 40:
            assert easiness == np.inf
            continue
        taken = [
            self_paced.select(losses, clusters, x, 0.7).sum()
            for x in (np.nextafter(easiness, -np.inf), np.nextafter(easiness, np.inf))
        ]
        assert taken == [count, count + 1]  # The largest lambda that takes so many.


def test_examples_that_are_alike_do_not_stop_the_pace():
    # As of a network that says the same of all: nothing is below the lowest.
    losses = np.repeat([1.0, 2.0], 5)
    pace = self_paced.SharePace(0.1, 0.1, 0.0, 1.0, cap=0.3)
    easiness, _ = pace.at(9, losses, np.zeros(10, int))
    chosen = self_paced.select(losses, np.zeros(10, int), easiness, 0.0)
    np.testing.assert_array_equal(chosen, losses == 1.0)


def test_a_learner_that_has_diverged_does_not_wait():
    pace = self_paced.SharePace(0.1, 0.1, 0.5, 1.0)
    assert pace.at(0, np.full(5, np.nan), np.zeros(5, int))[0] == np.inf
