"""R-precision: of as many images as a query's class has others, how many are of it.

After Musgrave et al., "A Metric Learning Reality Check" (ECCV 2020), Section 3: unlike
MAP@10 it has 1 within reach of every query, however small its class.
"""

import numpy as np

from tff_fedss.metrics.nearest import nearest_images

# Of the matrix of nearness that a block of queries has, in numbers.
_BLOCK_NUMBERS = 2**22


def r_precision(features: np.ndarray, labels: np.ndarray) -> float:
    """Computes the mean R-precision over the images whose class has several.

    R is the number of other images of the query's class. The search is that of
    `nearest_images`. Images that are alone in their class are found, but not asked.

    Args:
        features: [images, d] of a floating type, of any lengths.
        labels: [images], integers.

    Returns:
        The mean share of the R nearest images that have the query's label, in [0, 1].

    Raises:
        ValueError: If no class has two images or all images are of one, a feature is
            not finite, or an argument has the wrong shape.
    """
    features, labels = np.asarray(features), np.asarray(labels)
    if labels.shape != features.shape[:1]:
        raise ValueError(
            "features must be [images, d] and labels [images], "
            f"found {features.shape} and {labels.shape}."
        )
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        raise ValueError("needs two classes, and one with two images or more.")
    others = sizes[class_of] - 1
    queries = np.flatnonzero(others)
    # Queries of about the same R together, and few different R to search with.
    queries = queries[np.argsort(others[queries], kind="stable")]
    searched = np.minimum(2 ** np.ceil(np.log2(others[queries])), len(labels) - 1)
    total = 0.0
    for r in np.unique(searched).astype(int):
        block = queries[searched == r]
        num_parts = -(-len(block) * (r + 1024) // _BLOCK_NUMBERS)
        for part in np.array_split(block, num_parts):
            neighbors = nearest_images(features, int(r), part)
            is_relevant = labels[neighbors] == labels[part, np.newaxis]
            counted = np.arange(r) < others[part, np.newaxis]
            total += np.sum((is_relevant & counted).sum(1) / others[part])
    return float(total / len(queries))
