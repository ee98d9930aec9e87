"""Fingerprints of data: by what a run that goes on knows its data again.

A fingerprint is a flat mapping from words to numbers and short digests, which can be
kept as JSON. It says what was read, and neither where it lay nor when it was written:
the same data have the same fingerprint in every process and on every machine. Two
fingerprints that differ name the difference by their keys.

Up to `MAX_BYTES` the contents are digested whole. Of more than that a fixed sample is,
spread evenly, so that a fingerprint costs a second or two at any size.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

Fingerprint = dict[str, int | str]

MAX_BYTES = 256 * 2**20
_DIGEST_BYTES = 8
_BLOCK_BYTES = 1 << 20  # of a file that is read whole
_SAMPLE_BLOCKS = 256  # of files that are not, each of:
_SAMPLE_BLOCK_BYTES = 1 << 16
_ROWS_AT_A_TIME = 4096


def of_text(parts: Iterable[str]) -> str:
    """Digests texts, such as names, in their order."""
    digest = _new()
    for part in parts:
        _add_bytes(digest, part.encode(errors="surrogateescape"))
    return digest.hexdigest()


def of_numbers(numbers: Iterable[int]) -> str:
    """Digests whole numbers, such as counts, in their order."""
    return of_arrays([np.fromiter(numbers, np.int64)])


def of_arrays(arrays: Sequence[np.ndarray], max_bytes: int = MAX_BYTES) -> str:
    """Digests arrays in their order: types, shapes and contents.

    Args:
        arrays: Of numbers, or object[N] of bytes. Where they have more than max_bytes
            together, every s-th row of each is digested, s being as small as possible.
        max_bytes: The most to digest.
    """
    step = max(1, -(-sum(map(_num_bytes, arrays)) // max_bytes))
    digest = _new()
    for array in arrays:
        # "i4", say: not the order of the bytes, which is little-endian below.
        _add_bytes(digest, f"{array.dtype.str[1:]} {array.shape}".encode())
        rows = array[::step]
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows[start : start + _ROWS_AT_A_TIME]
            if part.dtype == object:
                for item in part:
                    _add_bytes(digest, item)
            else:
                little_endian = part.dtype.newbyteorder("<")
                digest.update(np.ascontiguousarray(part, little_endian).data)
    return digest.hexdigest()


def of_stream(batches: Iterable[Sequence[np.ndarray]]) -> str:
    """Digests the start of a stream of arrays, up to `MAX_BYTES` and a batch.

    Args:
        batches: Some arrays at a time, as for `of_arrays`.
    """
    digest, num_bytes = _new(), 0
    for arrays in batches:
        _add_bytes(digest, of_arrays(arrays).encode())
        num_bytes += sum(map(_num_bytes, arrays))
        if num_bytes >= MAX_BYTES:
            break
    return digest.hexdigest()


def of_files(paths: Sequence[str | os.PathLike], what: str) -> Fingerprint:
    """Digests files in their order: their names without folders, sizes and contents.

    Args:
        paths: The files.
        what: What to call them in the keys, such as "record files".

    Raises:
        OSError: If one cannot be read.
    """
    sizes = [os.path.getsize(path) for path in paths]
    names = [os.path.basename(path) for path in paths]
    digest = _new()
    for number, start, length in _blocks(sizes):
        with open(paths[number], "rb") as file:
            file.seek(start)
            while length > 0 and (block := file.read(min(length, _BLOCK_BYTES))):
                digest.update(block)
                length -= len(block)
    return {
        what: len(paths),
        f"bytes of {what}": sum(sizes),
        f"names and sizes of {what}": of_text(
            f"{name} {size}" for name, size in zip(names, sizes, strict=True)
        ),
        f"contents of {what}": digest.hexdigest(),
    }


def evenly_spaced(total: int, most: int) -> list[int]:
    """Returns at most so many of the numbers 0..total-1, the same for a total."""
    count = min(total, most)
    return [i * total // count for i in range(count)]


def shape_text(shape: Iterable[int]) -> str:
    """Writes the shape of an example, such as "28 x 28 x 1"."""
    return " x ".join(map(str, shape))


def _blocks(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields what to read: the number of a file, a position and a length in it."""
    ends = list(itertools.accumulate(sizes))
    total = ends[-1] if ends else 0
    if total <= MAX_BYTES:
        yield from ((number, 0, size) for number, size in enumerate(sizes))
        return
    for position in evenly_spaced(total, _SAMPLE_BLOCKS):
        number = int(np.searchsorted(ends, position, "right"))
        yield number, position - (ends[number] - sizes[number]), _SAMPLE_BLOCK_BYTES


def _new():
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def _add_bytes(digest, content: bytes) -> None:
    # With its length: ("ab", "c") is not ("a", "bc").
    digest.update(len(content).to_bytes(8, "little"))
    digest.update(content)


def _num_bytes(array: np.ndarray) -> int:
    return sum(map(len, array)) if array.dtype == object else array.nbytes
