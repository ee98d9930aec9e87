"""Preprocessing of images of any size for a feature extractor, as a part of a model.

The steps are operations of TensorFlow alone, so that a model which begins with them can
be saved with them, and be loaded where this project is not installed. They give what
the readers of `datasets` give, bit for bit: the pixels that phi is evaluated on.
"""

import dataclasses

import tensorflow as tf

# How Pillow weights pixels (Resample.c): in fixed point, horizontally and vertically in
# turn, with 8 bits in between.
_PILLOW_BITS = 22
_PILLOW_SUPPORT = {"box": 0.5, "bilinear": 1.0}
# ITU-R 601, as Pillow's mode "L" has it: shares of 2^16.
_LUMA = (19595, 38470, 7471)


@dataclasses.dataclass(frozen=True)
class ImageInput:
    """The preprocessing of images for phi.

    Attributes:
        image_size: Height and width in pixels of what phi takes.
        channels: 3, or 1: grey.
        resize_size: Height and width that images are brought to first; the middle is
            what phi takes. None: image_size.
        resizing: How. "antialias": as `Preprocessing` of federated data sets; "box"
            and "bilinear": as Pillow does by its filters of these names.
        cut_square: Whether the longer side is cut to the shorter one before, from the
            middle, as `PIL.ImageOps.fit` does; with "box" and "bilinear".
        inverted: Whether dark becomes bright, for ink on paper.
    """

    image_size: int
    channels: int = 3
    resize_size: int | None = None
    resizing: str = "antialias"
    cut_square: bool = False
    inverted: bool = False

    def __post_init__(self):
        """Fills in the size."""
        if self.resize_size is None:
            object.__setattr__(self, "resize_size", self.image_size)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Preprocesses images.

        Args:
            images: uint8[N, height, width, 3]. A symbolic input of Keras will do.

        Returns:
            float32[N, image_size, image_size, channels], whole numbers in 0..255.
        """
        if self.channels == 1:
            images = _grey(images)
        if self.resizing == "antialias":
            # Not by `tf.image.resize` of a known size, which would leave the images
            # alone if they have it: here the size is never known.
            size = [self.resize_size, self.resize_size]
            resized = tf.image.resize(images, size, antialias=True)
            # Interpolation stays within the values of the image, up to rounding.
            pixels = tf.saturate_cast(tf.round(resized), tf.uint8)
        else:
            pixels = _pillow_resize(
                images, self.resize_size, self.resizing, self.cut_square
            )
        margin = (self.resize_size - self.image_size) // 2
        if self.resize_size > self.image_size:
            end = margin + self.image_size
            pixels = pixels[:, margin:end, margin:end]
        pixels = tf.cast(pixels, tf.float32)
        if self.inverted:
            pixels = 255.0 - pixels
        shape = [-1, self.image_size, self.image_size, self.channels]
        return tf.reshape(pixels, shape)


def _grey(images: tf.Tensor) -> tf.Tensor:
    """uint8[N, h, w, 1] of uint8[N, h, w, 3], by whole numbers as Pillow does."""
    wide = tf.cast(images, tf.int32)
    luma = sum(wide[:, :, :, k : k + 1] * weight for k, weight in enumerate(_LUMA))
    return tf.cast((luma + 2**15) // 2**16, tf.uint8)


def _pillow_resize(
    images: tf.Tensor, size: int, kind: str, cut_square: bool
) -> tf.Tensor:
    """Resizes uint8[N, h, w, c] to uint8[N, size, size, c] as Pillow does."""
    shape = tf.cast(tf.shape(images), tf.float64)
    height, width = shape[1], shape[2]
    shorter = tf.minimum(height, width)
    columns = _pillow_weights(width, shorter if cut_square else width, size, kind)
    rows = _pillow_weights(height, shorter if cut_square else height, size, kind)
    # Of whole numbers below 2^53: float64 adds them without an error.
    # [n, h, w, c], [n, h, c, size] and [n, c, size, size], the columns before the rows.
    pixels = tf.tensordot(tf.cast(images, tf.float64), columns, [[2], [0]])
    pixels = _rounded(tf.tensordot(_rounded(pixels), rows, [[1], [0]]))
    return tf.transpose(tf.cast(pixels, tf.uint8), [0, 3, 2, 1])


def _rounded(sums: tf.Tensor) -> tf.Tensor:
    rounded = tf.floor((sums + 2.0 ** (_PILLOW_BITS - 1)) / 2.0**_PILLOW_BITS)
    return tf.clip_by_value(rounded, 0.0, 255.0)


def _pillow_weights(
    length: tf.Tensor, used: tf.Tensor, size: int, kind: str
) -> tf.Tensor:
    """The share of each old pixel in each new one, as whole numbers in fixed point.

    Args:
        length: float64[], the number of old pixels.
        used: float64[], that of those in the middle that are resized.
        size: The number of new pixels.
        kind: "box" or "bilinear".

    Returns:
        float64[length, size].
    """
    # A plain division by a constant becomes a product with its rounded inverse once
    # TensorFlow has optimized the graph.
    scale = tf.math.divide_no_nan(used, size)
    spread = tf.maximum(scale, 1.0)
    # Numbers stand behind tensors: saved in front of one, they come back as float32.
    support = spread * _PILLOW_SUPPORT[kind]
    centers = (length - used) / 2.0 + scale * [k + 0.5 for k in range(size)]
    first = tf.maximum(tf.floor(centers - support + 0.5), 0.0)
    end = tf.minimum(tf.floor(centers + support + 0.5), length)
    old = tf.expand_dims(tf.range(length), 1)
    away = (old - centers + 0.5) * tf.math.reciprocal(spread)
    if kind == "box":
        weights = tf.cast((away > -0.5) & (away <= 0.5), tf.float64)
    else:
        weights = tf.maximum(-tf.abs(away) + 1.0, 0.0)
    weights *= tf.cast((old >= first) & (old < end), tf.float64)
    weights /= tf.reduce_sum(weights, 0, keepdims=True)
    return tf.floor(weights * 2.0**_PILLOW_BITS + 0.5)
