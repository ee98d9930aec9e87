"""MAP@R: how well images of a class find each other (FedSS, Eq. 9 and Section 4.3).

Every image is a query against all others. Distances are Euclidean, between features of
length 1. After Musgrave et al., "A Metric Learning Reality Check" (ECCV 2020), but with
one R for all queries, as in FedSS, and not the number of each query's relevant images.
"""

import numpy as np
import tensorflow as tf

# Unit vectors are rounded to multiples of 2^-25, about the resolution of float32. All
# products and sums are then whole numbers below 2^53, which float64 adds without error
# in any order: copies of a vector are equally far, and neither blocks nor device can
# change a ranking. Cosines in float32 would confuse distances below 3e-4.
_ONE = 2.0**25


def map_at_r(
    features: np.ndarray, labels: np.ndarray, r: int = 10, block_size: int = 1024
) -> float:
    """Computes the mean average precision at R over all queries (Eq. 9).

    The search is exact, among unit vectors rounded to 2^-25. Equally distant images,
    such as copies at any lengths, rank by index, the smallest first. The query itself
    is left out; a copy of it at another index is not. A zero vector has no direction:
    it is sqrt(2) away from everything, as if its cosines were 0.

    On 2 busy cores, 60,502 features of 64 numbers (the size of SOP's test split) took
    44 seconds, and 250 MB beside the features.

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
        ValueError: If there are not more than R images, a feature is not finite, or an
            argument has the wrong shape or is out of range.
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
    features, labels = np.asarray(features), np.asarray(labels)
    _check(features, labels, r, block_size)
    queries, gallery = _fixed_point(features)
    result = np.empty(len(features))
    for start in range(0, len(features), block_size):
        block = slice(start, start + block_size)
        neighbors = _nearest(
            queries[block], gallery, tf.constant(start), r, tf.constant(block_size)
        )
        is_relevant = labels[neighbors.numpy()] == labels[block, np.newaxis]
        precision = np.cumsum(is_relevant, 1) / np.arange(1, r + 1)
        result[block] = np.mean(precision * is_relevant, 1)
    return result


def _check(features: np.ndarray, labels: np.ndarray, r: int, block_size: int) -> None:
    """Raises the errors that `map_at_r` documents."""
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            "features must be [images, d] and labels [images], "
            f"found {features.shape} and {labels.shape}."
        )
    if r < 1 or block_size < 1:
        raise ValueError(
            f"r and block_size must be positive, found {r} and {block_size}."
        )
    if len(features) <= r:
        raise ValueError(
            f"Retrieving R = {r} other images takes more than {r} images, "
            f"found {len(features)}."
        )
    if not np.isfinite(features).all():
        raise ValueError("features must be finite: found infinity or NaN.")


def _fixed_point(features: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    """Turns features into two factors whose product ranks images by nearness.

    |q - p|^2 = |q|^2 - (2 q.p - |p|^2). The bracket is the product of (2 q, 1) and
    (p, -|p|^2), and |q|^2 is the same for all images p that a query q ranks. Rounding
    leaves |p|^2 next to 1, so it is not left out: close vectors would rank by it.

    Args:
        features: [images, d], finite.

    Returns:
        Queries and gallery, float64[images, d + 1] of whole numbers.
    """
    features = features.astype(np.float64)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    is_zero = lengths == 0.0
    points = np.round(_ONE * features / np.where(is_zero, 1.0, lengths))
    squares = np.sum(points**2, 1, keepdims=True)
    # As an image, a zero vector counts as one of length 1 with cosine 0; as a query,
    # it finds all images equally far.
    queries = np.concatenate([2.0 * points, np.where(is_zero, 0.0, 1.0)], 1)
    gallery = np.concatenate([points, np.where(is_zero, -(_ONE**2), -squares)], 1)
    return tf.constant(queries), tf.constant(gallery)


@tf.function(reduce_retracing=True)
def _nearest(
    queries: tf.Tensor, gallery: tf.Tensor, first: tf.Tensor, r: int, block: tf.Tensor
) -> tf.Tensor:
    """Finds the R images that are nearest to each query.

    Args:
        queries: float64[queries, d + 1], a block of `_fixed_point`'s queries.
        gallery: float64[images, d + 1], all images; more than R.
        first: int32[], the index of the first query among the images.
        r: R.
        block: int32[], how many images to compare at once.

    Returns:
        int32[queries, R], indices into gallery from the nearest on.
    """
    num_queries = tf.shape(queries)[0]
    indices = first + tf.range(num_queries)[:, tf.newaxis]
    lowest = tf.constant(-np.inf, queries.dtype)
    best = tf.fill([num_queries, r], lowest)
    images = tf.zeros([num_queries, r], tf.int32)
    for start in tf.range(0, tf.shape(gallery)[0], block):
        # One block at a time: loops otherwise run ten iterations at once, in ten times
        # the memory.
        tf.autograph.experimental.set_loop_options(parallel_iterations=1)
        rows = gallery[start : start + block]
        nearness = tf.matmul(queries, rows, transpose_b=True)
        is_query = tf.equal(indices, start + tf.range(tf.shape(rows)[0]))
        nearness = tf.where(is_query, lowest, nearness)
        # top_k puts the first among equals first, and what is best so far stands in
        # front of this block, whose indices are larger.
        best, places = tf.math.top_k(tf.concat([best, nearness], 1), r)
        images = tf.where(
            places < r,
            tf.gather(images, tf.minimum(places, r - 1), batch_dims=1),
            start + places - r,
        )
    return images
