"""The image files that people have, as bytes which TensorFlow decodes rightly.

TensorFlow decodes JPEG and PNG in the input pipeline, without Python. It knows neither
WebP nor PPM, ignores the orientation that a camera writes beside the pixels, and cuts
alpha off, which shows what lies beneath transparent pixels. `normalized` leaves a file
as it is where TensorFlow sees what a person sees, and writes it anew as a PNG where it
would not.
"""

import io

import numpy as np
from PIL import Image, ImageOps

from tff_fedss.datasets import image_files

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
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
_STARTS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"BM",
    b"RIFF",
    *(f"P{k}".encode() for k in range(1, 7)),
)
_ORIENTATION = 0x0112
_EXIF_MARKS = {"JPEG": b"Exif\0\0", "PNG": b"eXIf"}
_EXIF_WITHIN = 1 << 17  # An Exif segment is at most 64 KiB, near the start of a JPEG.
_WHITE = 255


def is_image_name(name: str) -> bool:
    """Whether a file counts as an image by its name: a suffix that is known."""
    return name.lower().endswith(SUFFIXES)


def normalized(encoded: bytes) -> bytes:
    """Returns an image as a JPEG or PNG whose pixels are what a person sees.

    Args:
        encoded: The content of a JPEG, PNG, BMP, WebP or PPM file, known to be whole.

    Returns:
        The same bytes where TensorFlow decodes them rightly; else a PNG: turned as its
        Exif orientation says, transparent pixels on white, the first frame of several.

    Raises:
        ValueError: If it cannot be decoded; the message follows the name of the file.
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
        if not _needs_work(image, encoded):
            return encoded
        return _as_png(_upright_on_white(image))
    except image_files.DECODING_ERRORS as error:
        raise ValueError(image_files.damaged(encoded, error)) from error


def check(encoded: bytes) -> None:
    """Checks that an image decodes whole.

    Args:
        encoded: The content of a file.

    Raises:
        ValueError: If it does not; the message is made to follow the file's name.
    """
    if not encoded:
        raise ValueError("is empty")
    if not encoded.startswith(_STARTS):
        raise ValueError(
            "is no JPEG, PNG, BMP, WebP or PPM image (it has "
            f"{len(encoded):,} bytes and starts with {encoded[:8]!r})"
        )
    if encoded.startswith(_STARTS[:2]):
        image_files.check(encoded)
        return
    try:
        Image.open(io.BytesIO(encoded), formats=_FORMATS).load()
    except image_files.DECODING_ERRORS as error:
        raise ValueError(image_files.damaged(encoded, error)) from error


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
        image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
        return np.asarray(_upright_on_white(image))
    except image_files.DECODING_ERRORS as error:
        raise ValueError(image_files.damaged(encoded, error)) from error


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
        return image_files.eight_bits(image).convert("RGB")
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)  # It copies in any case.
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (_WHITE,) * 4)
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _as_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
