"""ResNet-50, the encoder of MoCo.

He et al., "Deep Residual Learning for Image Recognition" (2016), Table 1, in the
variant that torchvision and MoCo use: where a block halves the image, its 3x3
convolution does.
"""

import functools
import itertools

import tensorflow as tf

from tff_fedss.models.group_normalization import GroupNormalization
from tff_fedss.models.layers import LayerNames

_BLOCKS = (3, 4, 6, 3)
_WIDTH = 64
_EXPANSION = 4
_GROUPS = 32

_NORMALIZATIONS = {
    "batch": functools.partial(
        tf.keras.layers.BatchNormalization, momentum=0.9, epsilon=1e-5
    ),
    "group": functools.partial(GroupNormalization, _GROUPS, epsilon=1e-5),
}


def resnet50(
    image_shape: tuple[int, int, int],
    *,
    normalization: str = "batch",
    seed: int = 0,
) -> tf.keras.Model:
    """Builds ResNet-50 up to its average pooling.

    Args:
        image_shape: (height, width, channels), of at least 32 pixels.
        normalization: "batch", as in the paper, or "group": GroupNorm with 32 groups
            (Wu and He, 2018), which knows nothing of the other images of a batch.
        seed: Of the initial weights: same seed, same weights.

    Returns:
        A Keras model from images [examples, height, width, channels] with values in
        0..255 to float32[examples, 2048].
    """
    layers = _Layers(normalization, seed)
    images = tf.keras.Input(image_shape, name="images")
    x = tf.keras.layers.Rescaling(1.0 / 127.5, offset=-1.0, name="scaled")(images)
    x = layers.relu(layers.normalized(layers.convolution(x, _WIDTH, 7, 2)))
    x = tf.keras.layers.MaxPooling2D(3, 2, padding="same", name="pool")(x)
    for stage, num_blocks in enumerate(_BLOCKS):
        for block in range(num_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _bottleneck(layers, x, _WIDTH * 2**stage, stride)
    x = tf.keras.layers.GlobalAveragePooling2D(name="features")(x)
    return tf.keras.Model(images, x, name=f"resnet50_{normalization}")


def _bottleneck(layers: "_Layers", x: tf.Tensor, width: int, stride: int) -> tf.Tensor:
    width_out = _EXPANSION * width
    shortcut = x
    if stride != 1 or x.shape[-1] != width_out:
        shortcut = layers.normalized(layers.convolution(x, width_out, 1, stride))
    y = layers.relu(layers.normalized(layers.convolution(x, width, 1)))
    y = layers.relu(layers.normalized(layers.convolution(y, width, 3, stride)))
    y = layers.normalized(layers.convolution(y, width_out, 1))
    return layers.relu(layers.add(y, shortcut))


class _Layers:
    """Makes layers, with fixed names and initial values that follow from one seed."""

    def __init__(self, normalization: str, seed: int):
        self._normalization = _NORMALIZATIONS[normalization]
        self._seeds = itertools.count(seed * 1000)
        self._names = LayerNames()

    def convolution(
        self, x: tf.Tensor, width: int, size: int, stride: int = 1
    ) -> tf.Tensor:
        return tf.keras.layers.Conv2D(
            width,
            size,
            stride,
            padding="same",
            use_bias=False,
            # He et al., "Delving Deep into Rectifiers", by the outputs.
            kernel_initializer=tf.keras.initializers.VarianceScaling(
                2.0, "fan_out", "untruncated_normal", seed=next(self._seeds)
            ),
            name=self._names("conv"),
        )(x)

    def normalized(self, x: tf.Tensor) -> tf.Tensor:
        return self._normalization(name=self._names("norm"))(x)

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        return tf.keras.layers.ReLU(name=self._names("relu"))(x)

    def add(self, x: tf.Tensor, shortcut: tf.Tensor) -> tf.Tensor:
        return tf.keras.layers.Add(name=self._names("add"))([x, shortcut])
