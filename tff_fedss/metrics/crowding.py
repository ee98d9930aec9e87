"""How many classes are in each other's way: what FedAwS' regularizer has to do."""

import numpy as np

# Enough for a mean that is read by people, however large n is.
_MOST_CLASSES = 1024


def neighbors_within(classifier: np.ndarray, margin: float) -> float:
    """Counts the other rows of W that a row has within the margin; a mean.

    It is the number of terms above zero in the inner sum of
    `losses.spreadout_loss`. At 0 FedAwS' regularizer does nothing.

    Args:
        classifier: float[n, d], W, of any lengths; a row of zeros has no direction, and
            stays at distance 1 from the others.
        margin: nu, a Euclidean distance on the unit sphere.

    Returns:
        The mean over all classes or, of more than 1,024, over 1,024 of them, evenly
        spaced.
    """
    rows = np.asarray(classifier, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    chosen = np.unique(
        np.linspace(0, len(units) - 1, min(len(units), _MOST_CLASSES)).astype(int)
    )
    count = 0
    for i in chosen:
        squares = np.sum((units - units[i]) ** 2, axis=1)
        squares[i] = np.inf
        count += int(np.sum(squares < margin**2))
    return count / len(chosen)
