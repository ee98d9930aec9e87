"""Preprocessing of stored images for the model (FedSS, Appendix A.2).

"Input images are resized to 256x256 from which a random crop of size 224x224 is taken."
In evaluation the crop is the centre. All is done in the input pipeline, several images
at a time and in parallel with training; pixels are uint8 until the training step.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_fedss import seeds
from tff_fedss.errors import check_range

# A.2: resized to 256, cropped to 224.
_RESIZE_OVER_CROP = 256 / 224


def decode_image(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes the bytes of a JPEG or PNG to RGB, uint8[height, width, 3]."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


class TracedOnce:
    """A transformation that is traced once for each kind of data, not for each client.

    Every client makes a data set in every round. If a graph reads one whose function is
    new, TensorFlow 2.15 never frees the function (0.75 MB for resizing and cropping).
    """

    def __init__(self, transform: Callable[..., tf.data.Dataset]):
        """Keeps a function of (data set, tensors...), and of nothing that changes."""
        self._transform = transform
        self._graphs: dict[str, tuple[Callable[..., tf.Tensor], Any]] = {}

    def __call__(self, data: tf.data.Dataset, *tensors: tf.Tensor) -> tf.data.Dataset:
        """Transforms a data set; tensors always have the same shapes and dtypes."""
        if not tf.executing_eagerly():
            return self._transform(data, *tensors)
        key = str(data.element_spec)
        if key not in self._graphs:
            self._graphs[key] = self._trace(data.element_spec, tensors)
        graph, result_spec = self._graphs[key]
        variant = graph(tf.data.experimental.to_variant(data), *tensors)
        return tf.data.experimental.from_variant(variant, result_spec)

    def _trace(self, element_spec: Any, tensors: tuple[tf.Tensor, ...]):
        result_spec = None

        @tf.function(
            input_signature=[
                tf.TensorSpec([], tf.variant),
                *(tf.TensorSpec(t.shape, t.dtype) for t in tensors),
            ]
        )
        def graph(variant, *tensors):
            nonlocal result_spec
            data = tf.data.experimental.from_variant(variant, element_spec)
            result = self._transform(data, *tensors)
            result_spec = result.element_spec
            return tf.data.experimental.to_variant(result)

        return graph.get_concrete_function(), result_spec


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Reads, resizes and crops images.

    Attributes:
        image_size: Height and width of the result in pixels; the paper's is 224.
        resize_size: Height and width to which images are resized before the crop, by
            bilinear interpolation with antialiasing, ignoring their aspect ratio. None:
            image_size * 256/224, the paper's ratio. Equal to image_size: no crop.
        read: Maps a stored image to uint8[height, width, 3]. Stored images may have any
            structure; the default reads the bytes of a JPEG or PNG.
    """

    image_size: int = 224
    resize_size: int | None = None
    read: Callable[[Any], tf.Tensor] = decode_image

    def __post_init__(self):
        """Fills in and checks the sizes."""
        if self.resize_size is None:
            size = round(self.image_size * _RESIZE_OVER_CROP)
            object.__setattr__(self, "resize_size", size)
        check_range("image_size", self.image_size, 1)
        check_range("resize_size", self.resize_size, self.image_size)

    def training(self, data: tf.data.Dataset, seed: tf.Tensor) -> tf.data.Dataset:
        """Takes a random crop of every stored example, always in the same order.

        A crop is a function of the seed, int32[2], and of the example's position: with
        a client's seed, of (seed, round, client, example). Elements are
        `OrderedDict(image=uint8[image_size, image_size, 3], label=int32[])`.
        """
        return self._random_crops(data, tf.constant(seed, tf.int32))

    @functools.cached_property
    def _random_crops(self) -> TracedOnce:
        def random_crops(data, seed):
            stream = seeds.fold_in(seed, seeds.Stream.CROP)
            return data.enumerate().map(
                lambda index, example: self.random_crop(
                    example, seeds.fold_in(stream, index)
                ),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )

        return TracedOnce(random_crops)

    def evaluation(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Takes the centre of every image of stored examples; returns as `training`."""
        margin = (self.resize_size - self.image_size) // 2

        def central_crop(example):
            return self._crop(example, margin, margin)

        return data.map(
            central_crop, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def random_crop(self, example: Any, seed: tf.Tensor) -> collections.OrderedDict:
        """Reads a stored example and takes a random crop, decided by a seed, int32[2].

        Returns `OrderedDict(image=uint8[image_size, image_size, 3], label=int32[])`.
        """
        top, left = tf.unstack(
            tf.random.stateless_uniform(
                [2],
                seed,
                maxval=self.resize_size - self.image_size + 1,
                dtype=tf.int32,
                alg="philox",
            )
        )
        return self._crop(example, top, left)

    def resize(self, image: tf.Tensor) -> tf.Tensor:
        """Resizes an image to uint8[resize_size, resize_size, 3]."""
        size = [self.resize_size, self.resize_size]
        if image.shape == [*size, 3]:
            return image  # TensorFlow would compute the same pixels.
        resized = tf.image.resize(image, size, antialias=True)
        # Interpolation stays within the range of the image's values, up to rounding.
        return tf.saturate_cast(tf.round(resized), tf.uint8)

    def _crop(self, example: Any, top: Any, left: Any) -> collections.OrderedDict:
        resized = self.resize(self.read(example["image"]))
        pixels = resized[top : top + self.image_size, left : left + self.image_size]
        pixels.set_shape([self.image_size, self.image_size, 3])
        return collections.OrderedDict(image=pixels, label=example["label"])
