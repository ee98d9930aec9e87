"""Attacks on one client's update of its requested rows, in a single round.

A negative is only pushed away: the gradient of its row is a mean of the client's
features, weighted by small and similar softmax probabilities. So the rows of all
negatives move in nearly the same direction, and those of P_k, each pulled towards its
own examples, do not.
"""

import numpy as np

from tff_fedss.vectors import unit

_MOST_STEPS = 50


def against_median(rows: np.ndarray) -> np.ndarray:
    """Scores a row by how little it is aligned with the median row.

    It is for requests with more negatives than positives, so that the median is a
    negative's direction.

    Args:
        rows: float[L, d], the delta of each requested row.

    Returns:
        float64[L], minus the cosine.
    """
    rows = np.asarray(rows, np.float64)
    return -unit(rows) @ unit(np.median(rows, axis=0))


def against_push(
    rows: np.ndarray, classifier: np.ndarray, feature: np.ndarray
) -> np.ndarray:
    """Scores a row by how little it is pushed away from the features.

    It distinguishes the two sides also if positives are the majority.

    Args:
        rows: float[L, d], the delta of each requested row.
        classifier: float[L, d], W at these rows, as the server sent them.
        feature: float[d], the mean feature of any images.

    Returns:
        float64[L], the cosine of the delta with the feature, both projected to the
        tangent of the sphere at the row, the only direction in which cosine logits move
        it.
    """
    return np.sum(unit(rows) * _tangents(classifier, feature), axis=1)


def push(rows: np.ndarray, classifier: np.ndarray, feature: np.ndarray) -> np.ndarray:
    """Scores a row as `against_push`, but by how far it has moved that way.

    It is linear in the delta, so that normal noise on the delta is normal on the score.

    Args:
        rows: See `against_push`.
        classifier: See `against_push`.
        feature: See `against_push`.

    Returns:
        float64[L].
    """
    return np.sum(rows * _tangents(classifier, feature), axis=1)


def _tangents(classifier: np.ndarray, feature: np.ndarray) -> np.ndarray:
    """Returns the unit tangent towards the feature on the sphere at each row."""
    around = unit(classifier)
    return unit(feature - (around @ feature)[:, np.newaxis] * around)


def against_bundle(
    rows: np.ndarray, num_negatives: int, start: np.ndarray
) -> np.ndarray:
    """Scores a row by how little it is aligned with the m likeliest negatives.

    These have the m lowest scores; their mean is the direction; the direction gives new
    scores; and so on, until nothing changes.

    Args:
        rows: float[L, d], the delta of each requested row.
        num_negatives: m, which the server knows.
        start: float[L], the scores to start from, such as those of `against_push`.

    Returns:
        float64[L], minus the cosine.
    """
    directions, scores = unit(rows), start
    taken = None
    for _ in range(_MOST_STEPS):
        lowest = np.sort(np.argsort(scores, kind="stable")[:num_negatives])
        if taken is not None and np.array_equal(lowest, taken):
            break
        taken = lowest
        scores = -directions @ unit(directions[taken].mean(0))
    return scores


def together(*scores: np.ndarray) -> np.ndarray:
    """Adds the scores of several attacks, each standardized.

    Args:
        *scores: float[L] each, finite.

    Returns:
        float64[L].
    """
    total = np.zeros(len(scores[0]))
    for one in scores:
        one = np.asarray(one, np.float64)
        total += (one - one.mean()) / (one.std() or 1.0)
    return total


def lengths(rows: np.ndarray) -> np.ndarray:
    """Scores a row by how far it moved, float64[L]."""
    return np.linalg.norm(np.asarray(rows, np.float64), axis=1)
