"""Labelled images in MNIST's own files: IDX, gzipped or not."""

import gzip
import math
import pathlib

import numpy as np
from PIL import Image

from tff_fedss.datasets import sources
from tff_fedss.datasets.central.labelled_images.images import (
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
    """
    parts = {}
    for part, (image_file, label_file) in _IDX.items():
        if (path / image_file).exists() or (path / f"{image_file}.gz").exists():
            parts[part] = (
                _read_idx(path / image_file, flag, 3),
                _read_idx(path / label_file, flag, 1).astype(np.int32),
            )
    for part, (images, labels) in parts.items():
        if len(images) != len(labels) or labels.max() >= source.num_classes:
            raise InvalidInputError(
                f"{flag}: {' and '.join(_IDX[part])} have {len(images):,} images and "
                f"{len(labels):,} labels up to {labels.max()}; expected as many, up to "
                f"{source.num_classes - 1}."
            )
    if image_size is not None:
        counts = (len(parts[part][1]) if part in parts else 0 for part in _IDX)
        check_memory(*counts, (image_size, image_size, source.channels))
    parts = {
        part: (_converted(images, source.channels, image_size), labels)
        for part, (images, labels) in parts.items()
    }
    note = ""
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
    train, test = parts["train"], parts["test"]
    num_classes = 1 + int(max(train[1].max(), test[1].max()))
    if missing := set(range(num_classes)) - {*train[1].tolist()}:
        raise InvalidInputError(
            f"{flag}: no training image has the label {min(missing)}; expected some of "
            f"each of 0 to {num_classes - 1}."
        )
    check_num_classes(num_classes, flag)
    class_names = tuple(map(str, range(num_classes)))
    return LabelledImages(name, class_names, *train, *test, note=note)


def _read_idx(file: pathlib.Path, flag: str, dimensions: int) -> np.ndarray:
    """Reads uint8 values: two zeros, the type 8, the dimensions, big-endian sizes."""
    with sources.reading(f"{flag}: {file.name}[.gz]"):
        if file.exists():
            content = file.read_bytes()
        else:
            content = gzip.decompress(pathlib.Path(f"{file}.gz").read_bytes())
    start = 4 + 4 * dimensions
    # Python's own numbers: the product of what a damaged header says may be any.
    shape = np.frombuffer(content[4:start].ljust(4 * dimensions), ">u4").tolist()
    if content[:4] != bytes([0, 0, 8, dimensions]) or (
        len(content) != start + math.prod(shape)
    ):
        raise InvalidInputError(
            f"{flag}: {file.name} has {len(content):,} bytes; expected an IDX file of "
            f"bytes in {dimensions} dimensions, here {shape}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _converted(images: np.ndarray, channels: int, image_size: int | None) -> np.ndarray:
    return np.stack(
        [as_array(fitted(Image.fromarray(i), image_size), channels) for i in images]
    )
