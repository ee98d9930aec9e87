"""Top-1 prediction among very many classes."""

import tensorflow as tf

from tff_fedss import models


@tf.function(reduce_retracing=True)
def nearest_classes(
    features: tf.Tensor, classifier: tf.Tensor, class_block: int = 16384
) -> tf.Tensor:
    """Returns the class with the largest cosine, for each feature vector.

    The classes are taken block by block, so no [examples, n] matrix of logits exists.

    Args:
        features: float32[examples, d].
        classifier: float32[n, d], W.
        class_block: How many classes to score at once.

    Returns:
        int32[examples]; the smallest class among equals.
    """
    best = tf.fill([tf.shape(features)[0]], features.dtype.min)
    classes = tf.zeros([tf.shape(features)[0]], tf.int32)
    for start in tf.range(0, tf.shape(classifier)[0], class_block):
        cosines = models.cosine_logits(
            features, classifier[start : start + class_block], scale=1.0
        )
        block_best = tf.reduce_max(cosines, 1)
        is_better = block_best > best
        classes = tf.where(is_better, start + tf.argmax(cosines, 1, tf.int32), classes)
        best = tf.where(is_better, block_best, best)
    return classes
