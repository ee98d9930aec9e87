"""Precision among the first ranks, for examples with several labels."""

from collections.abc import Sequence

import numpy as np


def precision_at_k(ranked: np.ndarray, labels: Sequence[np.ndarray], k: int) -> float:
    """Returns the share of an example's labels among its k best classes, in the mean.

    Args:
        ranked: int[examples, at least k], classes, the best first. With fewer columns
            (fewer classes), ranks beyond them count as wrong.
        labels: For each example, its labels, each once.
        k: How many ranks count.

    Returns:
        mean over examples of |first k ranks in labels| / k.
    """
    hits = sum(
        np.isin(best, own).sum()
        for best, own in zip(ranked[:, :k], labels, strict=True)
    )
    return float(hits) / (k * len(ranked))
