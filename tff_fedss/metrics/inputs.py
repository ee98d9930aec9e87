"""Checks of features and labels, and of what they allow to measure."""

import numpy as np


def finite(features: np.ndarray) -> np.ndarray:
    """Returns the features, [images, d]; a ValueError if one is not finite."""
    features = np.asarray(features)
    if features.ndim != 2 or not np.isfinite(features).all():
        raise ValueError(f"features must be finite, [images, d]: {features.shape}.")
    return features


def labels_of(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the labels; a ValueError if there is not one for each image."""
    labels = np.asarray(labels)
    if labels.shape != (len(features),):
        raise ValueError(f"found {len(features)} images and labels {labels.shape}.")
    return labels


def classes(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts the images of each class.

    Args:
        features: [images, d].
        labels: [images], integers.

    Returns:
        The images' classes, int64[images], numbered from 0 on, and the classes' sizes.

    Raises:
        ValueError: If no class has two images, or all images are of one.
    """
    labels = labels_of(features, labels)
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        raise ValueError("needs two classes, and one with two images or more.")
    return class_of, sizes
