"""Networks of images: LeNet-5, VGG-16, ResNet-18, WideResNet, small_cnn; and an MLP."""

import functools

import tensorflow as tf

from tff_fedss.errors import InvalidInputError
from tff_fedss.models.layers import FLOAT32, GroupNormalization, Layers


def lenet(
    image_shape: tuple[int, int, int], num_outputs: int, seed: int = 0
) -> tf.keras.Model:
    """Builds LeCun et al.'s (1998) network in its modern form.

    Two 5x5 convolutions (6 and 16 channels), each with ReLU and 2x2 max pooling, two
    dense layers (120 and 84) with ReLU, and a linear one.

    Arguments and result are those of `resnet18`. Images are at least 16x16, else it
    raises InvalidInputError; those of 28x28 are padded with zeros to the original's
    32x32.
    """
    if min(image_shape[:2]) < 16:
        height, width, _ = image_shape
        raise InvalidInputError(
            f"lenet needs images of 16x16 pixels or more, found {height}x{width}."
        )
    layers = Layers(seed)
    images = tf.keras.Input(image_shape, name="images")
    x = layers.scaled(images)
    if image_shape[:2] == (28, 28):
        x = tf.keras.layers.ZeroPadding2D(2, name="border")(x)
    for filters in (6, 16):
        x = layers.conv(x, filters, 5, padding="valid", use_bias=True)
        x = layers.max_pool(layers.relu(x))
    x = layers.flatten(x)
    for units in (120, 84):
        x = layers.dense(x, units, "relu")
    return tf.keras.Model(images, layers.dense(x, num_outputs), name="lenet")


# Channels of the 3x3 convolutions before each pooling (Simonyan and Zisserman, D).
_BLOCKS = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)


def vgg16(
    image_shape: tuple[int, int, int], num_outputs: int, seed: int = 0
) -> tf.keras.Model:
    """Builds the thirteen convolutions of VGG-16 and one dense layer.

    At 32x32, five poolings leave one pixel: the usual form for CIFAR has one dense
    layer instead of three, and batch normalization, without which it hardly learns.
    Arguments and result are those of `resnet18`.
    """
    layers = Layers(seed)
    images = tf.keras.Input(image_shape, name="images")
    x = layers.scaled(images)
    for block in _BLOCKS:
        for filters in block:
            x = layers.norm_relu(layers.conv(x, filters))
        if min(x.shape[1:3]) > 1:
            x = layers.max_pool(x, "same")
    x = layers.flatten(x)
    return tf.keras.Model(images, layers.dense(x, num_outputs), name="vgg16")


def resnet18(
    image_shape: tuple[int, int, int], num_outputs: int, seed: int = 0
) -> tf.keras.Model:
    """Builds He et al.'s (2016) ResNet-18 with a stem for images of 32x32.

    The stem is a 3x3 convolution without pooling instead of the 7x7 one; then four
    stages of two basic blocks with 64, 128, 256 and 512 channels, global pooling and a
    dense layer.

    Args:
        image_shape: (height, width, channels).
        num_outputs: Size of the last layer: n as a classifier, d as an embedding
            network.
        seed: Seed of the initial weights: same seed, same weights.

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
        num_outputs: Size of the last layer: n as a classifier, d as an embedding
            network.
        seed: Seed of the initial weights and of the dropout.
        depth: Depth of the network; 6 k + 4.
        widening: k of the paper.

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


_WIDTHS = (32, 32, 64, 64)
_GROUPS = 8


def small_cnn(
    image_shape: tuple[int, int, int], embedding_dim: int = 64, seed: int = 0
) -> tf.keras.Model:
    """Builds four convolution blocks and a dense embedding.

    A block is a 3x3 convolution, GroupNorm with 8 groups (instead of BatchNorm, whose
    statistics differ between clients: FedSS, A.2), ReLU and 2x2 max pooling, as far as
    the image is large enough to halve. Widths are 32, 32, 64 and 64 channels.

    Args:
        image_shape: (height, width, channels).
        embedding_dim: d, the length of the embedding.
        seed: Seed of the initial weights: same seed, same weights.

    Returns:
        A Keras model from images [examples, height, width, channels] with values in
        0..255 (any dtype that casts to float32) to float32[examples, d]. All of its
        weights are trainable.
    """
    layers = Layers(
        seed,
        seeds_per_network=len(_WIDTHS) + 1,
        normalization=functools.partial(GroupNormalization, _GROUPS, dtype=FLOAT32),
    )
    images = tf.keras.Input(image_shape, name="images")
    x = tf.keras.layers.Rescaling(1.0 / 255.0, name="scaled")(images)
    for width in _WIDTHS:
        x = layers.norm_relu(layers.conv(x, width))
        if min(x.shape[1:3]) > 1:
            x = layers.max_pool(x, "same")
    embedding = layers.dense(layers.flatten(x), embedding_dim, name="embedding")
    return tf.keras.Model(images, embedding, name="small_cnn")


def mlp(
    example_shape: tuple[int], embedding_dim: int = 64, seed: int = 0
) -> tf.keras.Model:
    """Builds one hidden layer of 256 units with ReLU, and a dense embedding.

    Args:
        example_shape: (v,).
        embedding_dim: d, the length of the embedding.
        seed: Seed of the initial weights: same seed, same weights.

    Returns:
        A Keras model from float32[examples, v] to float32[examples, d]. All of its
        weights are trainable.
    """
    layers = Layers(seed, seeds_per_network=2)
    vectors = tf.keras.Input(example_shape, name="vectors")
    hidden = layers.dense(vectors, 256, "relu", name="hidden")
    embedding = layers.dense(hidden, embedding_dim, name="embedding")
    return tf.keras.Model(vectors, embedding, name="mlp")
