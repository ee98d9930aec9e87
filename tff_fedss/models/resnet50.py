"""ResNet-50, the encoder of MoCo, and its projection head in training.

He et al., "Deep Residual Learning for Image Recognition" (2016), Table 1, in the
variant of torchvision and MoCo: in a block that halves the image, the 3x3 convolution
has the stride.
"""

import functools

import tensorflow as tf

from tff_fedss import errors
from tff_fedss.models.layers import (
    FLOAT32,
    GroupNormalization,
    Layers,
    SplitBatchNormalization,
    batch_normalization,
)

_BLOCKS = (3, 4, 6, 3)
_WIDTH = 64
_EXPANSION = 4
_GROUPS = 32
BATCH_NORM_SPLITS = 8

_NORMALIZATIONS = {
    "batch": batch_normalization,
    # MoCo's 8 GPUs.
    "split": functools.partial(
        SplitBatchNormalization,
        BATCH_NORM_SPLITS,
        momentum=0.9,
        epsilon=1e-5,
        dtype=FLOAT32,
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
            32 groups (Wu and He, 2018), which does not depend on the other images of a
            batch.
        seed: Seed of the initial weights: same seed, same weights.

    Returns:
        A Keras model from images [examples, height, width, channels] with values in
        0..255 to float32[examples, 2048].

    Raises:
        InvalidInputError: If `normalization` is another word.
    """
    errors.check_choice("normalization", normalization, _NORMALIZATIONS)
    layers = Layers(
        seed,
        normalization=_NORMALIZATIONS[normalization],
        # He et al., "Delving Deep into Rectifiers", by the number of outputs.
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


def with_projection_head(
    backbone: tf.keras.Model, embedding_dim: int = 128, seed: int = 0
) -> tf.keras.Model:
    """Adds MoCo v2's two-layer head to a backbone.

    The layers are as wide as the features, ReLU, then the embedding (Chen et al., 2020,
    section 3).

    Args:
        backbone: A model from images to float32[examples, features].
        embedding_dim: Dimension of queries and keys; 128 in MoCo.
        seed: Seed of the initial weights of the head: same seed, same weights.

    Returns:
        A Keras model from images to float32[examples, embedding_dim], of any length. It
        shares the weights of the backbone.
    """

    def dense(units, number, name, activation=None):
        glorot = tf.keras.initializers.GlorotUniform(1000 * seed + number)
        options = {"kernel_initializer": glorot, "name": name, "dtype": FLOAT32}
        return tf.keras.layers.Dense(units, activation, **options)

    hidden = dense(backbone.output_shape[1], 1, "head_hidden", "relu")
    head = dense(embedding_dim, 2, "head_embedding")
    outputs = head(hidden(backbone.output))
    return tf.keras.Model(backbone.input, outputs, name=f"{backbone.name}_with_head")
