"""Residual networks with basic blocks for small images: ResNet-18 and WideResNet."""

import tensorflow as tf

from tff_fedss.models.layers import Layers


def resnet18(
    image_shape: tuple[int, int, int], num_outputs: int, seed: int = 0
) -> tf.keras.Model:
    """Builds He et al.'s (2016) ResNet-18 with the stem that images of 32x32 need.

    A 3x3 convolution without pooling in place of the 7x7 one; then four stages of two
    basic blocks with 64, 128, 256 and 512 channels, global pooling and a dense layer.

    Args:
        image_shape: (height, width, channels).
        num_outputs: Of the last layer: n as a classifier, d as an embedding network.
        seed: Of the initial weights: same seed, same weights.

    Returns:
        A Keras model from images [examples, height, width, channels] with values in
        0..255 to float32[examples, num_outputs].
    """
    layers = Layers(seed)
    images = tf.keras.Input(image_shape, name="images")
    x = layers.norm_relu(layers.conv(layers.scaled(images), 64))
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            strides = 2 if stage and not block else 1
            x = _basic_block(layers, x, filters, strides)
    x = layers.global_pool(x)
    return tf.keras.Model(images, layers.dense(x, num_outputs), name="resnet18")


def _basic_block(layers: Layers, x: tf.Tensor, filters: int, strides: int) -> tf.Tensor:
    shortcut = x
    if strides > 1 or x.shape[-1] != filters:
        shortcut = layers.norm(layers.conv(x, filters, 1, strides))
    x = layers.norm_relu(layers.conv(x, filters, strides=strides))
    x = layers.norm(layers.conv(x, filters))
    return layers.relu(layers.add(x, shortcut))


def wide_resnet(
    image_shape: tuple[int, int, int],
    num_outputs: int,
    seed: int = 0,
    *,
    depth: int,
    widening: int,
    dropout: float,
) -> tf.keras.Model:
    """Builds Zagoruyko and Komodakis' (2016) WideResNet.

    A 3x3 convolution with 16 channels; three stages of (depth - 4) / 6 blocks with 16,
    32 and 64 times `widening` channels, in which normalization and ReLU come before
    each of two convolutions, and dropout between them; global pooling and a dense
    layer.

    Args:
        image_shape: (height, width, channels).
        num_outputs: Of the last layer: n as a classifier, d as an embedding network.
        seed: Of the initial weights and of the dropout.
        depth: Of the network; 6 k + 4.
        widening: k of the paper.
        dropout: The rate.

    Returns:
        A Keras model from images [examples, height, width, channels] with values in
        0..255 to float32[examples, num_outputs].

    Raises:
        ValueError: If no network has that depth.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth={depth} must be 10, 16, 22, 28, ...")
    layers = Layers(seed)
    images = tf.keras.Input(image_shape, name="images")
    x = layers.conv(layers.scaled(images), 16)
    for stage in range(3):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            x = _wide_block(layers, x, 16 * 2**stage * widening, strides, dropout)
    x = layers.global_pool(layers.norm_relu(x))
    name = f"wide_resnet_{depth}_{widening}"
    return tf.keras.Model(images, layers.dense(x, num_outputs), name=name)


def _wide_block(
    layers: Layers, x: tf.Tensor, filters: int, strides: int, dropout: float
) -> tf.Tensor:
    activated = layers.norm_relu(x)
    shortcut = x
    if strides > 1 or x.shape[-1] != filters:
        shortcut = layers.conv(activated, filters, 1, strides)
    x = layers.norm_relu(layers.conv(activated, filters, strides=strides))
    if dropout:
        x = layers.dropout(x, dropout)
    return layers.add(layers.conv(x, filters), shortcut)
