"""Labelled images in MNIST's own files: IDX, gzipped or not."""

import gzip
import math
import os
import pathlib
import zlib
from collections.abc import Iterable

import numpy as np
from PIL import Image

from tff_fedss import files
from tff_fedss.datasets.central.labelled_images.images import (
    EXPECTED,
    LabelledImages,
    Source,
    as_array,
    check_memory,
    check_num_classes,
    fitted,
)
from tff_fedss.errors import InvalidInputError

_IDX = {
    part: (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    for part, prefix in (("train", "train"), ("test", "t10k"))
}
# Without a test part, so many images of the training part stand for one test image.
_HELD_OUT_OF = 5


def load(
    name: str, path: pathlib.Path, flag: str, source: Source, image_size: int | None
) -> LabelledImages:
    """Reads `train-images-idx3-ubyte`, ..., with or without `.gz`.

    Args:
        name: What to call the data set.
        path: The folder.
        flag: What a message is to begin with.
        source: What the images are.
        image_size: See `loading.load`.

    Returns:
        The data set. If there are files of one part only, every fifth image becomes
        the test.

    Raises:
        InvalidInputError: If a file is missing or damaged, or the images do not fit
            into memory.
    """
    parts, note = {}, ""
    for part, names in _IDX.items():
        found = [_one_of(path, file_name) for file_name in names]
        if not any(found):
            continue
        for file_name, file in zip(names, found, strict=True):
            if file is None:
                raise InvalidInputError(f"{flag}: {file_name}[.gz] is missing.")
        images, labels = (
            _read_idx(file, flag, dimensions)
            for file, dimensions in zip(found, (3, 1), strict=True)
        )
        if len(images) != len(labels) or len(images) < 2:
            raise InvalidInputError(
                f"{flag}: {names[0]} has {len(images):,} images, {names[1]} "
                f"{len(labels):,} labels; expected as many, and two or more."
            )
        if labels.max() >= source.num_classes:
            place = int(np.argmax(labels >= source.num_classes))
            raise InvalidInputError(
                f"{flag}: {found[1].name} has the label {labels[place]} at offset "
                f"{_idx_header_bytes(1) + place:,}; {name} has the labels 0 to "
                f"{source.num_classes - 1}."
            )
        parts[part] = images, labels.astype(np.int32)
    if not parts:
        raise InvalidInputError(f"{flag}: expected {EXPECTED}.")
    if image_size is not None:
        counts = (len(parts[part][1]) if part in parts else 0 for part in _IDX)
        check_memory(*counts, (image_size, image_size, source.channels))
    parts = {
        part: (_converted(images, source.channels, image_size), labels)
        for part, (images, labels) in parts.items()
    }
    if len(parts) == 1:
        ((part, (images, labels)),) = parts.items()
        is_test = np.arange(len(labels)) % _HELD_OUT_OF == 0
        parts = {
            "train": (images[~is_test], labels[~is_test]),
            "test": (images[is_test], labels[is_test]),
        }
        note = (
            f"of the {part} files alone: every {_HELD_OUT_OF}th image is a test image"
        )
    shapes = {part: images.shape[1:] for part, (images, _) in parts.items()}
    if shapes["train"] != shapes["test"] or not all(shapes["train"]):
        raise InvalidInputError(
            f"{flag}: training images are of shape {shapes['train']}, test images of "
            f"{shapes['test']}."
        )
    num_classes = 1 + max(int(labels.max()) for _, labels in parts.values())
    missing = np.setdiff1d(np.arange(num_classes), parts["train"][1])
    if len(missing):
        raise InvalidInputError(
            f"{flag}: no training image has the label {missing[0]}; expected some of "
            f"each of 0 to {num_classes - 1}."
        )
    check_num_classes(num_classes, flag)
    return LabelledImages(
        name,
        tuple(map(str, range(num_classes))),
        *parts["train"],
        *parts["test"],
        note=note,
    )


def _one_of(path: pathlib.Path, file_name: str) -> pathlib.Path | None:
    candidates = (path / file_name, path / f"{file_name}.gz")
    return next((file for file in candidates if os.path.lexists(file)), None)


def _read_idx(file: pathlib.Path, flag: str, dimensions: int) -> np.ndarray:
    """Reads uint8 values: two zeros, the type 8, the dimensions, big-endian sizes."""
    try:
        content = files.read(file)
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        reason = files.error_text(error)
        raise InvalidInputError(
            f"{flag}: {file.name} is unreadable or damaged: {reason}."
        ) from error
    start = _idx_header_bytes(dimensions)
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < start:
        raise InvalidInputError(
            f"{flag}: {file.name} is no IDX file of bytes in {dimensions} dimensions."
        )
    # Python's own numbers: the product of what a damaged header says may be any.
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    if len(content) != start + math.prod(shape):
        raise InvalidInputError(
            f"{flag}: {file.name} has {len(content):,} bytes; its header says "
            f"{start + math.prod(shape):,}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _idx_header_bytes(dimensions: int) -> int:
    return 4 + 4 * dimensions


def _converted(
    images: Iterable[np.ndarray], channels: int, image_size: int | None
) -> np.ndarray:
    return np.stack(
        [as_array(fitted(Image.fromarray(i), image_size), channels) for i in images]
    )
