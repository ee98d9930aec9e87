"""Attacks on the update of the feature extractor alone, without rows of W.

The gradient of an example's features is a combination of rows of W: towards its own
class, away from the others of the class set. The last layer of phi accumulates these
gradients, so that the server, which knows W, can look for its rows in them.
"""

import numpy as np

from tff_fedss.vectors import unit


def by_bias(bias_delta: np.ndarray, classifier: np.ndarray) -> np.ndarray:
    """Scores a class by how far the last bias moved towards its row.

    Args:
        bias_delta: float[d], the delta of the bias of phi's last layer, a sum of the
            gradients of all examples.
        classifier: float[n, d], W.

    Returns:
        float64[n].
    """
    return unit(classifier) @ np.asarray(bias_delta, np.float64)


def by_kernel(kernel_delta: np.ndarray, classifier: np.ndarray) -> np.ndarray:
    """Scores a class by how much of the last layer moved towards its row.

    The examples of a class share active inputs of the last layer, not negative after a
    ReLU: they change the weights of a few inputs, where their effect is not lost among
    others as in the bias.

    Args:
        kernel_delta: float[inputs, d], the delta of the weights of phi's last layer.
        classifier: float[n, d], W.

    Returns:
        float64[n].
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
