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

    Args:
        path: The folder.
        flag: The start of messages.

    Returns:
        For each part, "train" or "test", that has files, its images uint8[N, h, w] and
        labels int32[N].
    """
    parts = {}
    for part, (image_file, label_file) in FILES.items():
        if (path / image_file).exists() or (path / f"{image_file}.gz").exists():
            parts[part] = (
                read_idx(path / image_file, flag, 3),
                read_idx(path / label_file, flag, 1).astype(np.int32),
            )
    for part, (images, labels) in parts.items():
        if len(images) != len(labels) or labels.max() > 9:
            raise InvalidInputError(
                f"{flag}: {' and '.join(FILES[part])} have {len(images):,} images and "
                f"{len(labels):,} labels up to {labels.max()}, not as many up to 9."
            )
    return parts


def read_idx(file: pathlib.Path, flag: str, dimensions: int) -> np.ndarray:
    """Reads a file of uint8 values, or the same with .gz.

    It has two zeros, the type 8, the dimensions, and big-endian sizes before them.
    """
    with sources.reading(f"{flag}: {file.name}[.gz]"):
        packed = f"{file}.gz"
        content = file.read_bytes() if file.exists() else unpacking.gunzip(packed)
    start = 4 + 4 * dimensions
    # Python integers, since a damaged header's product may overflow.
    shape = np.frombuffer(content[4:start].ljust(4 * dimensions), ">u4").tolist()
    if content[:4] != bytes([0, 0, 8, dimensions]) or (
        len(content) != start + math.prod(shape)
    ):
        raise InvalidInputError(
            f"{flag}: {file.name} has {len(content):,} bytes; expected an IDX file of "
            f"bytes in {dimensions} dimensions, here {shape}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
