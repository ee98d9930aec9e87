"""Accuracy of a linear classifier on frozen features."""

import warnings

import numpy as np

_MAX_ITERATIONS = 1000


def linear_accuracy(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    strength: float = 1.0,
) -> float:
    """Fits multinomial logistic regression on some features and tests it on others.

    The usual protocol trains a linear layer by SGD on random crops (the paper: for 50
    epochs), and its learning rate (30, in MoCo) has to suit the length of the features.
    This is the same kind of classifier without such a choice: features are brought to
    mean 0 and variance 1 by the training examples, and the optimum of the convex
    objective is found by L-BFGS. No crops are drawn.

    Args:
        train_features: float32[N, features].
        train_labels: int32[N], of at least two classes.
        test_features: float32[test examples, features].
        test_labels: int32[test examples].
        strength: C of scikit-learn: the sum of the losses is weighed by it against half
            the squared weights.

    Returns:
        The share of the test examples that are given their class.
    """
    # Together they take seconds to import.
    import threadpoolctl
    from sklearn import exceptions, linear_model

    mean = train_features.mean(0, dtype=np.float64)
    deviation = train_features.std(0, dtype=np.float64)
    # A feature that never changes says nothing.
    scale = np.where(deviation > 1e-6, 1.0 / np.maximum(deviation, 1e-6), 0.0)

    def standardized(features):
        return (features - mean) * scale

    classifier = linear_model.LogisticRegression(C=strength, max_iter=_MAX_ITERATIONS)
    # One thread, so that sums do not depend on how many there are.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        # If the classes are separable, the optimum is far and the labels settled.
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        classifier.fit(standardized(train_features), train_labels)
        predictions = classifier.predict(standardized(test_features))
    return float(np.mean(predictions == test_labels))
