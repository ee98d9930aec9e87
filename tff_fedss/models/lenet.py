"""LeNet-5 with ReLU and max pooling."""

import tensorflow as tf

from tff_fedss.models.layers import Layers


def lenet(
    image_shape: tuple[int, int, int], num_outputs: int, seed: int = 0
) -> tf.keras.Model:
    """Builds LeCun et al.'s (1998) network as it is built today.

    Two 5x5 convolutions (6 and 16 channels), each with ReLU and 2x2 max pooling, two
    dense layers (120 and 84) with ReLU, and a linear one.

    Arguments and result are those of `resnet18`. Images are at least 16x16; those of
    28x28 are brought to the 32x32 of the original by a border of zeros.
    """
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
