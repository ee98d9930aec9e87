"""Attacks on one client's update in a single round: of its rows of W, or of phi alone.

A negative is only pushed away: the gradient of its row is a mean of the client's
features, weighted by small and similar softmax probabilities. So the rows of all
negatives move in nearly the same direction, and those of P_k, each pulled towards its
own examples, do not.

The gradient of an example's features is a combination of rows of W: towards its own
class, away from the others of the class set. The last layer of phi accumulates these
gradients, so that the server, which knows W, can look for its rows in them.
"""

import numpy as np

from tff_fedss.metrics import unit

_MOST_STEPS = 50


def against_median(rows: np.ndarray) -> np.ndarray:
    """Scores deltas, float[L, d], by minus the cosine to their median: float64[L].

    It is for requests with more negatives than positives, so that the median is a
    negative's direction.
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
    """Scores a row as `against_push`, but by how far it has moved that way: float64[L].

    It is linear in the delta, so that normal noise on the delta is normal on the score.
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
    """Adds the scores of several attacks, each standardized: float64[L].

    Args:
        *scores: float[L] each, finite.
    """
    total = np.zeros(len(scores[0]))
    for one in scores:
        one = np.asarray(one, np.float64)
        total += (one - one.mean()) / (one.std() or 1.0)
    return total


def lengths(rows: np.ndarray) -> np.ndarray:
    """Scores a row by how far it moved, float64[L]."""
    return np.linalg.norm(np.asarray(rows, np.float64), axis=1)


# --- Attacks on phi -------------------------------------------------------------------


def by_bias(bias_delta: np.ndarray, classifier: np.ndarray) -> np.ndarray:
    """Scores a class by how far the last bias moved towards its row: float64[n].

    Args:
        bias_delta: float[d], the delta of the bias of phi's last layer, a sum of the
            gradients of all examples.
        classifier: float[n, d], W.
    """
    return unit(classifier) @ np.asarray(bias_delta, np.float64)


def by_kernel(kernel_delta: np.ndarray, classifier: np.ndarray) -> np.ndarray:
    """Scores a class by how much of the last layer moved towards its row: float64[n].

    The examples of a class share active inputs of the last layer, not negative after a
    ReLU: they change the weights of a few inputs, where their effect is not lost among
    others as in the bias.

    Args:
        kernel_delta: float[inputs, d], the delta of the weights of phi's last layer.
        classifier: float[n, d], W.
    """
    towards = np.asarray(kernel_delta, np.float64) @ unit(classifier).T
    return np.linalg.norm(np.maximum(towards, 0.0), axis=0)


def by_inputs(
    kernel_delta: np.ndarray,
    classifier: np.ndarray,
    inputs: np.ndarray,
    labels: np.ndarray,
) -> np.ndarray:
    """Scores a class by how much its own inputs' weights moved towards its row.

    It is for a server with images of the classes: their inputs to the last layer show
    in which weights the examples of a class leave their gradient.

    Args:
        kernel_delta: float[inputs, d], the delta of the weights of phi's last layer.
        classifier: float[n, d], W.
        inputs: float[images, inputs], the images' inputs to the last layer.
        labels: int[images].

    Returns:
        float64[n]; 0, the score of an unknown class, without an image.
    """
    num_classes = len(classifier)
    inputs = np.asarray(inputs, np.float64)
    sums = np.zeros((num_classes, inputs.shape[1]))
    np.add.at(sums, labels, inputs)
    counts = np.bincount(labels, minlength=num_classes)[:, np.newaxis]
    own = np.where(counts > 0, sums / np.maximum(counts, 1) - inputs.mean(0), 0.0)
    towards = np.asarray(kernel_delta, np.float64) @ unit(classifier).T
    return np.sum(unit(own).T * towards, axis=0)
