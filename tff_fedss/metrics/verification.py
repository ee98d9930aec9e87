"""Verification on lists of pairs: whether two images are of the same identity.

As for Labeled Faces in the Wild (Huang et al., 2007) and IJB (Whitelam et al., 2017):
a pair is accepted if the cosine between its features is at least a threshold.
"""

import math
from typing import NamedTuple

import numpy as np

from tff_fedss import errors
from tff_fedss.metrics.retrieval import unit


class Pairs(NamedTuple):
    """A list of pairs of images.

    Attributes:
        first: int64[pairs], indices of images.
        second: int64[pairs], indices of images.
        is_same: bool[pairs], whether both are of one identity.
    """

    first: np.ndarray
    second: np.ndarray
    is_same: np.ndarray


def draw_pairs(labels: np.ndarray, num_pairs: int, seed: int) -> Pairs:
    """Draws a list of pairs, half of them of one identity.

    Pairs are independent, so that one may be repeated. The identity of a same pair is
    uniform among those with two images or more; a different pair is two images, uniform
    among all. Same and different pairs alternate.

    Args:
        labels: int[images].
        num_pairs: Number of pairs, rounded up to an even number.

    Raises:
        ValueError: If no identity has two images, or all have the same identity.
    """
    labels = np.asarray(labels)
    rng = np.random.Generator(np.random.Philox(seed))
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    several = np.flatnonzero(sizes > 1)
    if not len(several) or len(sizes) < 2:
        raise ValueError("pairs need two identities, and one with two images or more")
    half = -(-num_pairs // 2)
    identity = rng.choice(several, half)
    a = rng.integers(0, sizes[identity])
    b = rng.integers(0, sizes[identity] - 1)
    same = order[starts[identity] + a], order[starts[identity] + b + (b >= a)]
    different = rng.integers(0, len(labels), (2, half))
    while (clash := labels[different[0]] == labels[different[1]]).any():
        different[:, clash] = rng.integers(0, len(labels), (2, int(clash.sum())))
    first, second = (
        np.stack([s, d], 1).reshape(-1) for s, d in zip(same, different, strict=True)
    )
    return Pairs(first, second, np.tile([True, False], half))


def pair_cosines(features: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Computes the cosine of each pair, float64[pairs]; 0 with a zero vector.

    Args:
        features: [images, d] of a floating type, of any lengths.
    """
    units = unit(features)
    return np.sum(units[pairs.first] * units[pairs.second], 1)


def tar_at_far(scores: np.ndarray, is_same: np.ndarray, far: float) -> float:
    """Computes the true accept rate at a false accept rate.

    The threshold is the lowest at which at most a share `far` of the different pairs is
    accepted. Equal scores are accepted together or not at all.

    Args:
        scores: float[pairs], higher means more alike.
        is_same: bool[pairs].
        far: The false accept rate, in [0, 1]. Below 1 / (number of different pairs), no
            different pair may be accepted.

    Returns:
        The share of the pairs of one identity that is accepted.

    Raises:
        ValueError: If there are no pairs of one or of two identities, a score is not
            finite, or far is out of range.
    """
    scores, is_same = _checked(scores, is_same)
    errors.check_range("far", far, 0, 1)
    impostors = np.sort(scores[~is_same])[::-1]
    # Rounded up slightly: 0.001 * 3,000 must be 3, despite rounding.
    allowed = math.floor(far * len(impostors) * (1 + 1e-12))
    if allowed >= len(impostors):
        return 1.0
    # All scores above the first impostor that must not be accepted.
    return float(np.mean(scores[is_same] > impostors[allowed]))


def fold_accuracies(
    scores: np.ndarray, is_same: np.ndarray, folds: int = 10
) -> np.ndarray:
    """Computes the accuracy of "same or not", cross-validated as for LFW.

    The pairs are cut into consecutive folds. Each is classified with the best threshold
    on the others; of several best, the lowest. LFW reports the mean of the folds'
    accuracies and its standard error: their standard deviation (with n - 1) over the
    square root of their number.

    Args:
        scores: float[pairs], higher means more alike.
        is_same: bool[pairs]; each fold should have both kinds.

    Returns:
        float64[folds].

    Raises:
        ValueError: If there are no pairs of one or of two identities, fewer pairs than
            folds, fewer than two folds, or a score is not finite.
    """
    scores, is_same = _checked(scores, is_same)
    if not 2 <= folds <= len(scores):
        raise ValueError(f"{len(scores)} pairs cannot be cut into {folds} folds")
    fold_of = np.arange(len(scores)) * folds // len(scores)
    accuracies = []
    for fold in range(folds):
        inside = fold_of == fold
        threshold = _best_threshold(scores[~inside], is_same[~inside])
        decided = scores[inside] >= threshold
        accuracies.append(np.mean(decided == is_same[inside]))
    return np.array(accuracies)


def _best_threshold(scores: np.ndarray, is_same: np.ndarray) -> float:
    """Returns the threshold with the most correct decisions."""
    order = np.argsort(-scores, kind="stable")
    ranked, same = scores[order], is_same[order]
    # Accepting the first k: correct are same pairs among them, and different ones
    # after.
    right = np.concatenate([[0], np.cumsum(np.where(same, 1, -1))])
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) + 1
    ends = np.append(0, ends)
    k = ends[len(ends) - 1 - np.argmax(right[ends][::-1])]
    return float(ranked[k - 1]) if k else math.inf


def _checked(scores: np.ndarray, is_same: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores, is_same = np.asarray(scores), np.asarray(is_same, bool)
    if not is_same.any() or is_same.all() or not np.isfinite(scores).all():
        raise ValueError("needs finite scores of pairs of one and of two identities")
    return scores, is_same
