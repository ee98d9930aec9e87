"""Data fingerprints, by which a resumed run checks that its data have not changed.

A fingerprint is a flat mapping from words to numbers and short digests, stored as JSON.
It depends on the data, not on paths or times: the same data have the same fingerprint
in every process and on every machine. Keys name the difference of two fingerprints.

Contents of up to `MAX_BYTES` are digested whole, larger ones by a fixed, evenly spread
sample, so that a fingerprint takes a second or two at any size.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Fingerprint = dict[str, int | str]

MAX_BYTES = 256 * 2**20
_DIGEST_BYTES = 8
_SAMPLED = 256  # images sampled from a larger data set
_ROWS_AT_A_TIME = 4096


def of(parts: Mapping[str, Any]) -> Fingerprint:
    """Makes the fingerprint of data from their parts.

    Args:
        parts: Parts by name. Numbers and texts are kept, and a shape (a tuple of
            numbers) becomes a text. These are digested: an array, or a list of arrays;
            a list of texts, such as names; an iterator over batches, which are lists of
            arrays, up to `MAX_BYTES`.
    """
    result = {}
    for name, part in parts.items():
        if isinstance(part, tuple) and isinstance(part[0], int):
            part = " x ".join(map(str, part))
        elif isinstance(part, Iterator):
            part = _of_stream(part)
        elif isinstance(part, np.ndarray):
            part = of_arrays([part])
        elif isinstance(part, Sequence) and not isinstance(part, str):
            is_text = not part or isinstance(part[0], str)
            part = _of_text(part) if is_text else of_arrays(part)
        result[name] = part
    return result


def sample(sizes: np.ndarray) -> np.ndarray:
    """Returns the positions of the images to digest; sizes are in bytes, int64[N]."""
    if sizes.sum() <= MAX_BYTES:
        return np.arange(len(sizes))
    return np.array(evenly_spaced(len(sizes), _SAMPLED))


def evenly_spaced(total: int, most: int) -> list[int]:
    """Returns up to a number of evenly spaced integers in 0..total-1."""
    count = min(total, most)
    return [i * total // count for i in range(count)]


def of_arrays(arrays: Sequence[np.ndarray]) -> str:
    """Digests arrays of numbers, or object[N] of bytes: types, shapes and contents.

    If they have more than `MAX_BYTES` together, every s-th row of each is digested,
    with the smallest possible s.
    """
    step = max(1, -(-sum(map(_num_bytes, arrays)) // MAX_BYTES))
    digest = _new()
    for array in arrays:
        # Such as "i4", without the byte order, which is little-endian below.
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


def _of_stream(batches: Iterable[Sequence[np.ndarray]]) -> str:
    digest, num_bytes = _new(), 0
    for arrays in batches:
        _add_bytes(digest, of_arrays(arrays).encode())
        num_bytes += sum(map(_num_bytes, arrays))
        if num_bytes >= MAX_BYTES:
            break
    return digest.hexdigest()


def _of_text(texts: Iterable[str]) -> str:
    digest = _new()
    for text in texts:
        _add_bytes(digest, text.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _new():
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def _add_bytes(digest, content: bytes) -> None:
    # With its length, so that ("ab", "c") is not ("a", "bc").
    digest.update(len(content).to_bytes(8, "little"))
    digest.update(content)


def _num_bytes(array: np.ndarray) -> int:
    return sum(map(len, array)) if array.dtype == object else array.nbytes
