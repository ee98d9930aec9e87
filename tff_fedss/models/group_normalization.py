"""GroupNorm with a gradient of its own, for channels-last images."""

import math

import tensorflow as tf

from tff_fedss.models import placement


@tf.keras.utils.register_keras_serializable("tff_fedss")
class GroupNormalization(tf.keras.layers.GroupNormalization):
    """Keras's GroupNormalization, in fewer passes over the activations.

    The same function (Wu and He, "Group Normalization", 2018, Eq. 1-7), the same
    weights under the same names, the same arguments. Keras moves the groups to an axis
    of their own and lets TensorFlow differentiate that, which costs more than all the
    convolutions of a small network. Here the large tensors are read channel by channel,
    the sums over a group are taken from the small sums over its channels, and the
    gradient is written down:

        dx = a dy - (mean(gamma dy) + x^ mean(gamma dy x^)) / sigma,  a = gamma / sigma

    with means over a group and x^ = (x - mu) / sigma. The variance is that of the
    centred values, not a difference of moments, so that an image with a large mean
    loses nothing.

    That is for CPUs. A GPU is kept busy by few large operations, so there the layer is
    TensorFlow's batch normalization, of a transposed tensor in which each group of each
    example is a channel, and the gradient is that operation's own.

    Channels must be the last axis, and gamma and beta must be there.
    """

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates gamma and beta for inputs of [examples, ..., channels].

        Raises:
            ValueError: If the channels are not on the last axis, or do not divide into
                the groups.
        """
        if self.axis not in (-1, len(input_shape) - 1):
            raise ValueError(f"Channels must be the last axis, found {self.axis}.")
        super().build(input_shape)

    def as_keras(self) -> tf.keras.layers.Layer:
        """Returns Keras's own layer, which gives the same but for rounding."""
        return tf.keras.layers.GroupNormalization.from_config(self.get_config())

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalizes float32[examples, ..., channels], example by example."""
        by_device = (
            _by_batch_norm
            if placement.is_for_gpus() and inputs.shape[1:].is_fully_defined()
            else _group_normalize
        )
        outputs = by_device(
            inputs,
            tf.convert_to_tensor(self.gamma),
            tf.convert_to_tensor(self.beta),
            self.groups,
            self.epsilon,
        )
        outputs.set_shape(inputs.shape)
        return outputs


def _group_normalize(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, groups: int, epsilon: float
) -> tf.Tensor:
    channels = x.shape[-1]
    per_group = channels // groups
    # Sizes that are known leave nothing of them to be computed at each step.
    if x.shape[1:].is_fully_defined():
        x_shape = [-1, *x.shape[1:]]
        num_positions = math.prod(x.shape[1:-1])
        group_size = tf.constant(num_positions * per_group, x.dtype)
        if x.shape[0] is None:
            # Of a constant, TensorFlow would take the reciprocal: other last digits
            # than those of all runs before. (Of known batches it always did.)
            group_size = tf.compat.v1.placeholder_with_default(group_size, [])
    else:
        x_shape = tf.shape(x)
        num_positions = tf.reduce_prod(x_shape[1:-1])
        group_size = tf.cast(num_positions * per_group, x.dtype)

    def for_channels(values):
        """From a value for each group, [..., groups], to [..., 1, channels]."""
        values = tf.tile(values[..., tf.newaxis], [1] * values.shape.rank + [per_group])
        return tf.reshape(values, [*values.shape[:-3], -1, 1, channels])

    def group_sums(sums):
        """From sums over positions, [..., channels], to those over groups."""
        sums = tf.reshape(sums, [*sums.shape[:-2], -1, groups, per_group])
        return tf.reduce_sum(sums, -1)

    @tf.custom_gradient
    def normalize(x, gamma, beta):
        # [examples, positions, channels], as everything large below.
        x = tf.reshape(x, [-1, num_positions, channels])
        centred = x - for_channels(group_sums(tf.reduce_sum(x, 1)) / group_size)
        squares = group_sums(tf.reduce_sum(tf.square(centred), 1))
        inverse_sigma = tf.math.rsqrt(squares / group_size + epsilon)
        a = tf.reshape(gamma, [groups, per_group]) * inverse_sigma[..., tf.newaxis]
        a = tf.reshape(a, [-1, 1, channels])
        y = centred * a + beta

        def gradient(dy):
            dy = tf.reshape(dy, [-1, num_positions, channels])
            # Of dy, and of dy x^.
            sigmas = tf.tile(inverse_sigma[..., tf.newaxis], [1, 1, per_group])
            sums = tf.stack(
                [
                    tf.reduce_sum(dy, 1),
                    tf.reduce_sum(dy * centred, 1) * tf.reshape(sigmas, [-1, channels]),
                ]
            )
            means = group_sums(gamma * sums) / group_size
            scales = tf.stack([inverse_sigma, tf.square(inverse_sigma)])
            mean, slope = tf.unstack(for_channels(means * scales))
            dx = dy * a - (centred * slope + mean)
            dbeta, dgamma = tf.unstack(tf.reduce_sum(sums, 1))
            return tf.reshape(dx, x_shape), dgamma, dbeta

        return tf.reshape(y, x_shape), gradient

    return normalize(x, gamma, beta)


def _by_batch_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, groups: int, epsilon: float
) -> tf.Tensor:
    """The same in few operations: each group of each example is a channel."""
    channels, positions = x.shape[-1], math.prod(x.shape[1:-1])
    by_channel = tf.transpose(tf.reshape(x, [-1, positions, channels]), [0, 2, 1])
    by_group = tf.reshape(by_channel, [1, -1, channels // groups, positions])
    num_groups = tf.shape(by_group)[1:2]
    normalized = tf.raw_ops.FusedBatchNormV3(
        x=by_group,
        scale=tf.ones(num_groups),
        offset=tf.zeros(num_groups),
        mean=tf.zeros([0]),
        variance=tf.zeros([0]),
        epsilon=epsilon,
        data_format="NCHW",
    ).y
    by_channel = tf.reshape(normalized, [-1, channels, positions])
    y = tf.reshape(tf.transpose(by_channel, [0, 2, 1]), [-1, *x.shape[1:]])
    return y * gamma + beta
