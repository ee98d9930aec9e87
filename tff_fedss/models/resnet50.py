"""ResNet-50, the encoder of MoCo.

He et al., "Deep Residual Learning for Image Recognition" (2016), Table 1, in the
variant that torchvision and MoCo use: where a block halves the image, its 3x3
convolution does.
"""

import functools
import itertools
from collections.abc import Callable, Iterator

import tensorflow as tf

from tff_fedss.models.group_normalization import GroupNormalization

_BLOCKS = (3, 4, 6, 3)
_WIDTH = 64
_EXPANSION = 4
_GROUPS = 32

_Layer = Callable[[tf.Tensor], tf.Tensor]

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
    normalize = _NORMALIZATIONS[normalization]
    seeds = itertools.count(seed * 1000)
    images = tf.keras.Input(image_shape)
    x = tf.keras.layers.Rescaling(1.0 / 127.5, offset=-1.0)(images)
    x = _convolution(_WIDTH, 7, 2, seeds)(x)
    x = tf.keras.layers.ReLU()(normalize()(x))
    x = tf.keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, num_blocks in enumerate(_BLOCKS):
        for block in range(num_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _bottleneck(x, _WIDTH * 2**stage, stride, normalize, seeds)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(images, x, name=f"resnet50_{normalization}")


def _bottleneck(
    x: tf.Tensor,
    width: int,
    stride: int,
    normalize: Callable[[], _Layer],
    seeds: Iterator[int],
) -> tf.Tensor:
    relu = tf.keras.layers.ReLU
    width_out = _EXPANSION * width
    shortcut = x
    if stride != 1 or x.shape[-1] != width_out:
        shortcut = normalize()(_convolution(width_out, 1, stride, seeds)(x))
    y = relu()(normalize()(_convolution(width, 1, 1, seeds)(x)))
    y = relu()(normalize()(_convolution(width, 3, stride, seeds)(y)))
    y = normalize()(_convolution(width_out, 1, 1, seeds)(y))
    return relu()(y + shortcut)


def _convolution(width: int, size: int, stride: int, seeds: Iterator[int]) -> _Layer:
    return tf.keras.layers.Conv2D(
        width,
        size,
        stride,
        padding="same",
        use_bias=False,
        # He et al., "Delving Deep into Rectifiers", by the outputs.
        kernel_initializer=tf.keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal", seed=next(seeds)
        ),
    )
