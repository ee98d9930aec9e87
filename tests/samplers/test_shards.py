import itertools
import tracemalloc

import numpy as np
import pytest
import scipy.stats

from tff_fedss import runtime
from tff_fedss.samplers import SAMPLINGS, ShardSampler


def sampler(num_classes, num_strata, num_shards, rate, sampling="pprn", seed=0):
    strata = runtime.balanced_bounds(num_classes, num_strata)
    bounds = strata[runtime.balanced_bounds(num_strata, num_shards)]
    built = ShardSampler(strata, bounds, rate, sampling=sampling, seed=seed)
    return built, strata, bounds


def global_ids(samples, bounds):
    """Positives and negatives as classes, in the order of the shards."""
    return [
        np.concatenate([first + getattr(s, kind) for first, s in zip(bounds, samples)])
        for kind in ("positives", "negatives")
    ]


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_pprn_takes_all_positives_and_the_article_s_number_of_negatives(rate):
    draws, strata, bounds = sampler(1000, 6, 3, rate)
    labels = np.array([0, 7, 7, 166, 167, 400, 999])
    positives, negatives = global_ids(draws.draw(labels, 5), bounds)
    np.testing.assert_array_equal(positives, np.unique(labels))
    assert len(np.unique(negatives)) == len(negatives)
    assert not np.isin(negatives, positives).any()
    for first, end in itertools.pairwise(strata):
        num_positives = np.sum((first <= positives) & (positives < end))
        drawn = np.sum((first <= negatives) & (negatives < end))
        assert drawn == round((end - first - num_positives) * rate)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_labels_and_targets_point_at_the_classes(sampling):
    draws, _, bounds = sampler(50, 5, 5, 0.5, sampling)
    labels = np.random.default_rng(1).integers(50, size=20)
    samples = draws.draw(labels, 3)
    for first, end, sample in zip(bounds[:-1], bounds[1:], samples):
        own = (first <= labels) & (labels < end)
        np.testing.assert_array_equal(sample.labels[own], labels[own] - first)
        assert (sample.labels[~own] == -1).all() and (sample.targets[~own] == -1).all()
        there = sample.targets >= 0
        np.testing.assert_array_equal(
            sample.positives[sample.targets[there]], sample.labels[there]
        )
        is_drawn = np.isin(sample.labels, sample.positives)
        np.testing.assert_array_equal(there, own & is_drawn)
        assert set(sample.positives) <= set(sample.labels[own])
        if sampling == "pprn":
            np.testing.assert_array_equal(there, own)
        else:
            assert len(sample.positives) + len(sample.negatives) == 5


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_draws_follow_from_seed_and_step_and_not_from_the_shards(sampling):
    labels = np.random.default_rng(2).integers(500, size=16)

    def ids(num_shards, step, seed=0):
        draws, _, bounds = sampler(500, 8, num_shards, 0.2, sampling, seed)
        return np.concatenate(global_ids(draws.draw(labels, step), bounds))

    for num_shards in (1, 3, 8):
        assert set(ids(num_shards, 4)) == set(ids(2, 4))
    assert set(ids(2, 4)) != set(ids(2, 5))
    assert set(ids(2, 4)) != set(ids(2, 4, seed=1))


@pytest.mark.parametrize(
    "sampling, labels, candidates, size",
    [("pprn", [1, 4], [0, 2, 3, 5, 6], 2), ("all_random", [1, 4], range(7), 3)],
)
def test_every_subset_of_a_small_stratum_is_equally_likely(
    sampling, labels, candidates, size
):
    rate = 0.4
    draws, _, _ = sampler(14, 2, 1, rate, sampling)
    subsets = list(itertools.combinations(candidates, size))
    counts = dict.fromkeys(subsets, 0)
    num_draws = 60 * len(subsets)
    for step in range(num_draws):
        (sample,) = draws.draw(np.array(labels), step)
        drawn = sample.negatives
        if sampling == "all_random":
            drawn = np.concatenate([sample.positives, drawn])
        counts[tuple(sorted(drawn[drawn < 7].tolist()))] += 1
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.7])
def test_every_class_of_a_large_stratum_is_equally_likely(rate):
    draws, _, _ = sampler(12_000, 1, 1, rate)
    num_draws = int(8 / rate)
    counts = np.zeros(12_000)
    for step in range(num_draws):
        counts[draws.draw(np.array([0]), step)[0].negatives] += 1
    negatives = counts[1:]
    # Negative correlation makes the sum of squares smaller than chi-square's.
    statistic = np.sum((negatives - negatives.mean()) ** 2 / negatives.mean())
    scaled = statistic / (1 - round(11_999 * rate) / 11_999)
    assert 1e-3 < scipy.stats.chi2.cdf(scaled, len(negatives) - 1) < 1 - 1e-3


def test_few_of_very_many_take_little_memory():
    draws, _, _ = sampler(10_000_000, 8, 8, 0.001)
    tracemalloc.start()
    samples = draws.draw(np.arange(64) * 1000, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(len(s.negatives) for s in samples) == pytest.approx(10_000, abs=8)
    assert peak < 2**20


def test_what_cannot_be_is_named():
    strata, bounds = np.array([0, 5, 10]), np.array([0, 10])
    with pytest.raises(ValueError, match="sample_rate must be in"):
        ShardSampler(strata, bounds, 0.0)
    with pytest.raises(ValueError, match="sampling must be of"):
        ShardSampler(strata, bounds, 0.5, sampling="best")
