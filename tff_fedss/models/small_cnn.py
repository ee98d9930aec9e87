"""A small convolutional feature extractor for images of about 28x28."""

import functools

import tensorflow as tf

from tff_fedss.models.group_normalization import GroupNormalization
from tff_fedss.models.layers import FLOAT32, Layers

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
        seed: Of the initial weights: same seed, same weights.

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
