"""Batch normalization over parts of a batch, as several GPUs would each do it."""

import tensorflow as tf


class SplitBatchNormalization(tf.keras.layers.BatchNormalization):
    """BatchNorm whose statistics in training are those of equal parts of the batch.

    MoCo (He et al., 2020, section 3.3) trains on 8 GPUs, where each normalizes its own
    images, and shuffles the keys' images between them; its authors' code for one GPU
    (SplitBatchNorm) splits the batch instead. Without either, the images of a batch
    tell the encoders which key belongs to which query. Consecutive images make a part;
    running means move by the mean over the parts, once. At inference nothing differs
    from BatchNorm.

    Args:
        num_splits: The number of parts; it divides the number of images of a batch.
        **kwargs: For Keras; the axis is the last one.
    """

    def __init__(self, num_splits: int, **kwargs):
        super().__init__(**kwargs)
        self._num_splits = num_splits

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Normalizes float32[examples, ..., channels]."""
        if not training or not self.trainable:
            return super().call(inputs, training=False)
        shape = tf.shape(inputs)
        tf.debugging.assert_equal(
            shape[0] % self._num_splits,
            0,
            f"a batch is no multiple of the {self._num_splits} parts of its BatchNorm",
        )
        parts = tf.reshape(
            inputs,
            tf.concat([[self._num_splits, shape[0] // self._num_splits], shape[1:]], 0),
        )
        axes = list(range(1, inputs.shape.rank))
        mean, variance = tf.nn.moments(parts, axes, keepdims=True)
        scale = self.gamma * tf.math.rsqrt(variance + self.epsilon)
        outputs = tf.reshape(parts * scale + (self.beta - mean * scale), shape)
        # The running variance is the unbiased one, as Keras' and PyTorch's is.
        count = tf.cast(tf.size(parts) / tf.size(mean), variance.dtype)
        for moving, own in (
            (self.moving_mean, mean),
            (self.moving_variance, variance * count / tf.maximum(count - 1.0, 1.0)),
        ):
            target = tf.reduce_mean(tf.reshape(own, [self._num_splits, -1]), 0)
            moving.assign(moving * self.momentum + target * (1.0 - self.momentum))
        return tf.ensure_shape(outputs, inputs.shape)

    def get_config(self) -> dict:
        """Returns what the layer is built from."""
        return {**super().get_config(), "num_splits": self._num_splits}
