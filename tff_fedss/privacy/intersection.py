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

    Negatives that are drawn once, such as m of a pool, make it permanent:
    `fresh(...)._replace(is_permanent=True)`.

    Args:
        num_classes: n.
        num_positives: |P_k|; the server knows it, as |S_k| - m.
        num_negatives: m.
    """
    num_others = max(num_classes - num_positives, 1)
    return RequestModel(1.0, min(1.0, num_negatives / num_others))


def among_others(model: RequestModel, share: float) -> RequestModel:
    """Unions of a client's request with other clients', seen by the server.

    Another client asks for a class with probability `share`. Others are treated as
    drawn anew each time, since they change with the cohort.
    """
    return RequestModel(
        *(1 - (1 - own) * (1 - share) for own in (model.positive, model.other))
    )


def log_likelihood_ratio(asked: np.ndarray, model: RequestModel) -> np.ndarray:
    """Returns by how much a class in P_k makes the requests more likely: float64[n].

    It is log P(requests | class in P_k) - log P(requests | class not in P_k), where
    requests are bool[participations, n]. Minus infinity excludes a class; values above
    zero favour it.
    """
    if model.is_permanent:
        asked = asked[:1]  # A repeated answer has no new information.
    p, q = model.positive, model.other
    times = np.count_nonzero(asked, axis=0)
    return _times(times, _log_ratio(p, q)) + _times(
        len(asked) - times, _log_ratio(1 - p, 1 - q)
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
