"""Which training examples a self-paced learner takes next: easy ones, of all kinds.

Self-paced learning with diversity (SPLD; Jiang et al., NeurIPS 2014), as LEAP has it
(Algorithm 2). Here, among the samplers, because it decides what training gets to see;
like them it knows nothing of models.
"""

import dataclasses
from typing import Protocol

import numpy as np


def select(
    losses: np.ndarray, clusters: np.ndarray, easiness: float, diversity: float
) -> np.ndarray:
    """Returns the weights W in {0, 1} that minimise LEAP's objective for fixed losses.

        sum_i w_i L_i - lambda sum_i w_i - gamma sum_k |W^k|_2

    The i-th example of a cluster, by increasing loss, raises |W^k|_2 from sqrt(i - 1)
    to sqrt(i): it pays exactly if L < lambda + gamma / (sqrt(i) + sqrt(i - 1))
    (Algorithm 2, line 19). That takes O(N log N). With gamma < 0 it would not be the
    minimum.

    Args:
        losses: float[N], L. What is not a number is never taken.
        clusters: int[N], the cluster of each example; any numbers.
        easiness: lambda. Infinity takes every example.
        diversity: gamma, at least 0.

    Returns:
        bool[N], W.
    """
    if np.isposinf(easiness):
        return np.ones(len(losses), bool)
    return losses - _bonus(losses, clusters, diversity) < easiness


def easiness_for(
    losses: np.ndarray, clusters: np.ndarray, diversity: float, count: int
) -> float:
    """Solves for the lambda with which `select` takes so many examples.

    Line 19 takes an example if L - gamma / (sqrt(i) + sqrt(i - 1)) < lambda, and ranks
    do not depend on lambda: it is the next of these differences in order. With
    gamma = 0 it is a quantile of the losses.

    Args:
        losses: float[N], as for `select`.
        clusters: int[N].
        diversity: gamma.
        count: How many to take, in [1, N]. Of examples that are alike there none is
            taken, unless they are the lowest: then all of these are. What is not a
            number never is.

    Returns:
        lambda; infinity if it would have to take everything.
    """
    margins = losses - _bonus(losses, clusters, diversity)
    finite = np.sort(margins[np.isfinite(margins)])
    if count >= len(finite):
        return np.inf
    # Not less than all: those that are alike at the bottom are taken.
    return float(max(finite[count], np.nextafter(finite[0], np.inf)))


def _bonus(losses: np.ndarray, clusters: np.ndarray, diversity: float) -> np.ndarray:
    """float64[N], gamma / (sqrt(i) + sqrt(i - 1)) for the rank i within the cluster."""
    # By cluster, then by loss, then by place; NumPy sorts NaN to the end.
    order = np.lexsort((losses, clusters))
    sorted_clusters = clusters[order]
    starts = np.flatnonzero(np.diff(sorted_clusters, prepend=sorted_clusters[:1] - 1))
    sizes = np.diff(np.append(starts, len(order)))
    rank = 1 + np.arange(len(order)) - np.repeat(starts, sizes)
    bonus = np.empty(len(losses))
    bonus[order] = diversity / (np.sqrt(rank) + np.sqrt(rank - 1))
    return bonus


class Pace(Protocol):
    """How lambda and gamma grow, epoch by epoch."""

    def at(
        self, epoch: int, losses: np.ndarray, clusters: np.ndarray
    ) -> tuple[float, float]:
        """Returns lambda and gamma.

        Args:
            epoch: The number of selections before this one.
            losses: float[N], of all training examples now.
            clusters: int[N].
        """


@dataclasses.dataclass(frozen=True)
class ThresholdPace:
    """lambda <- beta_1 lambda, gamma <- beta_2 gamma after every epoch (line 24).

    Attributes:
        easiness: The first lambda, in units of the loss.
        diversity: The first gamma, of the same length.
        easiness_growth: beta_1.
        diversity_growth: beta_2.
    """

    easiness: float
    diversity: float
    easiness_growth: float
    diversity_growth: float

    def at(
        self, epoch: int, losses: np.ndarray, clusters: np.ndarray
    ) -> tuple[float, float]:
        """Returns lambda and gamma of an epoch."""
        del losses, clusters
        with np.errstate(over="ignore"):
            return (
                float(self.easiness * np.float64(self.easiness_growth) ** epoch),
                float(self.diversity * np.float64(self.diversity_growth) ** epoch),
            )


@dataclasses.dataclass(frozen=True)
class SharePace:
    """lambda is what takes a growing share of the examples, gamma included.

    Cross-entropy begins at log n and falls: a lambda in its units that suits the start
    takes everything soon after, so that lambda is best given by rank.

    Attributes:
        share: Of the examples, in the first selection. From 1 on, all are taken.
        share_growth: Added to it after every selection.
        diversity: The first gamma, in units of the loss.
        diversity_growth: beta_2, which gamma is multiplied by after every selection.
        cap: The share does not grow beyond it. With labels that may be wrong, the
            examples of the largest losses are better never taken.
    """

    share: float
    share_growth: float
    diversity: float
    diversity_growth: float
    cap: float = 1.0

    def at(
        self, epoch: int, losses: np.ndarray, clusters: np.ndarray
    ) -> tuple[float, float]:
        """Returns lambda and gamma of an epoch."""
        # Ten steps of 0.1 do not add up to 1 in floating point.
        share = min(round(self.share + epoch * self.share_growth, 9), self.cap)
        with np.errstate(over="ignore"):
            diversity = float(
                self.diversity * np.float64(self.diversity_growth) ** epoch
            )
        # A learner that has come to NaN is to end, not to wait for better losses.
        if share >= 1 or not np.isfinite(losses).any() or np.isinf(diversity):
            return np.inf, diversity
        count = max(round(share * len(losses)), 1)
        return easiness_for(losses, clusters, diversity, count), diversity
