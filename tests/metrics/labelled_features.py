"""Features of a few small classes."""

import numpy as np


def images(seed=0):
    """Classes of 1 to 9 images, somewhat apart."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(9), np.arange(1, 10))
    centers = rng.normal(size=(9, 6))
    features = centers[labels] + rng.normal(size=(len(labels), 6))
    order = rng.permutation(len(labels))
    return features[order].astype(np.float32), labels[order] * 10
