import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.arrays import assert_drawn_from, draws, rng, unit
from tff_fedss import samplers

N, D, SCALE = 300, 5, 6.0


EMBEDDINGS = unit(rng().standard_normal((N, D)).astype(np.float32))
QUERY = EMBEDDINGS[:1] + 0.5


def expected(name, target):
    weights = {
        "uniform": np.ones(N),
        "log_uniform": np.log((np.arange(N) + 2) / (np.arange(N) + 1)),
        "exp": np.exp(SCALE * np.float64(EMBEDDINGS) @ np.float64(QUERY[0])),
    }[name]
    weights[target] = 0
    return weights / weights.sum()


def built(name, num_classes=N, **settings):
    """A sampler that knows the embeddings."""
    options = samplers.SamplerOptions(num_classes, D, SCALE, **settings)
    sampler = samplers.SAMPLERS[name](options)
    sampler.rebuild(EMBEDDINGS[:num_classes])
    return sampler


@pytest.mark.parametrize("target", [0, 130, N - 1])
@pytest.mark.parametrize("name", ["uniform", "log_uniform", "exp"])
def test_draws_and_log_q_follow_the_definition(name, target):
    sampler = built(name)
    ids, log_q = sampler.draw(np.repeat(QUERY, 30, 0), [target] * 30, 5000, rng(1))
    assert ids.dtype == np.int32 and log_q.dtype == np.float32
    q = expected(name, target)
    np.testing.assert_allclose(log_q, np.log(q[ids]), atol=1e-4)
    whole = sampler.distribution(QUERY, np.array([target]))
    np.testing.assert_allclose(np.exp(whole.log_q[0]), q, rtol=1e-4)
    assert not whole.is_clipped.any()
    counts = np.bincount(ids.reshape(-1), minlength=N)
    assert not counts[q == 0].any()
    assert_drawn_from(q, counts)


@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_every_sampler_keeps_its_promises(name):
    sampler = built(name, num_frequencies=30)
    targets = np.arange(40)
    queries = np.repeat(QUERY, 40, 0)
    ids, log_q = sampler.draw(queries, targets, 50, rng(2))
    assert ids.shape == log_q.shape == (40, 50)
    assert ((ids >= 0) & (ids < N) & (ids != targets[:, np.newaxis])).all()
    assert (log_q <= 0).all() and np.isfinite(log_q).all()
    again = sampler.draw(queries, targets, 50, rng(2))
    np.testing.assert_array_equal(again.ids, ids)

    # A class that comes to where the query is, is drawn more often.
    before = np.count_nonzero(ids == 200)
    sampler.update(np.array([200]), unit(QUERY))
    after = np.count_nonzero(sampler.draw(queries, targets, 50, rng(2)).ids == 200)
    assert after > before if sampler.needs_embeddings else after == before


@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_two_classes_leave_no_choice(name):
    sampler = built(name, num_classes=2)
    ids, log_q = sampler.draw(np.repeat(QUERY, 2, 0), [0, 1], 3, rng())
    np.testing.assert_array_equal(ids, [[1, 1, 1], [0, 0, 0]])
    np.testing.assert_allclose(log_q, 0.0, atol=1e-6)


def test_queries_of_a_run_that_has_diverged_draw_nan():
    ids, log_q = built("exp").draw(np.nan * QUERY, [0], 3, rng())
    assert np.isnan(log_q).all() and (ids < N).all()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="at least 2, found 1"):
        samplers.FixedSampler([1.0])
    with pytest.raises(ValueError, match="positive and finite"):
        samplers.FixedSampler([0.5, 0.0])


class OneNumber:
    """A generator that always draws the same number."""

    def __init__(self, number):
        self._number = number

    def random(self, size):
        return np.full(size, self._number)


@pytest.mark.parametrize(
    "number, expected",
    [(0.0, [1, 0, 0, 0]), (np.nextafter(1, 0), [N - 1, N - 1, N - 1, N - 2])],
)
@pytest.mark.parametrize("leaf_size", [1, 16])
@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_the_least_and_the_largest_number_draw_the_ends(
    name, leaf_size, number, expected
):
    sampler = built(name, leaf_size=leaf_size)
    queries, targets = np.repeat(QUERY, 4, 0), np.array([0, 1, N - 2, N - 1])
    ids, log_q = sampler.draw(queries, targets, 2, OneNumber(number))
    np.testing.assert_array_equal(ids, np.transpose([expected, expected]))
    q = np.exp(sampler.distribution(queries, targets).log_q)
    np.testing.assert_allclose(np.exp(log_q), np.take_along_axis(q, ids, 1), rtol=1e-3)


@pytest.mark.parametrize(
    "dim, given, expected", [(1, None, 1), (3, None, 1), (10, None, 5), (10, 7, 7)]
)
def test_a_bucket_of_the_quadratic_tree_costs_as_much_as_a_node(dim, given, expected):
    options = samplers.SamplerOptions(N, dim, SCALE, leaf_size=given)
    assert samplers.SAMPLERS["quadratic"](options).leaf_size == expected


def test_defaults_are_those_of_rf_softmax():
    options = samplers.SamplerOptions(N, D, SCALE)
    assert (options.alpha, options.nu, options.num_frequencies) == (100, 4, 1024)


# --- Draws without replacement ----------------------------------------------------

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
    def draw(seed):
        return samplers.sample_without_replacement(
            num_samples, population, tf.stack([seed, 0])
        )

    subsets = np.sort(draws(4000, draw))
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
