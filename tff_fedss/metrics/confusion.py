"""What a client confuses with what among its own classes (FedSS, Fig. 7)."""

import numpy as np
import tensorflow as tf

from tff_fedss.metrics import accuracy


def client_predictions(
    features: np.ndarray,
    labels: np.ndarray,
    classifier: np.ndarray,
    positives: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Predicts the classes of a client's images among its positives P_k.

    The prediction is the class of P_k with the largest cosine; the rest of W takes no
    part.

    Args:
        features: float32[examples, d], phi's outputs for the client's images.
        labels: int[examples], their classes, all of P_k.
        classifier: float32[n, d], W.
        positives: int[|P_k|], distinct classes.

    Returns:
        The true and the predicted classes, as places in `positives`, int64[examples]
        each. Among equal cosines the prediction is the class that comes first there.

    Raises:
        ValueError: If positives repeat or are no rows of W, or a label is not in P_k.
    """
    labels, positives = np.asarray(labels), np.asarray(positives)
    order = np.argsort(positives)
    ascending = positives[order]
    if len(positives) == 0 or np.any(ascending[1:] == ascending[:-1]):
        raise ValueError(
            f"positives must be distinct classes, at least one, found {positives}."
        )
    if ascending[0] < 0 or ascending[-1] >= len(classifier):
        raise ValueError(
            f"positives must be in [0, {len(classifier)}), found {positives}."
        )
    if not np.isin(labels, positives).all():
        strangers = np.setdiff1d(labels, positives)
        raise ValueError(f"labels must be in positives, found {strangers} too.")
    true = order[np.searchsorted(ascending, labels)]
    predicted = accuracy.nearest_classes(
        tf.convert_to_tensor(features), tf.gather(classifier, positives)
    ).numpy()
    return true, predicted.astype(np.int64)


def client_confusion_matrix(
    features: np.ndarray,
    labels: np.ndarray,
    classifier: np.ndarray,
    positives: np.ndarray,
) -> np.ndarray:
    """Counts a client's predictions among its positives P_k.

    A collapsed client (NegOnly) fills few columns, a good one the diagonal.

    Args:
        features: See `client_predictions`.
        labels: Likewise.
        classifier: Likewise.
        positives: Likewise, in the order of the rows and columns.

    Returns:
        int64[|P_k|, |P_k|] of counts: rows are true classes, columns predictions.
        Dividing by `matrix.sum(1, keepdims=True)` gives the rates of Fig. 7.

    Raises:
        ValueError: As `client_predictions`.
    """
    true, predicted = client_predictions(features, labels, classifier, positives)
    return confusion_matrix(true, predicted, len(positives))


def confusion_matrix(
    true: np.ndarray, predicted: np.ndarray, num_classes: int
) -> np.ndarray:
    """Counts predictions.

    Args:
        true: int[examples], classes, from 0 on.
        predicted: int[examples], likewise.
        num_classes: How many classes there are.

    Returns:
        int64[num_classes, num_classes]: rows are true classes, columns predictions.
    """
    matrix = np.zeros([num_classes, num_classes], np.int64)
    np.add.at(matrix, (true, predicted), 1)
    return matrix
