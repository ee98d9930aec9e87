"""Formats of encoded images: whether one decodes whole, and what it shows.

TensorFlow decodes JPEG and PNG in the input pipeline, without Python. It knows neither
WebP nor PPM, ignores the orientation that a camera writes beside the pixels, and cuts
alpha off, which shows what lies beneath transparent pixels. `normalized` leaves a file
as it is where TensorFlow sees what a person sees, and writes it as a PNG where it would
not.
"""

import io
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageOps

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
_JPEG_SCAN, _JPEG_END = b"\xff\xda", b"\xff\xd9"
_ORIENTATION = 0x0112
_EXIF_MARKS = {"JPEG": b"Exif\0\0", "PNG": b"eXIf"}
_EXIF_WITHIN = 1 << 17  # An Exif segment is at most 64 KiB, near the start of a JPEG.
_WHITE = 255

# Pillow reports a damaged file by any of these.
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
    """Whether a file counts as an image by its name: a suffix that is known."""
    return name.lower().endswith(SUFFIXES)


def check(encoded: bytes, formats: Sequence[str] = OF_TENSORFLOW) -> None:
    """Checks that an image decodes whole, at a fraction of the cost.

    A JPEG is decoded at 1/8 of its size. That goes through all of its compressed data,
    so that a file which was cut off is found, but skips most of the arithmetic. A PNG
    is decoded in full, and its checksums are compared. Grey, palette, CMYK and 16 bit
    images pass, as `tf.io.decode_image(channels=3)` decodes them. A JPEG has no
    checksum, so that bytes which changed within it can pass.

    Pillow leaves other Python threads running while it decodes.

    Args:
        encoded: The content of the file.
        formats: Those that are taken, in Pillow's words.

    Raises:
        ValueError: If it cannot be decoded whole. The message is the reason, made to
            follow the name of the file: "is cut off or damaged (...)".
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=formats)
        if image.format == "PNG":
            # `load` does not go on to the end of the file, and TensorFlow does.
            if _PNG_END not in encoded:
                raise EOFError("its end is missing")
            image.verify()
            image = Image.open(io.BytesIO(encoded), formats=formats)
        image.draft(None, (1, 1))
        image.load()
        # Pillow reads past it, and TensorFlow does not. (A preview before the image's
        # own data has an end too.)
        if image.format == "JPEG" and (
            encoded.find(_JPEG_END, encoded.find(_JPEG_SCAN)) < 0
        ):
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
        The same bytes where TensorFlow decodes them rightly; else a PNG: turned as its
        Exif orientation says, transparent pixels on white, the first frame of several.

    Raises:
        ValueError: If it cannot be decoded; the message follows the name of the file.
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=ALL)
        if not _needs_work(image, encoded):
            return encoded
        buffer = io.BytesIO()
        _upright_on_white(image).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()
    except _DECODING_ERRORS as error:
        raise _damaged(encoded, error) from error


def pixels(encoded: bytes) -> np.ndarray:
    """Decodes an image for use without TensorFlow, as `normalized` means it.

    Args:
        encoded: The content of a file that `check` has found whole.

    Returns:
        uint8[height, width, 3].

    Raises:
        ValueError: If it cannot be decoded; the message follows the name of the file.
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=ALL)
        return np.asarray(_upright_on_white(image))
    except _DECODING_ERRORS as error:
        raise _damaged(encoded, error) from error


def _damaged(encoded: bytes, error: Exception) -> ValueError:
    # UnidentifiedImageError's own message shows the address of a buffer in memory.
    reason = (
        "its header cannot be read"
        if isinstance(error, Image.UnidentifiedImageError)
        else files.error_text(error)
    )
    return ValueError(f"is cut off or damaged ({len(encoded):,} bytes; {reason})")


def _needs_work(image: Image.Image, encoded: bytes) -> bool:
    mark = _EXIF_MARKS.get(image.format)
    if mark is None:  # TensorFlow does not know the format, or (BMP) all kinds of it.
        return True
    if "A" in image.getbands() or "transparency" in image.info:
        return True
    # Looked for first: to ask Pillow for the Exif of a PNG decodes it.
    within = encoded if image.format == "PNG" else encoded[:_EXIF_WITHIN]
    return mark in within and image.getexif().get(_ORIENTATION, 1) != 1


def _upright_on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16 bits. Pillow's own conversion makes everything white from 255 on.
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)  # It copies in any case.
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (_WHITE,) * 4)
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")
