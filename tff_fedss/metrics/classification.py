"""Classification by W, by class centres and by a linear layer; collapsed features."""

import warnings

import numpy as np
import tensorflow as tf

from tff_fedss import models
from tff_fedss.metrics.retrieval import class_sizes, finite_features, unit

# Number of cosines with class centres that are computed at a time.
_BLOCK_NUMBERS = 2**22
# Cosines that differ by less, in float64, are equal.
_EQUAL = 1e-12


@tf.function(reduce_retracing=True)
def nearest_classes(
    features: tf.Tensor, classifier: tf.Tensor, class_block: int = 16384
) -> tf.Tensor:
    """Returns the class with the largest cosine, for each feature vector.

    The classes are scored block by block, without an [examples, n] matrix of logits.

    Args:
        features: float32[examples, d].
        classifier: float32[n, d], W.
        class_block: Number of classes scored at once.

    Returns:
        int32[examples]; the smallest class among equals.
    """
    best = tf.fill([tf.shape(features)[0]], features.dtype.min)
    classes = tf.zeros([tf.shape(features)[0]], tf.int32)
    for start in tf.range(0, tf.shape(classifier)[0], class_block):
        cosines = models.cosine_logits(
            features, classifier[start : start + class_block], scale=1.0
        )
        block_best = tf.reduce_max(cosines, 1)
        is_better = block_best > best
        classes = tf.where(is_better, start + tf.argmax(cosines, 1, tf.int32), classes)
        best = tf.where(is_better, block_best, best)
    return classes


def client_predictions(
    features: np.ndarray,
    labels: np.ndarray,
    classifier: np.ndarray,
    positives: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Predicts the classes of a client's images among its positives P_k (Fig. 7).

    The prediction is the class of P_k with the largest cosine, without the rest of W. A
    collapsed client (NegOnly) fills few columns of the confusion matrix.

    Args:
        features: float32[examples, d], phi's outputs for the client's images.
        labels: int[examples], their classes, all of P_k.
        classifier: float32[n, d], W.
        positives: int[|P_k|], distinct classes.

    Returns:
        The true and the predicted classes, as positions in `positives`, int64[examples]
        each. Among equal cosines the first class is predicted.
    """
    positives = np.asarray(positives)
    order = np.argsort(positives)
    true = order[np.searchsorted(positives[order], labels)]
    predicted = nearest_classes(
        tf.convert_to_tensor(features), tf.gather(classifier, positives)
    ).numpy()
    return true, predicted.astype(np.int64)


def center_accuracy(features: np.ndarray, labels: np.ndarray) -> float:
    """Computes the share of images that are nearest to the centre of their class.

    This is how an encoder is used on unseen classes (Snell et al., "Prototypical
    Networks for Few-shot Learning", NeurIPS 2017, but with cosines, as in FedSS's
    classifier). A centre is the mean of its class's unit vectors; the nearest has the
    highest cosine. An image is left out of its own class's centre. Images that are
    alone in their class are no queries, but their class is a candidate for the others.
    An image that is equally near to its own centre and another is not right.

    Args:
        features: [images, d] of a floating type, of any lengths; zero vectors have
            cosine 0 with all.
        labels: [images], integers.

    Returns:
        The share of the queries, in [0, 1].

    Raises:
        ValueError: If no class has two images or all images are of one, a feature is
            not finite, or an argument has the wrong shape.
    """
    units = unit(finite_features(features))
    class_of, sizes = class_sizes(features, labels)
    sums = np.zeros([len(sizes), units.shape[1]])
    np.add.at(sums, class_of, units)
    centers = unit(sums)
    queries = np.flatnonzero(sizes[class_of] > 1)
    num_rows = max(1, _BLOCK_NUMBERS // len(sizes))
    right = 0
    for start in range(0, len(queries), num_rows):
        rows = queries[start : start + num_rows]
        own = class_of[rows]
        cosines = units[rows] @ centers.T
        without = unit(sums[own] - units[rows])
        of_own = np.sum(units[rows] * without, 1)
        cosines[np.arange(len(rows)), own] = -np.inf
        # Rounding must not decide between equal cosines, such as of collapsed features.
        right += int(np.sum(of_own > cosines.max(1) + _EQUAL))
    return right / len(queries)


_MAX_ITERATIONS = 1000


def linear_accuracy(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    strength: float = 1.0,
) -> float:
    """Fits multinomial logistic regression to features and tests it on others.

    The usual protocol trains a linear layer by SGD on random crops (the paper: for 50
    epochs), and its learning rate (30, in MoCo) must suit the length of the features.
    This is the same kind of classifier without such a choice: features are standardized
    by the training examples, and L-BFGS finds the optimum of the convex objective.
    There are no crops.

    Args:
        train_features: float32[N, features].
        train_labels: int32[N], of at least two classes.
        test_features: float32[test examples, features].
        test_labels: int32[test examples].
        strength: C of scikit-learn, the weight of the sum of the losses relative to
            half the squared weights.

    Returns:
        The share of correctly classified test examples.
    """
    # These take seconds to import.
    import threadpoolctl
    from sklearn import exceptions, linear_model

    mean = train_features.mean(0, dtype=np.float64)
    deviation = train_features.std(0, dtype=np.float64)
    # A constant feature has no information.
    scale = np.where(deviation > 1e-6, 1.0 / np.maximum(deviation, 1e-6), 0.0)

    def standardized(features):
        return (features - mean) * scale

    classifier = linear_model.LogisticRegression(C=strength, max_iter=_MAX_ITERATIONS)
    # One thread, so that sums do not depend on the number of threads.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        # If the classes are separable, the optimum is far but the predictions are
        # settled.
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        classifier.fit(standardized(train_features), train_labels)
        predictions = classifier.predict(standardized(test_features))
    return float(np.mean(predictions == test_labels))


class MeanCosine:
    """The mean cosine between the features of two different images.

    Features have collapsed if all images have the same one: the mean is 1. Too long
    steps bring a run from scratch to that state, with a falling loss (the classifier
    learns the frequencies of classes) and a metric at chance. For centred features of
    many classes the mean is about 0. The cosine of a zero vector is 0.
    """

    def __init__(self):
        self._sum: np.ndarray | float = 0.0
        self._count = 0
        self._num_directions = 0

    def add(self, features: np.ndarray) -> None:
        """Adds images.

        Args:
            features: float32[images, d].
        """
        units = unit(features)
        self._sum = self._sum + units.sum(0)
        self._count += len(features)
        self._num_directions += np.count_nonzero(units.any(1))

    @property
    def value(self) -> float:
        """The mean over all pairs of different images; 1 for fewer than two images."""
        pairs = self._count * (self._count - 1)
        if not pairs:
            return 1.0
        # |sum of u|^2 is the sum of all cosines, including images with themselves.
        return float((np.sum(np.square(self._sum)) - self._num_directions) / pairs)


def effective_rank(features: np.ndarray) -> float:
    """Returns the effective number of directions of features (Roy and Vetterli, 2007).

    exp of the entropy of the shares of variance along the principal directions: d if
    they are equal, 1 if all features lie on a line, 0 if all are equal.

    Args:
        features: float32[images, d], at least one; their lengths do not matter.
    """
    units = unit(features)
    variances = np.linalg.eigvalsh(np.cov(units.T, ddof=0).reshape(units.shape[1], -1))
    variances = np.maximum(variances, 0.0)
    # Differences below rounding are ignored.
    if variances.sum() < 1e-12:
        return 0.0
    shares = variances[variances > 0] / variances.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))
