"""Preprocessing of images of any size for a feature extractor, as a part of a model.

The steps are TensorFlow operations only, so that a model that begins with them can be
saved with them and loaded without this project. They give the same pixels as the
readers of `datasets`, to the bit, on which phi is evaluated.
"""

import dataclasses

import tensorflow as tf

from tff_fedss.errors import InvalidInputError, check_choice, check_range

# Pillow's weights of pixels (Resample.c): in fixed point, horizontally and then
# vertically, with 8 bits in between.
_PILLOW_BITS = 22
_PILLOW_SUPPORT = {"box": 0.5, "bilinear": 1.0}
# ITU-R 601, as in Pillow's mode "L": shares of 2^16.
_LUMA = (19595, 38470, 7471)


@dataclasses.dataclass(frozen=True)
class ImageInput:
    """The preprocessing of images for phi.

    Attributes:
        image_size: Height and width in pixels of phi's images.
        channels: 3, or 1: grey.
        resize_size: Height and width to which images are resized first; their centre is
            phi's image. None: image_size.
        resizing: The filter. "antialias": as in `Preprocessing` of federated data sets;
            "box" and "bilinear": Pillow's filters of these names.
        cut_square: Whether the longer side is first cut to the shorter one, around the
            centre, as in `PIL.ImageOps.fit`; with "box" and "bilinear".
        inverted: Whether dark becomes bright, for ink on paper.
    """

    image_size: int
    channels: int = 3
    resize_size: int | None = None
    resizing: str = "antialias"
    cut_square: bool = False
    inverted: bool = False

    def __post_init__(self):
        """Fills in the size, and checks the arguments."""
        if self.resize_size is None:
            object.__setattr__(self, "resize_size", self.image_size)
        check_range("resize_size", self.resize_size, self.image_size)
        check_choice("resizing", self.resizing, ("antialias", *_PILLOW_SUPPORT))
        if self.channels not in (1, 3):
            raise InvalidInputError(f"channels={self.channels} must be 1 or 3.")

    def __call__(self, images: tf.Tensor, of_basic_ops: bool = False) -> tf.Tensor:
        """Preprocesses images.

        Args:
            images: uint8[N, height, width, 3], or a symbolic input of Keras.
            of_basic_ops: Whether to resize by operations that ONNX also has: in a loop,
                which does not accept symbolic inputs of Keras.

        Returns:
            float32[N, image_size, image_size, channels], whole numbers in 0..255.
        """
        if self.channels == 1:
            images = _grey(images)
        if self.resizing == "antialias":
            # The size is unknown to `tf.image.resize`, which would not resize images
            # that are known to have it.
            size = [self.resize_size, self.resize_size]
            if of_basic_ops:
                resized = _antialiased(images, self.resize_size)
            else:
                resized = tf.image.resize(images, size, antialias=True)
            # Interpolation stays within the range of the image's values, up to
            # rounding.
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


def _antialiased(images: tf.Tensor, size: int) -> tf.Tensor:
    """Computes `tf.image.resize` with antialiasing, to the bit, by basic operations.

    A pixel is a weighted sum of a span of old pixels, added one by one in float32
    in TensorFlow's order (scale_and_translate_op.cc): rows first, then columns.
    Maps uint8[N, height, width, channels] to float32[N, size, size, channels].
    """
    pixels = tf.cast(images, tf.float32)
    for axis in (1, 2):
        pixels = _antialiased_along(pixels, axis, size)
    return pixels


def _antialiased_along(pixels: tf.Tensor, axis: int, size: int) -> tf.Tensor:
    length = tf.cast(tf.shape(pixels)[axis], tf.float32)
    step = _reciprocal(size / length)
    spread = tf.maximum(step, 1.0)
    centers = (tf.range(size, dtype=tf.float32) + 0.5) * step
    first = tf.maximum(tf.math.ceil(centers - spread - 0.5), 0.0)
    last = tf.minimum(tf.floor(centers + spread - 0.5), length - 1.0)
    span = tf.cast(tf.reduce_max(last - first), tf.int32) + 1

    def weights(k):
        old = first + tf.cast(k, tf.float32)
        away = tf.abs((old + 0.5 - centers) * _reciprocal(spread))
        return tf.where(old <= last, tf.maximum(1.0 - away, 0.0), 0.0)

    def is_inside(k, _):
        return k < span

    def total(k, sums):
        return k + 1, sums + weights(k)

    _, totals = tf.while_loop(is_inside, total, [0, tf.zeros([size])])
    whole = _reciprocal(totals)

    def add(k, sums):
        rows = tf.minimum(tf.cast(first, tf.int32) + k, tf.shape(pixels)[axis] - 1)
        shares = tf.reshape(weights(k) * whole, [-1] + [1] * (3 - axis))
        return k + 1, sums + tf.gather(pixels, rows, axis=axis) * shares

    shape = tf.unstack(tf.shape(pixels))
    shape[axis] = size
    return tf.while_loop(is_inside, add, [0, tf.zeros(shape)])[1]


def _reciprocal(numbers: tf.Tensor) -> tf.Tensor:
    """1 / float32, rounded correctly, which TensorFlow's own may not be."""
    return tf.cast(1.0 / tf.cast(numbers, tf.float64), tf.float32)


def _grey(images: tf.Tensor) -> tf.Tensor:
    """Converts uint8[N, h, w, 3] to uint8[N, h, w, 1], in integers like Pillow."""
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
    # Whole numbers below 2^53, which float64 adds without an error. [n, h, w, c], [n,
    # h, c, size] and [n, c, size, size], the columns before the rows.
    pixels = tf.tensordot(tf.cast(images, tf.float64), columns, [[2], [0]])
    pixels = _rounded(tf.tensordot(_rounded(pixels), rows, [[1], [0]]))
    return tf.transpose(tf.cast(pixels, tf.uint8), [0, 3, 2, 1])


def _rounded(sums: tf.Tensor) -> tf.Tensor:
    rounded = tf.floor((sums + 2.0 ** (_PILLOW_BITS - 1)) / 2.0**_PILLOW_BITS)
    return tf.clip_by_value(rounded, 0.0, 255.0)


def _pillow_weights(
    length: tf.Tensor, used: tf.Tensor, size: int, kind: str
) -> tf.Tensor:
    """Returns each old pixel's share in each new one, in fixed point.

    Of `length` old pixels, float64[], the central `used` ones are resized to `size` new
    ones, by "box" or "bilinear". The shares are whole numbers, float64[length, size].
    """
    # A plain division by a constant becomes a product with its rounded inverse once
    # TensorFlow has optimized the graph.
    scale = tf.math.divide_no_nan(used, size)
    spread = tf.maximum(scale, 1.0)
    # A number must be the right operand: a left one is float32 in a loaded model.
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
