"""What the update of the feature extractor alone tells, without any row of W.

The gradient of an example's features is a combination of rows of W: towards its own
class, away from the others of the class set. What the last layer of phi accumulates are
these gradients, so that the server, which knows W, can look for its rows in them.
"""

import numpy as np

from tff_fedss.vectors import unit


def by_bias(bias_delta: np.ndarray, classifier: np.ndarray) -> np.ndarray:
    """Scores a class by how far the last bias moved towards its row.

    Args:
        bias_delta: float[d], the delta of the bias of phi's last layer, to which all
            examples have added their gradients.
        classifier: float[n, d], W.

    Returns:
        float64[n].
    """
    return unit(classifier) @ np.asarray(bias_delta, np.float64)


def by_kernel(kernel_delta: np.ndarray, classifier: np.ndarray) -> np.ndarray:
    """Scores a class by how much of the last layer moved towards its row.

    The examples of a class have inputs of the last layer in common, which are not
    negative after a ReLU: what they add to its weights is in a few of its inputs, and
    there it is not lost among the others' as in the bias.

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
    """Scores a class by what moved towards its row, where its own inputs are.

    For a server that has images of the classes: their inputs to the last layer say in
    which of its weights the examples of a class leave their gradient.

    Args:
        kernel_delta: float[inputs, d], the delta of the weights of phi's last layer.
        classifier: float[n, d], W.
        inputs: float[images, inputs], what the images give to the last layer.
        labels: int[images].

    Returns:
        float64[n]; 0, the score of an unknown class, where there is no image.
    """
    num_classes = len(classifier)
    inputs = np.asarray(inputs, np.float64)
    sums = np.zeros((num_classes, inputs.shape[1]))
    np.add.at(sums, labels, inputs)
    counts = np.bincount(labels, minlength=num_classes)[:, np.newaxis]
    own = np.where(counts > 0, sums / np.maximum(counts, 1) - inputs.mean(0), 0.0)
    towards = np.asarray(kernel_delta, np.float64) @ unit(classifier).T
    return np.sum(unit(own).T * towards, axis=0)
