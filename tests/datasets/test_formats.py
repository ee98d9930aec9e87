"""Each kind of image file, as TensorFlow then sees it, beside Pillow's own pixels."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.datasets.images import own_images
from tff_fedss.datasets import formats

PIXELS = own_images.picture(0)
_TRANSPOSED = 6  # Exif: to be turned by 90 degrees clockwise.


def seen(encoded):
    formats.check(encoded, formats.ALL)
    image = tf.io.decode_image(formats.normalized(encoded), 3, expand_animations=False)
    return image.numpy()


@pytest.mark.parametrize(
    "kind, options",
    [("PNG", {}), ("BMP", {}), ("PPM", {}), ("WEBP", {"lossless": True})],
)
def test_lossless_kinds_are_seen_as_they_are(kind, options):
    encoded = own_images.encoded(PIXELS, kind, **options)
    np.testing.assert_array_equal(seen(encoded), PIXELS)
    np.testing.assert_array_equal(formats.pixels(encoded), PIXELS)


def test_what_tensorflow_decodes_stays_as_it_is():
    for kind in ("PNG", "JPEG"):
        encoded = own_images.encoded(PIXELS, kind)
        assert formats.normalized(encoded) is encoded


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA"])
@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_other_colours(mode, kind):
    image = Image.fromarray(PIXELS).convert("RGB")
    image = image.convert(mode)
    if kind == "BMP" and mode in ("LA", "RGBA"):
        pytest.skip("there is no such BMP")
    expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(seen(own_images.encoded(image, kind)), expected)


def test_transparent_pixels_are_white():
    image = Image.fromarray(PIXELS).convert("RGBA")
    image.putalpha(Image.new("L", image.size, 0))
    assert (seen(own_images.encoded(image)) == 255).all()
    palette = Image.fromarray(PIXELS).convert("P")
    encoded = own_images.encoded(palette, transparency=bytes(256))
    assert (seen(encoded) == 255).all()


def test_sixteen_bits():
    grey = (np.arange(120, dtype=np.uint16).reshape(12, 10) * 500).astype(np.uint16)
    expected = np.repeat((grey >> 8).astype(np.uint8)[..., np.newaxis], 3, -1)
    encoded = own_images.encoded(Image.fromarray(grey))
    np.testing.assert_array_equal(formats.pixels(encoded), expected)
    np.testing.assert_allclose(seen(encoded).astype(int), expected, atol=1)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_photographs_stand_upright(kind):
    exif = Image.Exif()
    exif[0x0112] = _TRANSPOSED
    flat = np.zeros((12, 10, 3), np.uint8)
    flat[:, :5] = 250  # The left is bright; turned clockwise, the top is.
    upright = seen(own_images.encoded(flat, kind, exif=exif))
    assert upright.shape == (10, 12, 3)
    assert upright[:4].mean() > 200 > 50 > upright[6:].mean()


def test_an_orientation_that_changes_nothing_stays():
    exif = Image.Exif()
    exif[0x0112] = 1
    encoded = own_images.encoded(PIXELS, "JPEG", exif=exif)
    assert formats.normalized(encoded) is encoded


def test_the_first_of_several_frames():
    frames = [Image.fromarray(own_images.picture(k)) for k in range(3)]
    for kind in ("PNG", "WEBP"):
        encoded = own_images.encoded(
            frames[0], kind, save_all=True, append_images=frames[1:], lossless=True
        )
        np.testing.assert_array_equal(seen(encoded), own_images.picture(0))
