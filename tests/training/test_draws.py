import collections

import numpy as np
import pytest

from tff_fedss.training import draws

IDS = [f"client_{i}" for i in range(30)]


def test_client_seeds_depend_on_seed_round_and_client():
    keys = [
        (0, 1, "a"),
        (1, 1, "a"),
        (0, 2, "a"),
        (0, 1, "b"),
        (0, 11, ""),
        (0, 1, "1"),
    ]
    seeds = [tuple(draws.client_seed(*key)) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert seeds == [tuple(draws.client_seed(*key)) for key in keys]
    assert draws.client_seed(0, 1, "a").dtype == np.int32
    assert draws.client_seed(0, 1, "a").shape == (2,)


def test_draws_are_pinned():
    # A change of these functions changes every published result: it must be meant.
    np.testing.assert_array_equal(
        draws.client_seed(0, 1, "client_0"), [1015356337, -825583442]
    )
    assert draws.cohort(0, 1, IDS, 3) == ["client_15", "client_7", "client_18"]


def test_cohorts_are_distinct_clients_and_depend_on_seed_and_round():
    cohort = draws.cohort(0, 1, IDS, 10)
    assert len(set(cohort)) == 10 and set(cohort) <= set(IDS)
    assert cohort == draws.cohort(0, 1, IDS, 10)
    assert cohort != draws.cohort(0, 2, IDS, 10)
    assert cohort != draws.cohort(1, 1, IDS, 10)


def test_all_clients_are_equally_likely():
    counts = collections.Counter(
        c for round_num in range(1000) for c in draws.cohort(0, round_num, IDS, 10)
    )
    # Each is in a cohort with probability 1/3; five standard deviations.
    expected, deviation = 1000 / 3, np.sqrt(1000 * 2 / 9)
    for client_id in IDS:
        assert abs(counts[client_id] - expected) < 5 * deviation


@pytest.mark.parametrize("draw", draws.SAMPLINGS.values(), ids=draws.SAMPLINGS)
@pytest.mark.parametrize("size", [0, 31])
def test_a_cohort_that_cannot_be_had_is_refused(draw, size):
    with pytest.raises(ValueError, match=f"_size={size} .*at least 1 and at most 30"):
        draw(0, 1, IDS, size)


def test_poisson_cohorts_are_independent_coins():
    assert draws.poisson_cohort(0, 1, IDS, 10) == draws.poisson_cohort(0, 1, IDS, 10)
    cohorts = [set(draws.poisson_cohort(0, r, IDS, 10)) for r in range(1000)]
    expected, deviation = 1000 / 3, np.sqrt(1000 * 2 / 9)
    for client_id in IDS:
        count = sum(client_id in cohort for cohort in cohorts)
        assert abs(count - expected) < 5 * deviation
    # Sizes vary as those of 30 coins do: 20 / 3; those of `cohort` would not.
    sizes = [len(cohort) for cohort in cohorts]
    assert np.mean(sizes) == pytest.approx(10, abs=5 * np.sqrt(20 / 3 / 1000))
    assert np.var(sizes) == pytest.approx(20 / 3, rel=0.2)
    # Two clients are in a cohort together as often as coins say: 1 / 9.
    both = sum({IDS[0], IDS[1]} <= cohort for cohort in cohorts)
    assert abs(both - 1000 / 9) < 5 * np.sqrt(1000 * 8 / 81)
