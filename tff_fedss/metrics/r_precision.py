"""R-precision: the share of a query's R nearest images that have its class.

R is the number of other images of that class. After Musgrave et al., "A Metric Learning
Reality Check" (ECCV 2020), Section 3: unlike MAP@10 it can be 1 for every query,
however small its class.
"""

import numpy as np

from tff_fedss.metrics import inputs
from tff_fedss.metrics.map_at_r import precision_of_ranks
from tff_fedss.metrics.nearest import nearest_images

# Of the matrix of nearness that a block of queries has, in numbers.
_BLOCK_NUMBERS = 2**22


def r_precision(features: np.ndarray, labels: np.ndarray) -> float:
    """Computes the mean R-precision over the images whose class has several.

    The search is that of `nearest_images`. Images that are alone in their class are
    found by others, but are no queries.

    Args:
        features: [images, d] of a floating type, of any lengths.
        labels: [images], integers.

    Returns:
        The mean share of the R nearest images that have the query's label, in [0, 1].

    Raises:
        ValueError: If no class has two images or all images are of one, a feature is
            not finite, or an argument has the wrong shape.
    """
    _, result = _search(features, labels, 0)
    return result


def map_and_r_precision(
    features: np.ndarray, labels: np.ndarray, r: int = 10
) -> tuple[float, float]:
    """Computes `map_at_r` and `r_precision`, to the bit, by one search for both.

    Args:
        features: [images, d] of a floating type, of any lengths.
        labels: [images], integers.
        r: R of MAP@R, positive.

    Returns:
        MAP@R and R-precision.

    Raises:
        ValueError: As of both.
    """
    average_precision, result = _search(features, labels, r)
    return float(np.mean(average_precision)), result


def _search(
    features: np.ndarray, labels: np.ndarray, r: int
) -> tuple[np.ndarray, float]:
    """Returns each query's average precision at R, none if R is 0, and R-precision."""
    class_of, sizes = inputs.classes(features, labels)
    others = sizes[class_of] - 1
    # Queries of about the same R together, and few different numbers to search for.
    groups = np.where(others, 2 ** np.ceil(np.log2(np.maximum(others, 1))), 0)
    queries = np.argsort(others, kind="stable")
    average_precision = np.zeros(len(class_of) if r else 0)
    total = 0.0
    for group in np.unique(groups if r else groups[others > 0]).astype(int):
        block = queries[groups[queries] == group]
        num_found = max(r, others[block].max())
        num_parts = -(-len(block) * (group + 1024) // _BLOCK_NUMBERS)
        for part in np.array_split(block, num_parts):
            neighbors = nearest_images(features, int(num_found), part)
            is_relevant = class_of[neighbors] == class_of[part, np.newaxis]
            if r:
                average_precision[part] = precision_of_ranks(is_relevant[:, :r])
            counted = np.arange(num_found) < others[part, np.newaxis]
            shares = (is_relevant & counted).sum(1) / np.maximum(others[part], 1)
            total += np.sum(shares)
    return average_precision, float(total / np.count_nonzero(others))
