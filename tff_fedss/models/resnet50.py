"""ResNet-50, the encoder of MoCo.

He et al., "Deep Residual Learning for Image Recognition" (2016), Table 1, in the
variant that torchvision and MoCo use: where a block halves the image, its 3x3
convolution does.
"""

import functools

import tensorflow as tf

from tff_fedss.models.group_normalization import GroupNormalization
from tff_fedss.models.layers import FLOAT32, Layers, batch_normalization
from tff_fedss.models.split_batch_normalization import SplitBatchNormalization

_BLOCKS = (3, 4, 6, 3)
_WIDTH = 64
_EXPANSION = 4
_GROUPS = 32
BATCH_NORM_SPLITS = 8

_NORMALIZATIONS = {
    "batch": batch_normalization,
    # MoCo's 8 GPUs.
    "split": functools.partial(
        SplitBatchNormalization, BATCH_NORM_SPLITS, momentum=0.9, epsilon=1e-5
    ),
    "group": functools.partial(
        GroupNormalization, _GROUPS, epsilon=1e-5, dtype=FLOAT32
    ),
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
        normalization: "batch", as in the paper; "split": with the statistics of 8 equal
            parts of a batch, see `SplitBatchNormalization`; or "group": GroupNorm with
            32 groups (Wu and He, 2018), which knows nothing of the other images of a
            batch.
        seed: Of the initial weights: same seed, same weights.

    Returns:
        A Keras model from images [examples, height, width, channels] with values in
        0..255 to float32[examples, 2048].
    """
    layers = Layers(
        seed,
        normalization=_NORMALIZATIONS[normalization],
        # He et al., "Delving Deep into Rectifiers", by the outputs.
        conv_initializer=functools.partial(
            tf.keras.initializers.VarianceScaling, 2.0, "fan_out", "untruncated_normal"
        ),
    )
    images = tf.keras.Input(image_shape, name="images")
    x = layers.norm_relu(layers.conv(layers.scaled(images), _WIDTH, 7, 2))
    x = tf.keras.layers.MaxPooling2D(3, 2, padding="same", name="pool")(x)
    for stage, num_blocks in enumerate(_BLOCKS):
        for block in range(num_blocks):
            strides = 2 if stage and not block else 1
            x = _bottleneck(layers, x, _WIDTH * 2**stage, strides)
    x = tf.keras.layers.GlobalAveragePooling2D(name="features", dtype=FLOAT32)(x)
    return tf.keras.Model(images, x, name=f"resnet50_{normalization}")


def _bottleneck(layers: Layers, x: tf.Tensor, width: int, strides: int) -> tf.Tensor:
    width_out = _EXPANSION * width
    shortcut = x
    if strides > 1 or x.shape[-1] != width_out:
        shortcut = layers.norm(layers.conv(x, width_out, 1, strides))
    y = layers.norm_relu(layers.conv(x, width, 1))
    y = layers.norm_relu(layers.conv(y, width, 3, strides))
    y = layers.norm(layers.conv(y, width_out, 1))
    return layers.relu(layers.add(y, shortcut))
