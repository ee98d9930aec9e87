"""Mean cosine and effective rank of features: whether they have collapsed."""

import numpy as np

from tff_fedss.vectors import unit


class MeanCosine:
    """The mean cosine between the features of two different images.

    Features have collapsed when all images get the same one: the mean is 1. Steps that
    are too long leave a run from scratch in that state, with a loss that falls (the
    classifier learns how frequent classes are) and a metric at chance. Of centred
    features of many classes the mean is about 0.
    """

    def __init__(self):
        self._sum: np.ndarray | float = 0.0
        self._count = 0

    def add(self, features: np.ndarray) -> None:
        """Adds images.

        Args:
            features: float32[images, d].
        """
        self._sum = self._sum + unit(features).sum(0)
        self._count += len(features)

    @property
    def value(self) -> float:
        """The mean over all pairs of different images; 1 for less than two images."""
        pairs = self._count * (self._count - 1)
        if not pairs:
            return 1.0
        # |sum of u|^2 is the sum of all cosines, those of images with themselves too.
        return float((np.sum(np.square(self._sum)) - self._count) / pairs)


def effective_rank(features: np.ndarray) -> float:
    """Returns how many directions features differ in (Roy and Vetterli, 2007).

    exp of the entropy of the shares of variance along the principal directions: d if
    they are equal, 1 if all features lie on a line, 0 if all are equal.

    Args:
        features: float32[images, d], at least one; their lengths do not matter.
    """
    units = unit(features)
    variances = np.linalg.eigvalsh(np.cov(units.T, ddof=0).reshape(units.shape[1], -1))
    variances = np.maximum(variances, 0.0)
    # Below rounding, there are no differences.
    if variances.sum() < 1e-12:
        return 0.0
    shares = variances[variances > 0] / variances.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))
