"""The intersection attack: what a client's requests reveal over the rounds.

P_k stays in the intersection of all requests; classes that are drawn anew drop out. The
information in a request depends on the probabilities with which a class of P_k and
another class are requested (`RequestModel`), so a likelihood ratio is the best attack
on every kind of request (Neyman and Pearson).
"""

import math
from typing import NamedTuple

import numpy as np


class RequestModel(NamedTuple):
    """The probabilities that classes are requested, which the server knows.

    Attributes:
        positive: p, of a class of P_k.
        other: q, of another class.
        is_permanent: Whether each client's draws are the same in all rounds, not fresh
            in each.
    """

    positive: float
    other: float
    is_permanent: bool = False


def fresh(num_classes: int, num_positives: int, num_negatives: int) -> RequestModel:
    """The paper's requests: all of P_k, and m of the others, drawn anew in each round.

    Args:
        num_classes: n.
        num_positives: |P_k|; the server knows it, as |S_k| - m.
        num_negatives: m.
    """
    return RequestModel(1.0, num_negatives / (num_classes - num_positives))


def memoised(num_classes: int, num_positives: int, num_negatives: int) -> RequestModel:
    """Requests like `fresh`, drawn once: permanent decoys, such as m of a pool."""
    model = fresh(num_classes, num_positives, num_negatives)
    return model._replace(is_permanent=True)


def randomized_response(positive: float, other: float) -> RequestModel:
    """Requests by permanent randomized response: none reveals more than epsilon.

    Args:
        positive: p.
        other: q.
    """
    return RequestModel(positive, other, is_permanent=True)


def among_others(model: RequestModel, share: float) -> RequestModel:
    """Unions of a client's request with other clients', seen by the server.

    They are treated as drawn anew each time, since the others change with the cohort.

    Args:
        model: The model of the client's own request.
        share: The probability that another client of the cohort asks for a class.
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
        model: The model of the requests.

    Returns:
        float64[n]; minus infinity excludes a class. Values above zero favour the class.

    Raises:
        ValueError: If the model is permanent, but requests differ.
    """
    asked = np.asarray(asked, bool)
    if model.is_permanent:
        if not (asked == asked[:1]).all():
            raise ValueError("The requests differ, so that they are not permanent.")
        # A repeated answer has no new information.
        asked = asked[:1]
    p, q = model.positive, model.other
    times = np.count_nonzero(asked, axis=0)
    return _times(times, _log_ratio(p, q)) + _times(
        len(asked) - times, _log_ratio(1 - p, 1 - q)
    )


def epsilon(model: RequestModel) -> float:
    """Returns the epsilon of a request in the sense of local differential privacy.

    It is the largest log ratio of the probabilities of an answer, requested or not,
    with the class in P_k and not in it; infinite if all of P_k is always requested.
    """
    p, q = model.positive, model.other
    return max(abs(_log_ratio(p, q)), abs(_log_ratio(1 - p, 1 - q)))


# --- In closed form ---------------------------------------------------------------


def survivors(num_others: int, num_negatives: int, participations: int) -> np.ndarray:
    """Returns the distribution of the number of negatives common to t fresh requests.

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
    # Normalized, since logarithms of large factorials are rounded.
    step /= step.sum(1, keepdims=True)
    for _ in range(participations - 1):
        chance = chance @ step
    return chance


class Expected(NamedTuple):
    """The expected success of the intersection of fresh requests.

    Attributes:
        precision: The mean of |P_k| / |intersection|.
        exact: The probability that it is P_k.
        num_candidates: Its mean size, |P_k| + (n - |P_k|) (m / (n - |P_k|))^t.
    """

    precision: float
    exact: float
    num_candidates: float


def expected(
    num_classes: int, num_positives: int, num_negatives: int, participations: int
) -> Expected:
    """Computes the exact success against fresh requests, without simulation.

    Args:
        num_classes: n.
        num_positives: |P_k|.
        num_negatives: m.
        participations: t, at least 1.
    """
    chance = survivors(num_classes - num_positives, num_negatives, participations)
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
