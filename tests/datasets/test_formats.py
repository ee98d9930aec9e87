"""Each kind of image file, whole or damaged, as TensorFlow and Pillow see it."""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps, PngImagePlugin

from tests.datasets.images import own_images
from tests.refusals import refused
from tff_fedss.datasets import formats

PIXELS = own_images.picture(0)
_ORIENTATION, _TRANSPOSED = 0x0112, 6  # Exif: to be turned by 90 degrees clockwise.


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


def png(bits, colours, row, transparent):
    """A PNG of two pixels, and of the value that is transparent, in 16 bits each."""
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", 2, 1, bits, colours, 0, 0, 0),
        b"tRNS": transparent,
        b"IDAT": zlib.compress(b"\0" + row),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks.items()
    )


_GREY, _RGB = 0, 2


@pytest.mark.parametrize(
    "bits, colours, row, transparent",
    [
        (2, _GREY, b"\x60", b"\0\1"),
        (4, _GREY, b"\x5a", b"\0\5"),
        (8, _GREY, b"\x05\xaa", b"\0\5"),
        (16, _GREY, b"\x12\x34\xaa\0", b"\x12\x34"),
        (16, _RGB, 3 * b"\x12\x34" + 3 * b"\xaa\0", 3 * b"\x12\x34"),
    ],
)
def test_the_transparent_value_of_a_png(bits, colours, row, transparent):
    encoded = png(bits, colours, row, transparent)
    for found in (seen(encoded), formats.pixels(encoded)):
        np.testing.assert_array_equal(found, [[[255] * 3, [170] * 3]])


def test_cmyk():
    encoded = own_images.encoded(Image.fromarray(PIXELS).convert("CMYK"), "JPEG")
    np.testing.assert_array_equal(seen(encoded), formats.pixels(encoded))


def test_sixteen_bits():
    grey = (np.arange(120, dtype=np.uint16).reshape(12, 10) * 500).astype(np.uint16)
    expected = np.repeat((grey >> 8).astype(np.uint8)[..., np.newaxis], 3, -1)
    encoded = own_images.encoded(Image.fromarray(grey))
    np.testing.assert_array_equal(formats.pixels(encoded), expected)
    np.testing.assert_allclose(seen(encoded).astype(int), expected, atol=1)
    exif = Image.Exif()
    exif[_ORIENTATION] = _TRANSPOSED
    encoded = own_images.encoded(Image.fromarray(grey), exif=exif)
    np.testing.assert_array_equal(seen(encoded), np.rot90(expected, -1))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_photographs_stand_upright(kind, orientation):
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    encoded = own_images.encoded(PIXELS, kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
    np.testing.assert_array_equal(seen(encoded), upright)


@pytest.mark.parametrize("name", ["Raw profile type exif", "XML:com.adobe.xmp"])
def test_an_orientation_among_the_texts_of_a_png(name):
    exif = Image.Exif()
    exif[_ORIENTATION] = _TRANSPOSED
    texts = PngImagePlugin.PngInfo()
    profile = f"\nexif\n0\n{exif.tobytes().hex()}"
    xmp = f'<x tiff:Orientation="{_TRANSPOSED}"/>'
    texts.add_itxt(name, profile if name.startswith("Raw") else xmp)
    encoded = own_images.encoded(PIXELS, pnginfo=texts)
    for found in (seen(encoded), formats.pixels(encoded)):
        np.testing.assert_array_equal(found, np.rot90(PIXELS, -1))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("exif", [b"Exif\0\0garbage!", b"Exif\0\0MM\0"])
def test_a_photograph_with_damaged_exif_is_as_stored(kind, exif):
    # With a density Pillow leaves a JPEG's Exif unread when it opens the file.
    encoded = own_images.encoded(PIXELS, kind, exif=exif, dpi=(72, 72))
    plain = own_images.encoded(PIXELS, kind)
    np.testing.assert_array_equal(seen(encoded), seen(plain))
    np.testing.assert_array_equal(formats.pixels(encoded), formats.pixels(plain))


def _photo():
    """A smooth picture with noise, so that its files have some length."""
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 255, 60 * 80 * 3).reshape(60, 80, 3)
    noisy = ramp + rng.normal(0, 10, ramp.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def _with_preview(jpeg):
    """Puts a small JPEG into a segment of Exif."""
    content = b"Exif\0\0" + own_images.encoded(PIXELS, "JPEG")
    length = (len(content) + 2).to_bytes(2, "big")
    return jpeg[:2] + b"\xff\xe1" + length + content + jpeg[2:]


_WHOLE = {
    "jpeg with a preview": _with_preview(own_images.encoded(_photo(), "JPEG")),
    "jpeg": own_images.encoded(_photo(), "JPEG"),
    "progressive jpeg": own_images.encoded(_photo(), "JPEG", progressive=True),
    "grey jpeg": own_images.encoded(_photo().convert("L"), "JPEG"),
    "jpeg with a tail": own_images.encoded(_photo(), "JPEG") + b"a camera's notes",
    "png": own_images.encoded(_photo(), "PNG"),
    "palette png": own_images.encoded(_photo().convert("P"), "PNG"),
}


def _tensorflow_decodes(encoded):
    try:
        tf.io.decode_image(bytes(encoded), channels=3, expand_animations=False)
    except tf.errors.InvalidArgumentError:
        return False
    return True


def _passes(encoded):
    try:
        formats.check(encoded)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("kind", _WHOLE)
def test_whole_images_pass(kind):
    assert _passes(_WHOLE[kind]) and _tensorflow_decodes(_WHOLE[kind])


@pytest.mark.parametrize("kind", sorted(_WHOLE.keys() - {"jpeg with a tail"}))
def test_a_file_cut_off_anywhere_is_found(kind):
    whole = _WHOLE[kind]
    lengths = np.unique(np.linspace(1, len(whole) - 1, 60).astype(int))
    for length in [*lengths, len(whole) - 2, len(whole) - 4, len(whole) - 8]:
        assert not _passes(whole[:length]), f"{length} of {len(whole)} bytes"
        assert not _tensorflow_decodes(whole[:length])


def test_damage_is_found_where_tensorflow_finds_it_and_nowhere_else():
    rng = np.random.default_rng(1)
    found, missed = 0, 0
    for kind in ("jpeg", "progressive jpeg", "grey jpeg", "png"):
        whole = _WHOLE[kind]
        for _ in range(60):
            damaged = bytearray(whole)
            where = rng.integers(len(whole) // 2, len(whole), 3)
            damaged[where[0]] ^= int(rng.integers(1, 256))
            damaged[where[1] : where[1] + 20] = bytes(20)
            damaged = bytes(damaged[: where[2]])
            passes, decodes = _passes(damaged), _tensorflow_decodes(damaged)
            assert passes or not decodes, "a false alarm"
            found += not decodes and not passes
            missed += not decodes and passes
    assert found > 200
    # Damage can end the compressed data before the cut: a JPEG has no checksum.
    assert missed <= 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is no whole JPEG or PNG .0 bytes"),
        (own_images.encoded(_photo(), "BMP"), "is no whole JPEG or PNG"),
        (_WHOLE["jpeg"][:-40], "cut off or damaged .*truncated"),
        (_WHOLE["png"][:-4], "cut off or damaged .*its end is missing"),
    ],
)
def test_says_what_is_wrong(content, reason):
    with refused(reason, ValueError) as raised:
        formats.check(content)
    assert "object at 0x" not in str(raised.value)
