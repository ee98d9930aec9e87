"""Formats of encoded images: checks that one decodes, and conversion for TensorFlow.

TensorFlow decodes JPEG and PNG in the input pipeline, without Python. It cannot read
WebP or PPM, ignores the orientation in a photograph's Exif data, finds other colours in
CMYK than Pillow, and drops alpha, which shows the colours of transparent pixels.
`normalized` keeps a file that TensorFlow decodes as viewers do, and converts others to
PNG.
"""

import io
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

from tff_fedss import files

SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".png",
    ".bmp",
    ".webp",
    ".ppm",
    ".pgm",
    ".pbm",
    ".pnm",
)
OF_TENSORFLOW = ("JPEG", "PNG")
ALL = (*OF_TENSORFLOW, "BMP", "WEBP", "PPM")
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_JPEG_END = b"\xff\xd9"
_ORIENTATION = 0x0112
# Exif's orientations other than upright, and what turns the stored pixels upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# What comes before an orientation, in all the places where Pillow finds one.
_EXIF_MARKS = {
    "JPEG": (b"Exif\0\0",),
    "PNG": (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp"),
}
_EXIF_WITHIN = 1 << 17  # An Exif segment is at most 64 KiB, near the start of a JPEG.
_WHITE = 255
# Brings the transparent value of a PNG to the eight bits of Pillow's pixels.
_TO_8_BITS = {
    "L;2": lambda grey: 85 * grey,
    "L;4": lambda grey: 17 * grey,
    "RGB;16B": lambda colour: tuple(value >> 8 for value in colour),
}

# Pillow's errors for damaged files.
_DECODING_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def is_image_name(name: str) -> bool:
    """Returns whether a file's name has a known image suffix."""
    return name.lower().endswith(SUFFIXES)


def check(encoded: bytes, formats: Sequence[str] = OF_TENSORFLOW) -> None:
    """Checks that an image decodes whole, at a fraction of the cost.

    A JPEG is decoded at 1/8 of its size. This reads all of its compressed data, so that
    a truncated file is found, but skips most of the arithmetic. A PNG is decoded in
    full, and its checksums are compared. Grey, palette, CMYK and 16 bit images pass,
    since `tf.io.decode_image(channels=3)` decodes them. A JPEG has no checksum, so
    changed bytes within it can pass. Pillow releases the GIL while it decodes.

    Args:
        formats: The accepted formats, by Pillow's names.

    Raises:
        ValueError: If it cannot be decoded whole. The message is the reason, to follow
            the file's name: "is cut off or damaged (...)".
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=formats)
        if image.format == "PNG":
            # `load` does not read to the end of the file, and TensorFlow does.
            if _PNG_END not in encoded:
                raise EOFError("its end is missing")
            image.verify()
            image = Image.open(io.BytesIO(encoded), formats=formats)
        start = image.fp.tell()
        image.draft(None, (1, 1))
        image.load()
        # Pillow accepts a missing end, and TensorFlow does not. (A preview before the
        # image's own data also has an end.)
        if image.format == "JPEG" and encoded.find(_JPEG_END, start) < 0:
            raise EOFError("its end is missing")
    except Image.UnidentifiedImageError as error:
        raise ValueError(
            f"is no whole {', '.join(formats[:-1])} or {formats[-1]} "
            f"({len(encoded):,} bytes, the first of them {encoded[:8]!r})"
        ) from error
    except _DECODING_ERRORS as error:
        raise _damaged(encoded, error) from error


def normalized(encoded: bytes) -> bytes:
    """Returns an image as a JPEG or PNG whose pixels are what a person sees.

    Args:
        encoded: The content of a file of one of the formats `ALL`, known to be whole.

    Returns:
        The same bytes if TensorFlow decodes them correctly; otherwise a PNG: rotated by
        the Exif orientation, transparent pixels on white, the first frame of several.

    Raises:
        ValueError: If it cannot be decoded; the message follows the name of the file.
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=ALL)
        if not _needs_work(image, encoded):
            return encoded
        buffer = io.BytesIO()
        upright_on_white(image).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()
    except _DECODING_ERRORS as error:
        raise _damaged(encoded, error) from error


def pixels(encoded: bytes) -> np.ndarray:
    """Decodes to `normalized`'s pixels without TensorFlow, uint8[height, width, 3].

    `check` has found the content whole. Raises ValueError if it cannot be decoded;
    the message follows the name of the file.
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=ALL)
        return np.asarray(upright_on_white(image))
    except _DECODING_ERRORS as error:
        raise _damaged(encoded, error) from error


def _damaged(encoded: bytes, error: Exception) -> ValueError:
    # UnidentifiedImageError's own message has a memory address.
    reason = (
        "its header cannot be read"
        if isinstance(error, Image.UnidentifiedImageError)
        else files.error_text(error)
    )
    return ValueError(f"is cut off or damaged ({len(encoded):,} bytes; {reason})")


def _needs_work(image: Image.Image, encoded: bytes) -> bool:
    marks = _EXIF_MARKS.get(image.format, ())
    # TensorFlow cannot decode (all kinds of) the format, or finds other colours.
    if not marks or image.mode == "CMYK":
        return True
    if "A" in image.getbands() or "transparency" in image.info:
        return True
    # Checked first: reading a PNG's Exif by Pillow decodes the image.
    within = encoded if image.format == "PNG" else encoded[:_EXIF_WITHIN]
    return any(mark in within for mark in marks) and _turn(image) is not None


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Returns what turns an image upright; None: nothing, or its Exif is damaged."""
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION))
    except _DECODING_ERRORS:
        return None


def upright_on_white(image: Image.Image) -> Image.Image:
    """Returns an image in RGB, upright by its Exif, on white where it is transparent.

    Of 16 bits, the higher eight are kept.
    """
    stored = image.tile[0][3] if image.tile else None  # It has no tile once loaded.
    transparent = image.info.get("transparency")
    turn = _turn(image)
    if transparent is not None and stored in _TO_8_BITS:
        image.info["transparency"] = _TO_8_BITS[stored](transparent)
    if image.mode.startswith("I"):
        # 16 bits. Pillow's conversion makes all values from 255 on white.
        values = np.asarray(image)
        grey = (values >> 8).astype(np.uint8)
        grey[values == transparent] = _WHITE
        image = Image.fromarray(grey)
    elif "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (_WHITE,) * 4)
        image = Image.alpha_composite(white, image)
    image = image.convert("RGB")
    return image if turn is None else image.transpose(turn)
