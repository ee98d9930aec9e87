"""Images of an index, each of which is read, decoded and resized once.

Decoding and resizing a photograph takes longer than a small network's training step on
it. A client's images are read again in every round in which it takes part, the test
images in every evaluation.
"""

import contextlib
import os
import zlib

import numpy as np
import tensorflow as tf

from tff_fedss import files
from tff_fedss.datasets import sources
from tff_fedss.datasets.federated.preprocessing import Preprocessing, decode_image
from tff_fedss.datasets.images.index import ImageIndex
from tff_fedss.errors import InvalidInputError, RunStoppedError

_CHECKSUM_BYTES = 4


class ResizedImages:
    """The images of an index, resized, in a file of the cache.

    The file has a record for each row: a checksum and the pixels. What is missing or
    damaged is made again, so several processes can share the file, and one that is
    killed leaves nothing wrong. Without a writable cache each image is always resized.
    """

    def __init__(self, images: ImageIndex, preprocessing: Preprocessing):
        """Opens the file, or begins it; `preprocessing` says how images are resized."""
        self._images = images
        self._shape = (preprocessing.resize_size, preprocessing.resize_size, 3)
        self._record_bytes = _CHECKSUM_BYTES + int(np.prod(self._shape))
        folder = sources.cache_folder()
        names, states = images.identity()
        # The second number is raised when `formats.normalized` gives other pixels.
        kind = f"resized to {preprocessing.resize_size}, 2"
        self._path = folder / f"{sources.digest([kind, *names], states)}.pixels"
        with contextlib.suppress(OSError, InvalidInputError, RunStoppedError):
            files.make_folder(folder)
            open(self._path, "ab").close()
        # As a graph, so that several threads do not wait for Python's lock.
        self._resize = tf.function(
            lambda encoded: preprocessing.resize(decode_image(encoded)),
            input_signature=[tf.TensorSpec([], tf.string)],
        )

    @staticmethod
    def are_smaller(images: ImageIndex, size: int) -> bool:
        """Returns whether images of size x size pixels take fewer bytes than files."""
        return len(images) > 0 and 3 * size * size <= images.mean_bytes()

    def pixels(self, row: int) -> np.ndarray:
        """Returns an image, uint8[resize_size, resize_size, 3].

        Raises:
            RunStoppedError: If it is not kept yet, and its file can no longer be read.
        """
        record = self._read(row)
        checksum, content = record[:_CHECKSUM_BYTES], record[_CHECKSUM_BYTES:]
        if checksum != _checksum(content):
            content = self._make(row)
            self._write(row, _checksum(content) + content)
        return np.frombuffer(content, np.uint8).reshape(self._shape)

    def _make(self, row: int) -> bytes:
        with tf.device("CPU"):
            return self._resize(self._images.encoded(row)).numpy().tobytes()

    def _read(self, row: int) -> bytes:
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            return os.pread(file.fileno(), self._record_bytes, row * self._record_bytes)
        return b""

    def _write(self, row: int, record: bytes) -> None:
        with contextlib.suppress(OSError), open(self._path, "r+b") as file:
            os.pwrite(file.fileno(), record, row * self._record_bytes)


def _checksum(content: bytes) -> bytes:
    # A hole in the file is zeros, whose checksum is not zero.
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little")
