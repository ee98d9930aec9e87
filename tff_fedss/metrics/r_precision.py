"""R-precision: the share of a query's R nearest images that have its class.

R is the number of other images of that class. After Musgrave et al., "A Metric Learning
Reality Check" (ECCV 2020), Section 3: unlike MAP@10 it can be 1 for every query,
however small its class.
"""

from typing import NamedTuple

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
    _, sums, num_queries = _search(features, labels, 0)
    return float(sums[0] / num_queries)


class RetrievalScores(NamedTuple):
    """How well images of a class find each other; all in [0, 1].

    All but `map_at_r` are means over the images whose class has several.

    Attributes:
        map_at_r: See `metrics.map_at_r`.
        r_precision: See `r_precision`.
        map_at_own_r: MAP@R of Musgrave et al. (Section 3), where R is the number of
            other images of a query's class.
        recall_at_1: The share of queries whose nearest image has their label.
        recall_at_r: The share of queries that find one among the first R.
    """

    map_at_r: float
    r_precision: float
    map_at_own_r: float
    recall_at_1: float
    recall_at_r: float


def retrieval_scores(
    features: np.ndarray, labels: np.ndarray, r: int = 10
) -> RetrievalScores:
    """Computes all scores by one search; those of other functions to the bit.

    Args:
        features: [images, d] of a floating type, of any lengths.
        labels: [images], integers.
        r: R of MAP@R and of the recall, positive.

    Raises:
        ValueError: As of `map_at_r` and `r_precision`.
    """
    average_precision, sums, num_queries = _search(features, labels, r)
    means = (sums / num_queries).tolist()
    return RetrievalScores(float(np.mean(average_precision)), *means)


def _search(
    features: np.ndarray, labels: np.ndarray, r: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Searches for all queries.

    Returns:
        Each query's average precision at R, none if R is 0; the sums over queries of
        R-precision, MAP at their own R, and recall at 1 and R; and their number.
    """
    class_of, sizes = inputs.classes(features, labels)
    others = sizes[class_of] - 1
    # Queries of about the same R together, and few different numbers to search for.
    groups = np.where(others, 2 ** np.ceil(np.log2(np.maximum(others, 1))), 0)
    queries = np.argsort(others, kind="stable")
    average_precision = np.zeros(len(class_of) if r else 0)
    totals = np.zeros(4)
    for group in np.unique(groups if r else groups[others > 0]).astype(int):
        block = queries[groups[queries] == group]
        num_found = max(r, others[block].max())
        num_parts = -(-len(block) * (group + 1024) // _BLOCK_NUMBERS)
        for part in np.array_split(block, num_parts):
            neighbors = nearest_images(features, int(num_found), part)
            is_relevant = class_of[neighbors] == class_of[part, np.newaxis]
            if r:
                average_precision[part] = precision_of_ranks(is_relevant[:, :r])
            own = np.maximum(others[part], 1)
            counted = is_relevant & (np.arange(num_found) < others[part, np.newaxis])
            precisions = precision_of_ranks(counted) * num_found / own
            totals += [
                np.sum(counted.sum(1) / own),
                np.sum(precisions),
                np.sum(is_relevant[:, 0]),
                np.sum(is_relevant[:, : max(r, 1)].any(1)),
            ]
    return average_precision, totals, np.count_nonzero(others)
