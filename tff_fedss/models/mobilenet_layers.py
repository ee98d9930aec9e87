"""Layers of MobileNetV3 with explicit gradients: the same functions, faster.

Each computes the same as layers of Keras, which `as_keras` returns. The convolutions
have the weights of Keras's.
"""

import numpy as np
import tensorflow as tf

from tff_fedss.models import layers

# With more, the products of all pairs of positions cost more than they save.
_MOST_PAIRS = 3000


@tf.keras.utils.register_keras_serializable("tff_fedss")
class HardSwish(tf.keras.layers.Layer):
    """x ReLU6(x + 3) / 6 (Howard et al. 2019, 5.2), with an explicit gradient."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps float32[...] to float32[...]."""
        return _hard_swish(inputs)

    def as_keras(self) -> tf.keras.Model:
        """Returns the same in Keras's own layers."""
        inputs = tf.keras.Input(self.input_shape[1:])
        x = tf.keras.layers.Rescaling(1.0, offset=3.0)(inputs)
        x = tf.keras.layers.Rescaling(1 / 6)(tf.keras.layers.ReLU(6.0)(x))
        outputs = tf.keras.layers.Multiply()([inputs, x])
        return tf.keras.Model(inputs, outputs, name=self.name)


@tf.custom_gradient
def _hard_swish(x: tf.Tensor):
    clipped = tf.nn.relu6(x + 3.0)

    def gradient(dy):
        # x + 3 + x within the bend, and 0 or 6 outside of it.
        slope = clipped + tf.raw_ops.Relu6Grad(gradients=x, features=clipped)
        return dy * (slope * (1 / 6))

    return x * (clipped * (1 / 6)), gradient


@tf.keras.utils.register_keras_serializable("tff_fedss")
class Squeeze(tf.keras.layers.Layer):
    """A layer that returns its input and the means over all positions.

    It is for squeeze-and-excite: the gradient of the means is added to that of the
    input without first being expanded over the positions.
    """

    def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Maps float32[examples, h, w, c] to itself and float32[examples, 1, 1, c]."""
        return _squeeze(inputs)

    def as_keras(self) -> tf.keras.Model:
        """Returns the same in Keras's own layers."""
        inputs = tf.keras.Input(self.input_shape[1:])
        means = tf.keras.layers.GlobalAveragePooling2D(keepdims=True)(inputs)
        same = tf.keras.layers.Activation("linear")(inputs)
        return tf.keras.Model(inputs, [same, means], name=self.name)


@tf.custom_gradient
def _squeeze(x: tf.Tensor):
    num_positions = x.shape[1] * x.shape[2]

    def gradient(dx, dmeans):
        return dx + dmeans * (1 / num_positions)

    return (tf.identity(x), tf.reduce_mean(x, [1, 2], keepdims=True)), gradient


@tf.keras.utils.register_keras_serializable("tff_fedss")
class PointwiseConv2D(tf.keras.layers.Conv2D):
    """Keras's with a 1x1 kernel and no strides, as a matrix product on CPUs.

    There the product and its two gradients take half as long as the convolutions with
    many positions, and a fifth with one (squeeze-and-excite).
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps float32[examples, h, w, c] to float32[examples, h, w, filters]."""
        if layers.is_for_gpus():
            return super().call(inputs)
        kernel = tf.reshape(self.kernel, self.kernel.shape[2:])
        outputs = tf.matmul(tf.reshape(inputs, [-1, inputs.shape[-1]]), kernel)
        if self.use_bias:
            outputs = tf.nn.bias_add(outputs, self.bias)
        outputs = tf.reshape(outputs, [-1, *inputs.shape[1:-1], self.filters])
        return self.activation(outputs)

    def as_keras(self) -> tf.keras.layers.Layer:
        """Returns Keras's own layer."""
        return tf.keras.layers.Conv2D.from_config(self.get_config())


@tf.keras.utils.register_keras_serializable("tff_fedss")
class DepthwiseConv2D(tf.keras.layers.DepthwiseConv2D):
    """Keras's, with a faster gradient of the kernel for small images on CPUs.

    TensorFlow takes 4 ms for the gradient of a 5x5 kernel on 32 images of 3x3 (576
    channels), ten times as long as for the convolution. Here it is two matrix products
    for each channel: the inputs with the gradients at all positions, summed over the
    examples, and the result with the pairs of positions of each element of the kernel.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps float32[examples, h, w, c] to float32[examples, h', w', c]."""
        height, width = inputs.shape[1:3]
        outputs = self.compute_output_shape(inputs.shape)[1:3]
        is_plain = (
            self.padding == "same"
            and self.data_format == "channels_last"
            and self.depth_multiplier == 1
            and not self.use_bias
            and tuple(self.dilation_rate) == (1, 1)
            and inputs.dtype == tf.float32
        )
        if (
            not is_plain
            or layers.is_for_gpus()
            or None in (height, width)
            or height * width * outputs[0] * outputs[1] > _MOST_PAIRS
        ):
            return super().call(inputs)
        return _depthwise(
            inputs, tf.convert_to_tensor(self.depthwise_kernel), self.strides
        )

    def as_keras(self) -> tf.keras.layers.Layer:
        """Returns Keras's own layer."""
        return tf.keras.layers.DepthwiseConv2D.from_config(self.get_config())


@tf.autograph.experimental.do_not_convert
def _depthwise(x: tf.Tensor, kernel: tf.Tensor, strides: tuple[int, int]) -> tf.Tensor:
    strides = [1, *strides, 1]

    @tf.custom_gradient
    def convolve(x, kernel):
        y = tf.nn.depthwise_conv2d(x, kernel, strides, "SAME")

        def gradient(dy):
            dx = tf.nn.depthwise_conv2d_backprop_input(
                tf.shape(x), kernel, dy, strides, "SAME"
            )
            return dx, _kernel_gradient(x, dy, kernel.shape, strides)

        return y, gradient

    return convolve(x, kernel)


def _kernel_gradient(
    x: tf.Tensor, dy: tf.Tensor, kernel_shape: tf.TensorShape, strides: list[int]
) -> tf.Tensor:
    """Returns the gradient of a depthwise kernel, [h, w, channels, 1]."""
    channels = x.shape[3]
    inputs = tf.transpose(tf.reshape(x, [-1, x.shape[1] * x.shape[2], channels]))
    outputs = tf.transpose(
        tf.reshape(dy, [-1, dy.shape[1] * dy.shape[2], channels]), [2, 0, 1]
    )
    # [channels, positions in, positions out], summed over the examples.
    pairs = tf.reshape(tf.matmul(inputs, outputs), [channels, -1])
    meet = np.einsum(
        "iok,jpl->ijopkl",
        *(
            _meet(x.shape[k], dy.shape[k], kernel_shape[k - 1], strides[k])
            for k in (1, 2)
        ),
    ).reshape(pairs.shape[1], -1)
    return tf.reshape(tf.matmul(meet, pairs, True, True), kernel_shape)


def _meet(inputs: int, outputs: int, kernel: int, stride: int) -> np.ndarray:
    """Returns which input and output share an element of the kernel, along one side.

    Returns:
        float32[inputs, outputs, kernel] of 0 and 1, with TensorFlow's "SAME" padding.
    """
    before = max((outputs - 1) * stride + kernel - inputs, 0) // 2
    i, o, k = np.ogrid[:inputs, :outputs, :kernel]
    return (i == o * stride + k - before).astype(np.float32)
