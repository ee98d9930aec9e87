"""VGG-16 for images of about 32x32, with batch normalization."""

import tensorflow as tf

from tff_fedss.models.layers import Layers

# Channels of the 3x3 convolutions before each pooling (Simonyan and Zisserman, D).
_BLOCKS = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)


def vgg16(
    image_shape: tuple[int, int, int], num_outputs: int, seed: int = 0
) -> tf.keras.Model:
    """Builds the thirteen convolutions of VGG-16 and one dense layer.

    At 32x32, five poolings leave one pixel: the usual form for CIFAR has one dense
    layer in place of three, and batch normalization, without which it hardly starts to
    learn. Arguments and result are those of `resnet18`.
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
