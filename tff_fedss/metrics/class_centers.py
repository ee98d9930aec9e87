"""Classification by the nearest centre of a class, without a classifier to be trained.

The classes may be any: it is how an encoder is used on classes that it has not seen
(Snell et al., "Prototypical Networks for Few-shot Learning", NeurIPS 2017, but with
cosines, as the classifier of FedSS has).
"""

import numpy as np

_ROWS = 4096


def center_accuracy(features: np.ndarray, labels: np.ndarray) -> float:
    """Computes how many images lie nearest to the centre of their own class.

    A centre is the mean of its class's unit vectors, and the nearest is that of the
    highest cosine. An image does not take part in its own class's centre (leave one
    out), so that nothing is known of it. Images that are alone in their class are not
    asked, as their class would have no centre without them; their class is there for
    the others to be mistaken for. Of equally near centres the own one counts.

    Args:
        features: [images, d] of a floating type, of any lengths; zero vectors have
            cosine 0 with everything.
        labels: [images], integers.

    Returns:
        The share of the images, in [0, 1].

    Raises:
        ValueError: If no class has two images or all images are of one, a feature is
            not finite, or an argument has the wrong shape.
    """
    features, labels = np.asarray(features, np.float64), np.asarray(labels)
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            "features must be [images, d] and labels [images], "
            f"found {features.shape} and {labels.shape}."
        )
    if not np.isfinite(features).all():
        raise ValueError("features must be finite: found infinity or NaN.")
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        raise ValueError("needs two classes, and one with two images or more.")
    units = _unit(features)
    sums = np.zeros([len(sizes), features.shape[1]])
    np.add.at(sums, class_of, units)
    centers = _unit(sums)
    asked = np.flatnonzero(sizes[class_of] > 1)
    right = 0
    for start in range(0, len(asked), _ROWS):
        rows = asked[start : start + _ROWS]
        own = class_of[rows]
        cosines = units[rows] @ centers.T
        without = _unit(sums[own] - units[rows])
        of_own = np.sum(units[rows] * without, 1)
        cosines[np.arange(len(rows)), own] = -np.inf
        right += int(np.sum(of_own >= cosines.max(1)))
    return right / len(asked)


def _unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)
