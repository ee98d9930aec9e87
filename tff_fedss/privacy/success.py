"""The success of an attack on P_k: of its scores, and of its claims."""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Success(NamedTuple):
    """The success of an attack on one client.

    Attributes:
        auc: The probability that a class of P_k has a higher score than another class,
            a tie counting half. Chance: 0.5.
        precision_at: The share of P_k among the |P_k| classes with the highest scores,
            in expectation over a random order of ties. Chance: |P_k| over the number of
            scored classes.
        precision: The share of P_k among the claimed classes; 0 without claims.
        recall: The share of P_k that is claimed.
        exact: Whether the claimed classes are exactly P_k.
    """

    auc: float
    precision_at: float
    precision: float
    recall: float
    exact: float


def judge(scores: np.ndarray, claimed: np.ndarray, truth: np.ndarray) -> Success:
    """Compares an attack with P_k, bool[classes]: its scores and its claim.

    Scores are float[classes], finite or infinite: of all n, or of the attacked
    classes, such as the requested ones. Raises ValueError if P_k is empty or has
    all classes, or if a score is NaN.
    """
    claimed, truth = np.asarray(claimed, bool), np.asarray(truth, bool)
    hits = np.count_nonzero(claimed & truth)
    num_claimed, num_true = np.count_nonzero(claimed), np.count_nonzero(truth)
    return Success(
        auc=auc(scores, truth),
        precision_at=precision_at(scores, truth),
        precision=hits / max(num_claimed, 1),
        recall=hits / num_true,
        exact=float(np.array_equal(claimed, truth)),
    )


def auc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Returns the area under the ROC curve, by ranks (Mann and Whitney).

    Takes float[classes] and bool[classes], as `judge`. scikit-learn's refuses
    infinite scores, which attacks give to excluded classes.
    """
    scores, truth = _checked(scores, truth)
    ranks = stats.rankdata(scores)
    num_true = np.count_nonzero(truth)
    above = ranks[truth].sum() - num_true * (num_true + 1) / 2
    return float(above / (num_true * (len(truth) - num_true)))


def precision_at(scores: np.ndarray, truth: np.ndarray) -> float:
    """Returns the precision of the |P_k| highest scores, in expectation over ties.

    Takes float[classes] and bool[classes], as `judge`.
    """
    scores, truth = _checked(scores, truth)
    count = np.count_nonzero(truth)
    least = np.sort(scores)[-count]
    is_above, is_tied = scores > least, scores == least
    hits = np.count_nonzero(truth & is_above)
    share = np.count_nonzero(truth & is_tied) / np.count_nonzero(is_tied)
    return float((hits + (count - np.count_nonzero(is_above)) * share) / count)


def top(scores: np.ndarray, count: int) -> np.ndarray:
    """Claims the `count` highest scores, float[classes]: bool[classes].

    Among ties, lower classes are first. The server knows |P_k| = |S_k| - m.
    """
    claimed = np.zeros(len(scores), bool)
    claimed[np.argsort(-np.asarray(scores), kind="stable")[:count]] = True
    return claimed


def two_groups(scores: np.ndarray) -> np.ndarray:
    """Claims the upper of two groups, if |P_k| is not known: bool[classes].

    The split minimizes the squared distances to the two means (k-means of two
    groups on a line, which has an exact solution). If all scores are equal, or one is
    infinite, nothing is claimed.
    """
    scores = np.asarray(scores, np.float64)
    if len(scores) < 2:
        return np.zeros(len(scores), bool)
    ordered = np.sort(scores)
    sizes = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    below, above = sums[:-1], sums[-1] - sums[:-1]
    between = below**2 / sizes + above**2 / (len(ordered) - sizes)
    # Equal scores cannot be split.
    between[ordered[1:] == ordered[:-1]] = -np.inf
    if not np.isfinite(between.max()):
        return np.zeros(len(scores), bool)
    return scores > ordered[np.argmax(between)]


def _checked(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores, truth = np.asarray(scores, np.float64), np.asarray(truth, bool)
    if np.isnan(scores).any():
        raise ValueError("A score is NaN.")
    if truth.all() or not truth.any():
        raise ValueError("There must be classes in P_k and others.")
    return scores, truth
