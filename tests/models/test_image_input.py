import functools

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.models import ImageInput

SIZES = ((28, 28), (105, 105), (37, 91), (200, 33), (10, 12), (29, 130), (64, 64))


def pictures():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in SIZES]


def as_a_graph(image_input, **options):
    """As in use: TensorFlow optimizes the graph, without a known size."""
    spec = tf.TensorSpec([None, None, None, 3], tf.uint8)
    return tf.function(
        functools.partial(image_input, **options),
        input_signature=[spec],
        autograph=False,
    )


@pytest.mark.parametrize("sizes", [(56, 64), (28, 28), (48, None)])
@pytest.mark.parametrize("of_basic_ops", [False, True])
def test_antialias_gives_the_pixels_of_a_runs_evaluation(sizes, of_basic_ops):
    preprocessing = Preprocessing(*sizes, read=lambda image: image)
    apply = as_a_graph(
        ImageInput(sizes[0], resize_size=preprocessing.resize_size),
        of_basic_ops=of_basic_ops,
    )
    for image in pictures():
        data = tf.data.Dataset.from_tensors({"image": image, "label": 0})
        (example,) = preprocessing.evaluation(data)
        np.testing.assert_array_equal(
            apply(image[np.newaxis])[0], example["image"].numpy()
        )


@pytest.mark.parametrize(
    "image_input",
    [
        ImageInput(28, 1, resizing="box", inverted=True),
        ImageInput(20, resizing="box"),
        ImageInput(20, resizing="bilinear"),
        ImageInput(24, resize_size=28, resizing="bilinear", cut_square=True),
        ImageInput(28, 1, resizing="bilinear", cut_square=True),
    ],
    ids=str,
)
def test_pillows_filters_give_pillows_pixels(image_input):
    apply = as_a_graph(image_input)
    filters = {"box": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR}
    kind, size = filters[image_input.resizing], (image_input.resize_size,) * 2
    first = (image_input.resize_size - image_input.image_size) // 2
    cut = slice(first, first + image_input.image_size)
    for image in pictures():
        pillow = Image.fromarray(image)
        if image_input.channels == 1:
            pillow = pillow.convert("L")
        pillow = (
            ImageOps.fit(pillow, size, kind)
            if image_input.cut_square
            else pillow.resize(size, kind)
        )
        expected = np.asarray(pillow).reshape(*size, -1)[cut, cut].astype(np.float32)
        if image_input.inverted:
            expected = 255 - expected
        np.testing.assert_array_equal(apply(image[np.newaxis])[0], expected)


def test_images_go_through_together():
    image_input = ImageInput(20, resizing="box")
    images = np.stack([p[:28, :28] for p in pictures() if min(p.shape[:2]) >= 28])
    together = as_a_graph(image_input)(images)
    for image, result in zip(images, together, strict=True):
        np.testing.assert_array_equal(image_input(image[np.newaxis])[0], result)
