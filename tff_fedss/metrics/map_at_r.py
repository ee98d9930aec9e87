"""MAP@R: how well images of a class find each other (FedSS, Eq. 9 and Section 4.3).

Every image is a query against all others. Distances are Euclidean, between features of
length 1. After Musgrave et al., "A Metric Learning Reality Check" (ECCV 2020), but with
one R for all queries, as in FedSS, and not the number of each query's relevant images.
"""

import numpy as np

from tff_fedss.metrics import inputs
from tff_fedss.metrics.nearest import nearest_images


def map_at_r(
    features: np.ndarray, labels: np.ndarray, r: int = 10, block_size: int = 1024
) -> float:
    """Computes the mean average precision at R over all queries (Eq. 9).

    The search is exact, see `nearest_images`, and so is what it costs. The query itself
    is left out; a copy of it at another index is not.

    Args:
        features: [images, d] of a floating type, of any lengths.
        labels: [images], integers.
        r: R, the number of images to retrieve for each query. Eq. 9 divides by R even
            if fewer than R images of the query's class exist; such a query cannot reach
            1, and one whose class has no other image counts as 0.
        block_size: How many queries to compare with how many images at once. Memory
            is in proportion to its square; the result does not depend on it.

    Returns:
        The mean of P(1..R) over ranks and queries, in [0, 1].

    Raises:
        ValueError: If there are not more than R images, a feature is not finite, or
            there is not one label for each image.
    """
    return float(np.mean(average_precision_at_r(features, labels, r, block_size)))


def average_precision_at_r(
    features: np.ndarray, labels: np.ndarray, r: int = 10, block_size: int = 1024
) -> np.ndarray:
    """Computes the term of each query in `map_at_r`.

    Args:
        features: As in `map_at_r`.
        labels: As in `map_at_r`.
        r: As in `map_at_r`.
        block_size: As in `map_at_r`.

    Returns:
        float64[images]: for each query 1/R sum_{i <= R} P(i), where P(i) is the
        precision of the first i retrievals if the i-th has the query's label, else 0.

    Raises:
        ValueError: As in `map_at_r`.
    """
    labels = inputs.labels_of(features, labels)
    neighbors = nearest_images(features, r, block_size=block_size)
    return precision_of_ranks(labels[neighbors] == labels[:, np.newaxis])


def precision_of_ranks(is_relevant: np.ndarray) -> np.ndarray:
    """Computes the term of each query in `map_at_r` from what it has retrieved.

    Args:
        is_relevant: bool[queries, R], from the nearest on.

    Returns:
        float64[queries], see `average_precision_at_r`.
    """
    ranks = np.arange(1, is_relevant.shape[1] + 1)
    return np.mean(np.cumsum(is_relevant, 1) / ranks * is_relevant, 1)
