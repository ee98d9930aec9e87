import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_fedss import samplers

# Both branches of the sampler: few of many (rejection) and most of few (shuffle).
CASES = [(3, 10), (5, 10), (6, 10), (10, 10), (1, 1), (80, 659), (500, 659)]


def draw(num_samples, population, seed):
    return samplers.sample_without_replacement(
        num_samples, population, tf.constant([seed, 7], tf.int32)
    ).numpy()


@pytest.mark.parametrize("num_samples, population", CASES)
def test_draws_are_distinct_and_in_range(num_samples, population):
    for seed in range(20):
        sample = draw(num_samples, population, seed)
        assert sample.shape == (num_samples,)
        assert len(set(sample)) == num_samples
        assert sample.min() >= 0 and sample.max() < population


def test_nothing_is_drawn_of_nothing():
    assert draw(0, 0, 0).shape == (0,)


def test_same_seed_same_sample_and_other_seed_another():
    np.testing.assert_array_equal(draw(80, 659, 1), draw(80, 659, 1))
    assert set(draw(80, 659, 1)) != set(draw(80, 659, 2))


@pytest.mark.parametrize("num_samples, population", [(2, 5), (4, 5)])
def test_every_subset_is_equally_likely(num_samples, population):
    num_draws = 4000
    sampler = tf.function(
        lambda seed: samplers.sample_without_replacement(
            num_samples, population, tf.stack([seed, 0])
        )
    )
    subsets = [
        tuple(sorted(sampler(tf.constant(seed)).numpy())) for seed in range(num_draws)
    ]
    _, counts = np.unique(subsets, axis=0, return_counts=True)
    assert len(counts) == scipy.special.comb(population, num_samples)
    # The seeds are fixed, so this never flickers; a right sampler with other seeds
    # would fail in one of a thousand runs.
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_order_is_random_too():
    pairs = [draw(2, 50, seed) for seed in range(200)]
    assert 60 < sum(first < second for first, second in pairs) < 140


def test_a_million_costs_no_list_of_a_million():
    graph = tf.function(
        lambda seed: samplers.sample_without_replacement(80, 1_000_000, seed),
        input_signature=[tf.TensorSpec([2], tf.int32)],
    ).get_concrete_function()
    assert len(set(graph(tf.constant([1, 2])).numpy())) == 80
    # The branch that lists the population must not run for so few.
    assert draw(80, 2**31 - 1, 3).max() > 2**30


def test_too_many_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="more negatives"):
        draw(6, 5, 0)
