"""The intersection attack: what a client's requests reveal, round after round.

P_k stays. Whatever else stands in a request and is drawn again in the next one drops
out of the intersection. How much a request tells of a class follows from the
probabilities with which a class of P_k and another class get into it, so that one
likelihood ratio is the best attack on every way of asking (Neyman and Pearson):
`RequestModel` has them.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats


class RequestModel(NamedTuple):
    """With which probabilities classes get into a request; known to the server.

    Attributes:
        positive: p, of a class of P_k.
        other: q, of another class.
        is_permanent: Whether this is drawn once for each client and class, for all
            rounds; else drawn again in each.
    """

    positive: float
    other: float
    is_permanent: bool = False


def fresh(num_classes: int, num_positives: int, num_negatives: int) -> RequestModel:
    """The paper's: all of P_k, and m of the others, drawn again in each round.

    Args:
        num_classes: n.
        num_positives: |P_k|; the server knows it, as |S_k| - m.
        num_negatives: m.
    """
    return RequestModel(1.0, num_negatives / (num_classes - num_positives))


def memoised(num_classes: int, num_positives: int, num_negatives: int) -> RequestModel:
    """As `fresh`, but drawn once: permanent decoys, such as a pool of m classes."""
    model = fresh(num_classes, num_positives, num_negatives)
    return model._replace(is_permanent=True)


def randomized_response(positive: float, other: float) -> RequestModel:
    """Permanent randomized response: no single request tells more than epsilon.

    Args:
        positive: p.
        other: q.
    """
    return RequestModel(positive, other, is_permanent=True)


def among_others(model: RequestModel, share: float) -> RequestModel:
    """Where the server sees the union of a client's request with other clients'.

    Taken as drawn again each time: the others change with the cohort.

    Args:
        model: How the client asks.
        share: The chance that another client of the cohort asks for a class.
    """
    return RequestModel(
        *(1 - (1 - own) * (1 - share) for own in (model.positive, model.other))
    )


def in_all(asked: np.ndarray) -> np.ndarray:
    """Claims the classes that are in every request: the plain intersection.

    Args:
        asked: bool[participations, n].

    Returns:
        bool[n].
    """
    return np.all(asked, axis=0)


def log_likelihood_ratio(asked: np.ndarray, model: RequestModel) -> np.ndarray:
    """Returns log P(requests | class in P_k) - log P(requests | class not in P_k).

    Args:
        asked: bool[participations, n].
        model: How the client asks.

    Returns:
        float64[n]; minus infinity rules a class out. What is above zero speaks for the
        class.

    Raises:
        ValueError: If the draw is said to be permanent, but requests differ.
    """
    asked = np.asarray(asked, bool)
    if model.is_permanent:
        if not (asked == asked[:1]).all():
            raise ValueError("The requests differ, so that they are not permanent.")
        # The same answer again says nothing new.
        asked = asked[:1]
    p, q = model.positive, model.other
    times = np.count_nonzero(asked, axis=0)
    return _times(times, _log_ratio(p, q)) + _times(
        len(asked) - times, _log_ratio(1 - p, 1 - q)
    )


def epsilon(model: RequestModel) -> float:
    """Returns how much a request can tell of a class at most, as local privacy does.

    The largest log ratio of the probabilities of an answer, asked for or not, over
    whether the class is in P_k; infinite where all of P_k is asked for.
    """
    p, q = model.positive, model.other
    return max(abs(_log_ratio(p, q)), abs(_log_ratio(1 - p, 1 - q)))


# --- In closed form ---------------------------------------------------------------


def survivors(num_others: int, num_negatives: int, participations: int) -> np.ndarray:
    """Returns how many negatives are in each of t fresh requests: its distribution.

    X_1 = m, and X_(t+1) given X_t is hypergeometric: of m draws from n - |P_k| classes,
    those that hit the X_t.

    Args:
        num_others: n - |P_k|.
        num_negatives: m.
        participations: t, at least 1.

    Returns:
        float64[m + 1], the probabilities of X_t = 0..m.
    """
    m = num_negatives
    chance = np.zeros(m + 1)
    chance[m] = 1.0
    if participations == 1:
        return chance
    log_factorial = np.concatenate(
        [[0.0], np.cumsum(np.log(np.arange(1, num_others + 1)))]
    )

    def log_choose(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        is_possible = (b >= 0) & (b <= a)
        a, b = np.broadcast_arrays(a, np.where(is_possible, b, 0))
        value = log_factorial[a] - log_factorial[b] - log_factorial[a - b]
        return np.where(is_possible, value, -np.inf)

    now, then = np.arange(m + 1)[:, np.newaxis], np.arange(m + 1)
    total = log_choose(np.array(num_others), np.array(m))
    step = np.exp(
        log_choose(now, then) + log_choose(num_others - now, m - then) - total
    )
    # Logarithms of large factorials round; rows are distributions all the same.
    step /= step.sum(1, keepdims=True)
    for _ in range(participations - 1):
        chance = chance @ step
    return chance


class Expected(NamedTuple):
    """What the intersection of fresh requests, or of unions, is expected to give.

    Attributes:
        precision: The mean of |P_k| / |intersection|.
        exact: The probability that it is P_k.
        num_candidates: Its mean size; of fresh requests |P_k| + (n - |P_k|)
            (m / (n - |P_k|))^t.
    """

    precision: float
    exact: float
    num_candidates: float


def expected(
    num_classes: int, num_positives: int, num_negatives: int, participations: int
) -> Expected:
    """Computes the success against fresh requests exactly, without a simulation.

    Args:
        num_classes: n.
        num_positives: |P_k|.
        num_negatives: m.
        participations: t, at least 1.
    """
    chance = survivors(num_classes - num_positives, num_negatives, participations)
    return _expected(num_positives, chance)


def expected_of_unions(
    num_classes: int,
    num_positives: int,
    num_negatives: int,
    cohort_size: int,
    participations: int,
) -> Expected:
    """Computes the success where the server sees the unions of a client's cohorts.

    Another class than the client's is in such a union with

        u = 1 - (1 - m / (n - |P_k|)) (1 - (|P_k| + m) / n)^(K - 1)

    if the requests of the others are uniform sets of |P_k| + m classes, and in all of t
    with u^t; classes are taken as independent, which is close where n is large.

    Args:
        num_classes: n.
        num_positives: |P_k|, of all clients.
        num_negatives: m, drawn again each time.
        cohort_size: K.
        participations: t, at least 1; who takes part is known.
    """
    others = num_classes - num_positives
    share = (num_positives + num_negatives) / num_classes
    in_union = 1 - (1 - num_negatives / others) * (1 - share) ** (cohort_size - 1)
    stays = in_union**participations
    chance = stats.binom.pmf(np.arange(others + 1), others, stays)
    return _expected(num_positives, chance)


def _expected(num_positives: int, chance: np.ndarray) -> Expected:
    """Of the probabilities of 0, 1, 2, ... other classes in the intersection."""
    sizes = num_positives + np.arange(len(chance))
    return Expected(
        precision=float(chance @ (num_positives / sizes)),
        exact=float(chance[0]),
        num_candidates=float(chance @ sizes),
    )


def _log_ratio(a: float, b: float) -> float:
    if a == b:
        return 0.0
    if not a or not b:
        return -math.inf if not a else math.inf
    return math.log(a / b)


def _times(counts: np.ndarray, value: float) -> np.ndarray:
    """Returns counts * value, with 0 * inf = 0."""
    return np.where(counts > 0, np.maximum(counts, 1) * value, 0.0)
