"""Epsilon of user-level differential privacy for the cohorts that are actually drawn.

The mechanism is `algorithms.user_level_dp`: per round a sum of vectors of norm at most
C, one of each client of the cohort, with noise of z C on it or in a tree. All models
that leave the server together have (epsilon, delta)-differential privacy. dp-accounting
computes the events; this module chooses them:

- `PoissonSampling`: every client takes part in a round independently. Neighbours: a
  client is added or removed. The sum then changes by at most C: z is the noise
  multiplier (Abadi et al., CCS 2016). Both the Renyi divergences (Mironov, Talwar,
  Zhang, 2019) and the distribution of the privacy loss (PLD; Koskela et al., AISTATS
  2020; Doroshenko et al., PETS 2022) bound epsilon; the second is closer.
- `FixedSizeSampling`: K clients, uniform without replacement. Neighbours: a client is
  replaced by another, since the cohort has K either way. The sum then changes by up to
  2 C, and the noise multiplier is z / 2 (Wang, Balle, Kasiviswanathan, AISTATS 2019,
  Theorem 27), which the library leaves to the caller. Poisson's epsilon does not hold
  here.
- `TreeAggregation`: needs no randomness; the schedule of cohorts may be public.
  Neighbours: a client's updates are zero in all rounds (Kairouz et al., ICML 2021,
  Definition 1.1). A client with c rounds below a node changes it by up to c C (their
  Appendix D.2), so that the tree is one Gaussian mechanism of multiplier z / sqrt(max_k
  sum_nodes c^2). Here c is counted in the actual schedule.

The first two need secret draws of the cohorts, all three secret noise. In a simulation
`seed` decides both, so the numbers hold for the same program with secret draws. Noise
in floating point is treated as Gaussian.
"""

import abc
import collections
import functools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import rdp
from dp_accounting.pld import common, privacy_loss_distribution, privacy_loss_mechanism

from tff_fedss import errors

_Relation = dp_accounting.NeighboringRelation
# Grid of privacy losses, in nats: epsilon is at most some thousandths too large.
_GRID = 1e-3
# Above this the grid takes gigabytes, and epsilon is meaningless.
_MOST_BY_PLD = 100.0
# Smaller Renyi divergences of a round are rounding errors, also below 0.
_LEAST_DIVERGENCE = 1e-12


class Accountant(abc.ABC):
    """The accountant of a run's epsilon after each round.

    Attributes:
        delta: The probability with which epsilon may fail.
        relation: The difference of neighbouring data sets, in words.
    """

    relation: ClassVar[str]

    def __init__(self, noise_multiplier: float, delta: float):
        """Sets z, at least 0, of all that a round reveals, and delta in (0, 1)."""
        errors.check_range("noise_multiplier", noise_multiplier, 0)
        if not 0 < delta < 1:
            raise ValueError(f"delta must be between 0 and 1, found {delta}.")
        self.delta = delta
        self._noise_multiplier = noise_multiplier

    def epsilon(self, num_rounds: int) -> float:
        """Returns epsilon at `delta` of the models after rounds 1 to `num_rounds`.

        Infinite without noise, 0.0 after no round.
        """
        return min(self.bounds(num_rounds).values())

    def bounds(self, num_rounds: int) -> dict[str, float]:
        """Returns the bound of each accounting method; `epsilon` is the smallest."""
        if not num_rounds:
            return {"none": 0.0}
        if not self._noise_multiplier:
            return {"none": math.inf}
        return self._bounds(num_rounds)

    @abc.abstractmethod
    def _bounds(self, num_rounds: int) -> dict[str, float]:
        """Computes `bounds` for at least a round, with noise."""


class _SampledGaussian(Accountant):
    """Equal rounds, each a Gaussian mechanism on a random cohort."""

    neighbours: ClassVar[_Relation]

    def __init__(
        self,
        noise_multiplier: float,
        delta: float,
        num_clients: int,
        clients_per_round: int,
    ):
        """Sets N clients, and K a round, or its expectation; see `Accountant`."""
        super().__init__(noise_multiplier, delta)
        errors.check_range("clients_per_round", clients_per_round, 1, num_clients)
        self._num_clients = num_clients
        self._clients_per_round = clients_per_round

    @functools.cached_property
    def _one_round(self) -> rdp.RdpAccountant:
        """Renyi divergences of one round; those of more rounds are multiples."""
        accountant = rdp.RdpAccountant(neighboring_relation=self.neighbours)
        return accountant.compose(self._event())

    @abc.abstractmethod
    def _event(self) -> dp_accounting.DpEvent:
        """Returns one round."""

    def _bounds(self, num_rounds: int) -> dict[str, float]:
        one = self._one_round
        divergences = num_rounds * np.maximum(one.rdp, _LEAST_DIVERGENCE)
        epsilon, _ = rdp.compute_epsilon(one.orders, divergences, self.delta)
        return {"rdp": float(epsilon)}


class PoissonSampling(_SampledGaussian):
    """Sampling of each client independently with probability K / N."""

    relation = "a client is added or removed"
    neighbours = _Relation.ADD_OR_REMOVE_ONE

    @property
    def _probability(self) -> float:
        return self._clients_per_round / self._num_clients

    def _event(self) -> dp_accounting.DpEvent:
        event = dp_accounting.GaussianDpEvent(self._noise_multiplier)
        return dp_accounting.PoissonSampledDpEvent(self._probability, event)

    @functools.cached_property
    def _loss(self) -> privacy_loss_distribution.PrivacyLossDistribution:
        """Returns the distribution of a round's privacy loss, rounded up to a grid."""
        return privacy_loss_distribution.from_gaussian_mechanism(
            self._noise_multiplier,
            value_discretization_interval=_GRID / max(1.0, self._noise_multiplier),
            sampling_prob=self._probability,
        )

    def _bounds(self, num_rounds: int) -> dict[str, float]:
        bounds = super()._bounds(num_rounds)
        if bounds["rdp"] <= _MOST_BY_PLD:
            composed = self._loss.self_compose(num_rounds)
            bounds["pld"] = float(composed.get_epsilon_for_delta(self.delta))
        return bounds


class FixedSizeSampling(_SampledGaussian):
    """Sampling of K of the N clients, uniform without replacement.

    If the known bound for such sampling is worse than the one without (little noise,
    many rounds), epsilon is that of a client who takes part in all rounds.
    """

    relation = "a client is replaced by another"
    neighbours = _Relation.REPLACE_ONE

    def _event(self) -> dp_accounting.DpEvent:
        # A client's vector is replaced by another, both of norm C: the sum moves by up
        # to 2 C.
        event = dp_accounting.GaussianDpEvent(self._noise_multiplier / 2)
        return dp_accounting.SampledWithoutReplacementDpEvent(
            self._num_clients, self._clients_per_round, event
        )

    def _bounds(self, num_rounds: int) -> dict[str, float]:
        in_all = self._noise_multiplier / (2 * math.sqrt(num_rounds))
        return {
            **super()._bounds(num_rounds),
            "not_sampled": epsilon_of_gaussian(in_all, self.delta),
        }


class TreeAggregation(Accountant):
    """DP-FTRL with any schedule of cohorts."""

    relation = "a client's updates are zero"

    def __init__(
        self,
        noise_multiplier: float,
        delta: float,
        cohort_fn: Callable[[int], Sequence[str]],
        restart_every: int | None = None,
    ):
        """Sets noise (of a node), delta, and the cohort of each round, from 1.

        `restart_every` is the number of rounds of a tree; None: unlimited.
        """
        super().__init__(noise_multiplier, delta)
        self._cohort_fn = cohort_fn
        self._restart_every = restart_every
        self._start_over()

    def _start_over(self) -> None:
        self._num_rounds = 0
        # The complete nodes that are not yet below another, the large ones first: their
        # height, and each client's number of participations.
        self._open: list[tuple[int, collections.Counter[str]]] = []
        self._squares: collections.Counter[str] = collections.Counter()

    def sensitivity(self, num_rounds: int) -> float:
        """Returns how far a client can move all nodes, as one vector, in clips.

        Args:
            num_rounds: T. Only nodes with all rounds completed have been released.

        Returns:
            sqrt(max_k sum_nodes c_k^2).
        """
        if num_rounds < self._num_rounds:
            self._start_over()
        while self._num_rounds < num_rounds:
            self._add(self._cohort_fn(self._num_rounds + 1))
        return math.sqrt(max(self._squares.values(), default=0))

    def _add(self, cohort: Sequence[str]) -> None:
        """Adds a round to the tree, and the nodes that it completes."""
        every = self._restart_every
        if every is not None and self._num_rounds % every == 0:
            self._open = []
        self._num_rounds += 1
        height, counts = 0, collections.Counter(cohort)
        self._release(counts)
        while self._open and self._open[-1][0] == height:
            _, left = self._open.pop()
            height, counts = height + 1, left + counts
            self._release(counts)
        self._open.append((height, counts))

    def _release(self, counts: collections.Counter[str]) -> None:
        for client_id, count in counts.items():
            self._squares[client_id] += count**2

    def _bounds(self, num_rounds: int) -> dict[str, float]:
        sensitivity = self.sensitivity(num_rounds)
        if not sensitivity:
            return {"gaussian": 0.0}
        multiplier = self._noise_multiplier / sensitivity
        return {"gaussian": epsilon_of_gaussian(multiplier, self.delta)}


def epsilon_of_gaussian(noise_multiplier: float, delta: float) -> float:
    """Returns the exact epsilon of one Gaussian mechanism (Balle and Wang, 2018).

    Args:
        noise_multiplier: The standard deviation over the sensitivity; positive.
        delta: In (0, 1).
    """
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(noise_multiplier)
    # Epsilon is about 1 / (2 z^2). Its neighbours in float64 are 1e-16 of it away, and
    # a search for a smaller difference would not end.
    tolerance = max(1e-7, 1e-9 / noise_multiplier**2)
    epsilon = common.inverse_monotone_function(
        loss.get_delta_for_epsilon,
        delta,
        common.BinarySearchParameters(
            0, math.inf, initial_guess=1.0, tolerance=tolerance
        ),
    )
    return float(epsilon)
