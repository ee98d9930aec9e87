"""Random changes of images: of labelled mini-batches, and two views of each (MoCo v2).

`TwoViews` is the augmentation of Chen et al., "Improved Baselines with Momentum
Contrastive Learning" (2020): a random resized crop, colour jitter, grayscale, blur and
a horizontal flip. All draws are functions of (seed, epoch, image), so that a resumed
run sees the same views as an uninterrupted one.

It differs from torchvision's transforms, used by MoCo v2, in two points: the colour
jitter is always in the order brightness, contrast, saturation, hue (random there); and
if none of ten drawn crops fits into the image, the first is cut to the image (there the
largest central crop is taken).
"""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss import seeds


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random changes, drawn uniformly and independently for every image.

    Pixels from outside the image are black.

    Attributes:
        horizontal_flip: Whether half of the images are mirrored.
        vertical_flip: Whether half of the images are flipped upside down.
        shift: Images are moved by -shift to shift whole pixels in each direction: a
            random crop of the image with a border of `shift` pixels.
        rotation: Images are rotated by -rotation to rotation degrees about their
            centre, with bilinear interpolation.
    """

    horizontal_flip: bool = False
    vertical_flip: bool = False
    shift: int = 0
    rotation: float = 0.0

    def __call__(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Changes a mini-batch, uint8[examples, h, w, c], by its seed, int32[2].

        Returns float32 of the same shape, with values in 0..255. The changes
        are a function of the seed and of the position in the mini-batch.
        """
        images = tf.cast(images, tf.float32)
        if self == Augmentation():  # Images stay as they are.
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
    """Flips, rotates and then shifts each image, in one interpolation."""
    height, width = tf.shape(images)[1], tf.shape(images)[2]
    middle_x = (tf.cast(width, tf.float32) - 1) / 2
    middle_y = (tf.cast(height, tf.float32) - 1) / 2
    cos, sin = tf.cos(angle), tf.sin(angle)
    # Maps a pixel of the result to one of the image, both relative to the centre.
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


# By their names on the command line.
AUGMENTATIONS = {
    "none": Augmentation(),
    # LEAP 4.3, and the WideResNet scheme: flip and a crop of the image with 4 pixels
    # around it.
    "flip_crop": Augmentation(horizontal_flip=True, shift=4),
    # LEAP 4.2. Translation and crop are one shift here; its size is not stated.
    "flips_crop_rotation": Augmentation(True, True, shift=4, rotation=15.0),
}


_MIN_AREA = 0.2  # Of a crop, as a share of the image.
_MAX_LOG_RATIO = math.log(4 / 3)  # Of a crop's width to its height.
_NUM_TRIES = 10
_JITTER_SHARE, _JITTER, _HUE_JITTER = 0.8, 0.4, 0.1
_GRAY_SHARE = 0.2
_BLUR_SHARE, _BLUR_SIGMA = 0.5, (0.1, 2.0)  # In pixels.
_BLUR_RADIUS = 6  # Three of the largest sigma.
_GRAY = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow.

# What `distort` takes of the numbers drawn for a view.
NUM_DRAWS = 9


@dataclasses.dataclass(frozen=True)
class TwoViews:
    """Makes mini-batches of pairs of views.

    Attributes:
        image_size: Height and width of a view in pixels.
        blur: Whether to blur half of the views, as MoCo v2 does at 224 pixels. At 32
            pixels there is little left of a blurred image.
    """

    image_size: int
    blur: bool = True

    def batches(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        batch_size: int,
        seed: int,
        num_done: int = 0,
    ) -> tf.data.Dataset:
        """Goes through the images again and again, in a new order in every epoch.

        An epoch is floor(N / batch_size) whole batches, as in MoCo's code: the images
        that are left over are others in every epoch.

        Args:
            images: uint8[N, h, w, 3].
            labels: int32[N], of the images.
            batch_size: The mini-batch, at most N.
            seed: Seed of the orders and of the views.
            num_done: How many batches to leave out, because they have been used before.

        Returns:
            Batches (query views, key views, labels) without end; views are
            uint8[batch_size, image_size, image_size, 3], labels int32[batch_size].
        """
        stored = tf.constant(images)
        stored_labels = tf.constant(labels, tf.int32)
        num_images = len(images)
        per_epoch = num_images // batch_size * batch_size

        def load(place):
            epoch_seed = seeds.fold_in([seed, 0], place // per_epoch)
            image_id = tf.random.experimental.index_shuffle(
                place % per_epoch,
                seed=epoch_seed,
                max_index=tf.constant(num_images - 1, tf.int64),
            )
            image_seed = seeds.fold_in(epoch_seed, image_id)
            image = tf.gather(stored, image_id)
            pair = [self.crop(image, seeds.fold_in(image_seed, v)) for v in (0, 1)]
            draws = _uniform([2, NUM_DRAWS], seeds.fold_in(image_seed, 2))
            return tf.stack(pair), draws, tf.gather(stored_labels, image_id)

        def finish(pairs, draws, labels):
            size = self.image_size
            views = distort(
                tf.reshape(pairs, [-1, size, size, 3]),
                tf.reshape(draws, [-1, NUM_DRAWS]),
                blur=self.blur,
            )
            pixels = tf.saturate_cast(tf.round(255.0 * views), tf.uint8)
            pixels = tf.reshape(pixels, [batch_size, 2, size, size, 3])
            return pixels[:, 0], pixels[:, 1], labels

        in_order: dict[str, Any] = dict(
            num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return (
            tf.data.Dataset.range(num_done * batch_size, tf.int64.max)
            .map(load, **in_order)
            .batch(batch_size, drop_remainder=True)
            .map(finish, **in_order)
            .prefetch(2)
        )

    def crop(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Cuts a random part of uint8[height, width, 3] and brings it to a view's size.

        Returns float32[image_size, image_size, 3], in 0..1; resized by bilinear
        interpolation with antialiasing.
        """
        shape = tf.shape(image)
        top, left, height, width = tf.unstack(random_box(shape[0], shape[1], seed))
        part = image[top : top + height, left : left + width]
        size = [self.image_size, self.image_size]
        view = tf.image.resize(part, size, antialias=True)
        view.set_shape([*size, 3])
        return tf.clip_by_value(view / 255.0, 0.0, 1.0)


def _uniform(shape: list[int], seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, seed, alg="philox")


def random_box(height: tf.Tensor, width: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws a part with 0.2 to 1 of the area and a ratio of sides of 3/4 to 4/3.

    Returns its top, left, height and width in pixels, int32[4].
    """
    draws = _uniform([_NUM_TRIES + 1, 2], seed)
    size = tf.stack([height, width])
    image_area = tf.cast(height * width, tf.float32)
    area = image_area * (_MIN_AREA + (1 - _MIN_AREA) * draws[:-1, 0])
    half_log_ratio = 0.5 * _MAX_LOG_RATIO * (2.0 * draws[:-1, 1] - 1.0)
    sides = tf.sqrt(area)[:, tf.newaxis] * tf.exp(
        tf.stack([-half_log_ratio, half_log_ratio], 1)
    )
    boxes = tf.maximum(tf.cast(tf.round(sides), tf.int32), 1)
    fits = tf.reduce_all(boxes <= size, 1)
    box = tf.minimum(boxes[tf.argmax(fits)], size)
    places = tf.cast(size - box + 1, tf.float32)
    start = tf.minimum(tf.cast(draws[-1] * places, tf.int32), size - box)
    return tf.concat([start, box], 0)


def distort(images: tf.Tensor, draws: tf.Tensor, *, blur: bool) -> tf.Tensor:
    """Applies colour jitter, grayscale, blur and a flip, each to its share of images.

    Maps float32[N, h, w, 3] in 0..1 to the same. `draws` are float32[N, NUM_DRAWS],
    uniform in [0, 1).
    """
    draws = tf.unstack(draws[:, tf.newaxis, tf.newaxis, tf.newaxis, :], NUM_DRAWS, -1)
    jittered, brightness, contrast, saturation, hue, gray, blurred, sigma, flip = draws

    def factor(draw):
        return 1.0 + _JITTER * (2.0 * draw - 1.0)

    x = jitter(
        images,
        factor(brightness),
        factor(contrast),
        factor(saturation),
        _HUE_JITTER * (2.0 * hue - 1.0),
    )
    x = tf.where(jittered < _JITTER_SHARE, x, images)
    x = tf.where(gray < _GRAY_SHARE, _grayscale(x) + tf.zeros_like(x), x)
    if blur:
        low, high = _BLUR_SIGMA
        blurry = gaussian_blur(x, low + (high - low) * sigma)
        x = tf.where(blurred < _BLUR_SHARE, blurry, x)
    return tf.where(flip < 0.5, x[:, :, ::-1], x)


def jitter(
    images: tf.Tensor,
    brightness: tf.Tensor,
    contrast: tf.Tensor,
    saturation: tf.Tensor,
    hue: tf.Tensor,
) -> tf.Tensor:
    """Changes the colours as Pillow does, one after another, within 0..1.

    Args:
        images: float32[N, h, w, 3] in 0..1.
        brightness: float32[N, 1, 1, 1], the factor of all values.
        contrast: float32[N, 1, 1, 1], the factor of distances from the mean grey.
        saturation: float32[N, 1, 1, 1], the factor of distances from a pixel's grey.
        hue: float32[N, 1, 1, 1], what is added to the hue, of which 1 is a full circle.
    """

    def blend(x, other, share):
        return tf.clip_by_value(other + share * (x - other), 0.0, 1.0)

    x = blend(images, 0.0, brightness)
    x = blend(x, tf.reduce_mean(_grayscale(x), [1, 2], keepdims=True), contrast)
    x = blend(x, _grayscale(x), saturation)
    h, s, v = tf.unstack(tf.image.rgb_to_hsv(x), axis=-1)
    h = tf.math.floormod(h + hue[..., 0], 1.0)
    return tf.image.hsv_to_rgb(tf.stack([h, s, v], -1))


def gaussian_blur(images: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
    """Blurs each image, of more than 6 pixels, by a Gaussian cut off at 6 pixels.

    Images are float32[N, h, w, channels], mirrored at their edges; `sigma` is
    float32[N, 1, 1, 1], in pixels.
    """
    offsets = tf.range(-_BLUR_RADIUS, _BLUR_RADIUS + 1, dtype=tf.float32)
    weights = tf.exp(-0.5 * tf.square(offsets / sigma))  # [N, 1, 1, 13]
    weights /= tf.reduce_sum(weights, -1, keepdims=True)
    for axis in (1, 2):
        size = tf.shape(images)[axis]
        margins = [[0, 0]] * 4
        margins[axis] = [_BLUR_RADIUS] * 2
        padded = tf.pad(images, margins, "REFLECT")
        images = tf.add_n(
            [
                weight * tf.gather(padded, t + tf.range(size), axis=axis)
                for t, weight in enumerate(tf.split(weights, len(offsets), -1))
            ]
        )
    return images


def _grayscale(images: tf.Tensor) -> tf.Tensor:
    """[..., 3] -> [..., 1]."""
    return tf.reduce_sum(images * tf.constant(_GRAY), -1, keepdims=True)
