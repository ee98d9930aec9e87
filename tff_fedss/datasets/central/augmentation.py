"""Random changes of small labelled images, a whole mini-batch at once."""

import dataclasses
import math

import tensorflow as tf

from tff_fedss import seeds


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Which changes are drawn, uniformly and independently for every image.

    What comes in from outside of an image is black.

    Attributes:
        horizontal_flip: Whether half of the images are mirrored.
        vertical_flip: Whether half of them are turned upside down.
        shift: Images are moved by -shift to shift whole pixels in each direction: a
            random crop of the image with a border of `shift` pixels.
        rotation: Images are turned by -rotation to rotation degrees about their middle,
            with bilinear interpolation.
    """

    horizontal_flip: bool = False
    vertical_flip: bool = False
    shift: int = 0
    rotation: float = 0.0

    @property
    def is_none(self) -> bool:
        """Whether images stay as they are."""
        return self == Augmentation()

    def __call__(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Changes the images of a mini-batch.

        Args:
            images: uint8[examples, height, width, channels].
            seed: int32[2]. The changes are a function of it and of the place in the
                mini-batch.

        Returns:
            float32 of the same shape, with values in 0..255.
        """
        images = tf.cast(images, tf.float32)
        if self.is_none:
            return images
        count = tf.shape(images)[0]

        def draw(stream: int, low: float, high: float) -> tf.Tensor:
            return tf.random.stateless_uniform(
                [count], seeds.fold_in(seed, stream), low, high, alg="philox"
            )

        def sign(stream: int, is_drawn: bool) -> tf.Tensor:
            is_flipped = tf.logical_and(is_drawn, draw(stream, 0.0, 1.0) < 0.5)
            return 1.0 - 2.0 * tf.cast(is_flipped, tf.float32)

        flip_x, flip_y = sign(0, self.horizontal_flip), sign(1, self.vertical_flip)
        shift_x, shift_y = (
            tf.floor(draw(i, -self.shift, self.shift + 1)) for i in (2, 3)
        )
        radians = math.pi / 180 * self.rotation
        angle = draw(4, -1.0, 1.0) * radians
        return _resample(images, flip_x, flip_y, shift_x, shift_y, angle)


def _resample(images, flip_x, flip_y, shift_x, shift_y, angle):
    """Flips, turns and then moves each image, in one interpolation."""
    height, width = tf.shape(images)[1], tf.shape(images)[2]
    middle_x = (tf.cast(width, tf.float32) - 1) / 2
    middle_y = (tf.cast(height, tf.float32) - 1) / 2
    cos, sin = tf.cos(angle), tf.sin(angle)
    # From a pixel of the result to the one of the image, both seen from the middle.
    a, b, d, e = flip_x * cos, flip_x * sin, -flip_y * sin, flip_y * cos
    c = middle_x - a * (middle_x + shift_x) - b * (middle_y + shift_y)
    f = middle_y - d * (middle_x + shift_x) - e * (middle_y + shift_y)
    zero = tf.zeros_like(a)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.stack([a, b, c, d, e, f, zero, zero], 1),
        output_shape=tf.stack([height, width]),
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
        fill_value=0.0,
    )


# By the name that a user gives them.
AUGMENTATIONS = {
    "none": Augmentation(),
    # LEAP 4.3, and the WideResNet scheme: flip and a crop of the image with 4 pixels
    # around it.
    "flip_crop": Augmentation(horizontal_flip=True, shift=4),
    # LEAP 4.2. Translation and crop are one move here; how far is not stated.
    "flips_crop_rotation": Augmentation(True, True, shift=4, rotation=15.0),
}
