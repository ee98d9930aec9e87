"""Whether an encoded image can be decoded whole, found at a fraction of the cost."""

import concurrent.futures
import io
import os
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import tqdm
from PIL import Image

from tff_fedss.errors import InvalidInputError

Item = TypeVar("Item")

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_JPEG_SCAN, _JPEG_END = b"\xff\xda", b"\xff\xd9"

# Pillow reports a damaged file by any of these.
DECODING_ERRORS = (
    OSError,  # includes UnidentifiedImageError
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


def check(encoded: bytes) -> None:
    """Checks that an image is a JPEG or a PNG which TensorFlow will decode.

    A JPEG is decoded at 1/8 of its size. That goes through all of its compressed data,
    so that a file which was cut off is found, but skips most of the arithmetic. A PNG
    is decoded in full, and its checksums are compared. Grey, palette, CMYK and 16 bit
    images pass, as `tf.io.decode_image(channels=3)` decodes them. A JPEG has no
    checksum, so that bytes which changed within it can pass.

    Pillow leaves other Python threads running while it decodes.

    Args:
        encoded: The content of the file.

    Raises:
        ValueError: If it cannot be decoded whole. The message is the reason, made to
            follow the name of the file: "is cut off or damaged (...)".
    """
    if not encoded:
        raise ValueError("is empty")
    if not encoded.startswith((_JPEG, _PNG)):
        raise ValueError(
            f"is neither a JPEG nor a PNG (it has {len(encoded):,} bytes and starts "
            f"with {encoded[:8]!r})"
        )
    try:
        if encoded.startswith(_PNG):
            # `load` does not go on to the end of the file, and TensorFlow does.
            if _PNG_END not in encoded:
                raise EOFError("its end is missing")
            Image.open(io.BytesIO(encoded), formats=["PNG"]).verify()
        image = Image.open(io.BytesIO(encoded), formats=["JPEG", "PNG"])
        image.draft(None, (1, 1))
        image.load()
        # Pillow reads past it, and TensorFlow does not. (A preview before the image's
        # own data has an end too.)
        if image.format == "JPEG" and (
            encoded.find(_JPEG_END, encoded.find(_JPEG_SCAN)) < 0
        ):
            raise EOFError("its end is missing")
    except DECODING_ERRORS as e:
        raise ValueError(damaged(encoded, e)) from e


def damaged(encoded: bytes, error: Exception) -> str:
    """Says what is wrong with an image that raised one of `DECODING_ERRORS`.

    Args:
        encoded: The content of the file.
        error: What was raised.

    Returns:
        Text made to follow the name of the file.
    """
    return f"is cut off or damaged ({len(encoded):,} bytes; {_reason(error)})"


def check_all(
    images: Sequence[Item], problem: Callable[[Item], str | None], what: str
) -> None:
    """Checks many images, several at a time, with a bar if it takes over 2 seconds.

    Args:
        images: What stands for each.
        problem: Says what is wrong with one; None if nothing is.
        what: What they are, for the bar.

    Raises:
        InvalidInputError: If something is wrong with one; of several, the first.
    """
    stop = threading.Event()

    def unless_stopped(image: Item) -> str | None:
        return None if stop.is_set() else problem(image)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for found in tqdm.tqdm(
                pool.map(unless_stopped, images),
                desc=f"Checking {what}",
                total=len(images),
                unit=" images",
                delay=2,
                disable=None,
            ):
                if found:
                    raise InvalidInputError(found)
        finally:
            stop.set()


def decode(encoded: bytes) -> Image.Image:
    """Decodes an image, for use without TensorFlow.

    Args:
        encoded: The content of the file.

    Raises:
        ValueError: As `check` does.
    """
    check(encoded)
    return load(encoded)


def load(encoded: bytes) -> Image.Image:
    """Decodes an image that `check` has found whole; 16 bits a pixel become 8."""
    image = Image.open(io.BytesIO(encoded), formats=["JPEG", "PNG"])
    image.load()
    return eight_bits(image) if image.mode.startswith("I") else image


def eight_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 bits a pixel as one of 8."""
    # Pillow's own conversion makes everything white from 255 on.
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _reason(error: Exception) -> str:
    # That exception's message shows the address of a buffer in memory.
    if isinstance(error, Image.UnidentifiedImageError):
        return "its header cannot be read"
    return " ".join(str(error).split()) or type(error).__name__
