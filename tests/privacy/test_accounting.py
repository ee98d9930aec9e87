"""Epsilon against published values, closed forms, TensorFlow Privacy's and bounds."""

import math

import numpy as np
import pytest
import tensorflow_privacy as tfp
from scipy import optimize, stats

from tff_fedss import training
from tff_fedss.privacy import accounting


def delta_of_gaussian(epsilon, noise_multiplier):
    """Balle and Wang (2018), Theorem 8."""
    mu = 1 / noise_multiplier
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )


def epsilon_of_gaussian(noise_multiplier, delta):
    return optimize.brentq(
        lambda e: delta_of_gaussian(e, noise_multiplier) - delta, 0, 500
    )


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 5.0])
def test_a_gaussian_mechanism(noise_multiplier):
    found = accounting.epsilon_of_gaussian(noise_multiplier, 1e-5)
    expected = epsilon_of_gaussian(noise_multiplier, 1e-5)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_gaussian_mechanism_with_hardly_any_noise():
    # The loss is normal, with mean 1 / (2 z^2) and standard deviation 1 / z.
    found = accounting.epsilon_of_gaussian(1e-5, 1e-5)
    assert found == pytest.approx(0.5e10 + stats.norm.isf(1e-5) * 1e5, rel=1e-6)


@pytest.mark.parametrize(
    "accountant, num_rounds, published, least",
    [
        # Abadi et al. (2016), 3.2: q = 0.01, sigma = 4, 10,000 steps: 1.26. Bounds have
        # become better since; the numerical one is 0.94.
        (accounting.PoissonSampling(4.0, 1e-5, 10_000, 100), 10_000, 1.26, 0.94),
        # TensorFlow Privacy's tutorial on MNIST (its README, table of parameters): 15,
        # 60 and 45 epochs of 60,000 by 256.
        (accounting.PoissonSampling(1.3, 1e-5, 60_000, 256), 3_516, 1.19, 0.8),
        (accounting.PoissonSampling(1.1, 1e-5, 60_000, 256), 14_063, 3.01, 2.3),
        (accounting.PoissonSampling(0.7, 1e-5, 60_000, 256), 10_547, 7.10, 5.5),
    ],
)
def test_published_values_of_poisson_sampling(accountant, num_rounds, published, least):
    assert least < accountant.epsilon(num_rounds) <= published


@pytest.mark.parametrize("num_rounds", [1, 10, 200])
def test_the_loss_distribution_of_whole_cohorts_is_a_gaussian_mechanisms(num_rounds):
    """Without sampling T rounds are one mechanism of z / sqrt(T), known exactly."""
    bounds = accounting.PoissonSampling(3.0, 1e-5, 20, 20).bounds(num_rounds)
    exact = epsilon_of_gaussian(3 / math.sqrt(num_rounds), 1e-5)
    assert exact <= bounds["pld"] <= exact + 0.01
    assert bounds["pld"] < bounds["rdp"]


def test_the_loss_distribution_is_the_closer_bound_of_poisson_sampling():
    accountant = accounting.PoissonSampling(1.0, 1e-5, 1000, 32)
    bounds = accountant.bounds(60)
    assert bounds == pytest.approx({"rdp": 2.32, "pld": 1.88}, abs=0.005)
    assert accountant.epsilon(60) == bounds["pld"]
    # Where epsilon says nothing there is no grid for it.
    assert list(accounting.PoissonSampling(0.1, 1e-5, 99, 16).bounds(60)) == ["rdp"]


def test_one_client_of_a_million_costs_little_but_something():
    accountant = accounting.PoissonSampling(50.0, 1e-7, 1_000_000, 1)
    assert 0 < accountant.epsilon(40) < accountant.epsilon(5000) < 1e-3


def test_fixed_size_sampling_is_never_less_than_what_is_sure():
    """One round: the tight bound of Balle, Barthe, Gaboardi (2018), Theorem 9."""
    num_clients, clients_per_round, delta = 1000, 50, 1e-5
    q = clients_per_round / num_clients
    for z in (1.0, 2.0, 6.0):
        # A replaced client moves the sum by 2 C.
        base = epsilon_of_gaussian(z / 2, delta / q)
        tight = math.log1p(q * math.expm1(base))
        accountant = accounting.FixedSizeSampling(
            z, delta, num_clients, clients_per_round
        )
        assert tight < accountant.epsilon(1) < 10 * tight
        poisson = accounting.PoissonSampling(z, delta, num_clients, clients_per_round)
        assert poisson.epsilon(1) < accountant.epsilon(1)
        assert accountant.epsilon(1) < accountant.epsilon(100)


def test_sampling_never_costs_more_than_to_be_in_all_rounds():
    accountant = accounting.FixedSizeSampling(0.5, 1e-3, 99, 16)
    expected = epsilon_of_gaussian(0.5 / 2 / math.sqrt(9), 1e-3)
    assert accountant.epsilon(9) == pytest.approx(expected, rel=1e-5)
    everybody = accounting.FixedSizeSampling(3.0, 1e-3, 99, 99)
    expected = epsilon_of_gaussian(3 / 2 / math.sqrt(20), 1e-3)
    assert everybody.epsilon(20) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("num_rounds, num_nodes", [(1, 1), (8, 4), (7, 3), (5, 3)])
def test_a_tree_in_which_a_client_is_once(num_rounds, num_nodes):
    """The client of the first round is in a node of each whole height."""
    accountant = accounting.TreeAggregation(2.0, 1e-6, lambda r: [f"client {r}"])
    assert accountant.sensitivity(num_rounds) == pytest.approx(math.sqrt(num_nodes))
    expected = epsilon_of_gaussian(2 / math.sqrt(num_nodes), 1e-6)
    assert accountant.epsilon(num_rounds) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("num_rounds, period", [(64, 64), (64, 8), (32, 5), (16, 1)])
def test_a_tree_with_a_period_is_tensorflow_privacys(num_rounds, period):
    """Their zCDP is that of the worst schedule with such gaps; rho = s^2 / (2 z^2)."""
    accountant = accounting.TreeAggregation(1.0, 1e-6, lambda r: [str(r % period)])
    theirs = tfp.compute_zcdp_single_tree(
        1.0, num_rounds, math.ceil(num_rounds / period), period - 1
    )
    assert accountant.sensitivity(num_rounds) ** 2 / 2 == pytest.approx(theirs)


def test_a_tree_of_drawn_cohorts_node_by_node():
    ids = [f"client {k}" for k in range(12)]

    def cohort(round_num):
        return training.cohort(3, round_num, ids, 5)

    for every, sizes in ((None, [21]), (8, [8, 8, 5])):
        squares = dict.fromkeys(ids, 0)
        start = 0
        for size in sizes:
            for height in range(size.bit_length()):
                for left in range(0, size - 2**height + 1, 2**height):
                    rounds = range(start + left + 1, start + left + 2**height + 1)
                    for k in ids:
                        squares[k] += sum(k in cohort(r) for r in rounds) ** 2
            start += size
        accountant = accounting.TreeAggregation(1.0, 1e-3, cohort, every)
        assert accountant.sensitivity(21) ** 2 == pytest.approx(max(squares.values()))
        # In any order of asking: a run may be resumed, or look back.
        before = accountant.epsilon(7)
        assert accountant.epsilon(21) > before == accountant.epsilon(7)


def test_without_noise_there_is_no_privacy_and_without_rounds_no_loss():
    for accountant in (
        accounting.PoissonSampling(0.0, 1e-3, 9, 3),
        accounting.FixedSizeSampling(0.0, 1e-3, 9, 3),
        accounting.TreeAggregation(0.0, 1e-3, lambda r: ["a"]),
    ):
        assert accountant.epsilon(0) == 0.0
        assert accountant.epsilon(1) == np.inf


def test_what_is_out_of_range_is_refused():
    with pytest.raises(ValueError, match="delta must be between 0 and 1, found 1"):
        accounting.TreeAggregation(1.0, 1.0, lambda r: [])
    with pytest.raises(ValueError, match="noise_multiplier=.* must be at least 0"):
        accounting.PoissonSampling(-1.0, 0.1, 9, 3)
    with pytest.raises(ValueError, match="clients_per_round=.* at most 9"):
        accounting.FixedSizeSampling(1.0, 0.1, 9, 10)
