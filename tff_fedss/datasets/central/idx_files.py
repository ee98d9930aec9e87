"""MNIST's own files of labelled images: IDX, gzipped or not."""

import math
import pathlib

import numpy as np

from tff_fedss import unpacking
from tff_fedss.datasets import sources
from tff_fedss.errors import InvalidInputError

FILES = {
    part: (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    for part, prefix in (("train", "train"), ("test", "t10k"))
}


def read(path: pathlib.Path, flag: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Reads `train-images-idx3-ubyte`, ..., with or without `.gz`.

    For each part, "train" or "test", that has files, it returns images uint8[N, h,
    w] and labels int32[N]. `flag` is the start of messages.
    """
    parts = {}
    for part, (image_file, label_file) in FILES.items():
        images = _stored(path / image_file)
        if images.exists():
            labels = read_idx(_stored(path / label_file), flag, 1)
            parts[part] = read_idx(images, flag, 3), labels.astype(np.int32)
    if not parts:
        names = " or ".join(f"{image_file}[.gz]" for image_file, _ in FILES.values())
        raise InvalidInputError(f"{flag}: found no {names}.")
    for part, (images, labels) in parts.items():
        largest = labels.max(initial=0)
        if not images.size or len(images) != len(labels) or largest > 9:
            count = f"{len(images):,} images of {images.shape[1]}x{images.shape[2]}"
            found = f"{count} pixels, {len(labels):,} labels to {largest}"
            raise InvalidInputError(f"{flag}: {FILES[part]} have {found}, not to 9.")
    return parts


def _stored(file: pathlib.Path) -> pathlib.Path:
    """Returns the file, or the same with `.gz` if it is not there."""
    return file if file.exists() else file.with_name(f"{file.name}.gz")


def read_idx(file: pathlib.Path, flag: str, dimensions: int) -> np.ndarray:
    """Reads a file of uint8 values, gzipped if its name ends in `.gz`.

    It has two zeros, the type 8, the dimensions, and big-endian sizes before them.
    """
    with sources.reading(f"{flag}: {file.name}"):
        is_packed = file.suffix == ".gz"
        content = unpacking.gunzip(file) if is_packed else file.read_bytes()
    start = 4 + 4 * dimensions
    # Python integers, since a damaged header's product may overflow.
    shape = np.frombuffer(content[4:start].ljust(4 * dimensions), ">u4").tolist()
    is_idx = content[:4] == bytes([0, 0, 8, dimensions])
    if not is_idx or len(content) != start + math.prod(shape):
        raise InvalidInputError(
            f"{flag}: {file.name} has {len(content):,} bytes; expected an IDX file of "
            f"bytes in {dimensions} dimensions, here {shape}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
