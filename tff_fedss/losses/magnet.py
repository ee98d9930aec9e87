"""The Magnet loss: examples near their own cluster, far from those of other classes.

Rippel et al., "Metric Learning with Adaptive Density Discrimination" (ICLR 2016), in
the stochastic approximation of a mini-batch: LEAP, Eq. 1.
"""

import tensorflow as tf

# Lower bound of the variance, which is 0 if all examples lie on their means.
_LEAST_VARIANCE = 1e-12
# Replaces log 0, whose gradients would not be finite.
_LOG_OF_NOTHING = -1e30


def magnet_loss(
    representations: tf.Tensor, cluster_classes: tf.Tensor, alpha: float = 1.0
) -> tf.Tensor:
    """Returns each example's loss in a mini-batch of M clusters (LEAP, Eq. 1).

    With d_m the squared distance of r to the mean mu_m of its cluster in the
    mini-batch, and v = 1 / (MD - 1) times the sum of all examples' d_m,

        loss(r) = {d_m / (2 v) + alpha + log sum exp(-|r - mu|^2 / (2 v))}_+,

    the sum being over the means mu of clusters of other classes. The text calls v
    "sigma hat" and divides by its double square; v has the dimension of a variance, so
    the exponent is 1 / (2 sigma^2) with sigma^2 = v. Eq. 1 prints -alpha in the
    exponent of the numerator, which is this +alpha outside of the logarithm.

    The gradient includes the means and the variance, which are functions of the
    representations.

    Args:
        representations: float32[M, D, d], r: D examples of each of M clusters; MD is
            at least 2.
        cluster_classes: int32[M], the class of each cluster.
        alpha: The desired gap, in units of v.

    Returns:
        float32[M, D]. The objective is its mean. Without a cluster of another class an
        example's loss is 0.
    """
    means = tf.reduce_mean(representations, 1)
    num_examples = tf.size(representations) // tf.shape(representations)[2]
    # [M, D, M]: of each example to each mean.
    offsets = representations[:, :, tf.newaxis] - means
    squares = tf.reduce_sum(tf.square(offsets), -1)
    own = tf.reduce_sum(tf.square(representations - means[:, tf.newaxis]), -1)
    variance = tf.reduce_sum(own) / tf.cast(num_examples - 1, own.dtype)
    scale = 0.5 / tf.maximum(variance, _LEAST_VARIANCE)
    is_other = tf.not_equal(cluster_classes[:, tf.newaxis], cluster_classes)
    others = tf.reduce_logsumexp(
        tf.where(is_other[:, tf.newaxis], -scale * squares, _LOG_OF_NOTHING), -1
    )
    return tf.nn.relu(scale * own + alpha + others)
