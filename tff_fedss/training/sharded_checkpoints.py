"""Checkpoints of matrices in shards, read and written a piece at a time."""

import hashlib
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from tff_fedss.algorithms import ShardedState
from tff_fedss.training.checkpoints import PREFIX, Checkpoints, check_shapes

_MANIFEST = "manifest.json"
_ARRAYS = "arrays.npz"
_HASH_BYTES = 2**24


class ShardedCheckpoints(Checkpoints):
    """Checkpoints of `ShardedState`s: like `Checkpoints`, but a folder of files each.

    `round_N/` has a file of rows for each matrix and shard, MATRIX.FIRST-END.npy, the
    small arrays, and manifest.json, which is written last, with the SHA-256 of all. The
    folder gets its name when all of that is on the disk, so that a program killed at
    any moment leaves no half of one. Files are read by ranges of rows: a state may be
    restored to other shards, on another number of devices. Neither way needs more
    memory than a piece of a shard.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 2):
        """See `Checkpoints`. Those of ten million classes take 5 GB each."""
        super().__init__(folder, keep)

    def save(self, state: ShardedState, round_num: int) -> None:
        """Saves the state after a round; does nothing if that is saved already.

        Nor if the state is gone, because a step began after it: a run of 5 GB keeps no
        copy of its last whole round, and goes on from the checkpoint before.

        Args:
            state: The state.
            round_num: The number of rounds done, larger at every call.
        """
        if round_num == self._newest or not state.is_current():
            return
        place = self._path(round_num)
        if not place.exists():
            # `Checkpoints` clears away what has such a name.
            temporary = place.with_name(f"{place.name}_temp")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            _write(temporary, state)
            os.rename(temporary, place)
            _sync(self._folder)
        self._newest = round_num
        for old in self._versions()[: -self._keep]:
            shutil.rmtree(self._path(old), ignore_errors=True)

    def _versions(self) -> list[int]:
        """The numbers of the rounds that are there, ascending."""
        numbers = [
            path.name.removeprefix(PREFIX) for path in self._folder.glob(f"{PREFIX}*")
        ]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _read(self, round_num: int, structure: ShardedState) -> ShardedState:
        """Opens a checkpoint; its rows are read when they are asked for.

        Raises:
            ValueError: If a file is damaged, or something has another shape.
            OSError: If a file is missing.
        """
        folder = self._path(round_num)
        manifest = json.loads((folder / _MANIFEST).read_text())
        for name, digest in manifest["sha256"].items():
            if _digest(folder / name) != digest:
                raise ValueError(f"{name} does not match its digest")
        with np.load(folder / _ARRAYS) as saved:
            arrays = [saved[f"{i:03d}"] for i in range(len(saved.files))]
        check_shapes(arrays, structure.arrays)
        matrices = {
            name: _MatrixFiles(folder, **manifest["matrices"][name])
            for name in structure.matrices
        }
        check_shapes(
            [np.broadcast_to(0, m.shape) for m in matrices.values()],
            [np.broadcast_to(0, m.shape) for m in structure.matrices.values()],
        )
        return ShardedState(arrays, matrices)


class _MatrixFiles:
    """A matrix [n, d] in the files of its shards, as `models.ShardedMatrix` is read."""

    def __init__(self, folder: pathlib.Path, shape: list[int], shards: list[list[Any]]):
        self.shape = tuple(shape)
        self._folder = folder
        self._shards = shards

    def read(self, first: int, end: int) -> np.ndarray:
        """Returns rows first..end-1, float32[end - first, d]."""
        return np.concatenate(list(self._pieces(first, end)))

    def _pieces(self, first: int, end: int) -> Iterator[np.ndarray]:
        for name, begin, stop in self._shards:
            a, b = max(first, begin), min(end, stop)
            if a < b:
                # Mapped for this piece only, so that it does not stay in memory.
                rows = np.load(self._folder / name, mmap_mode="r")
                yield np.array(rows[a - begin : b - begin])


def _write(folder: pathlib.Path, state: ShardedState) -> None:
    """Writes all files of a checkpoint, the manifest last."""
    digests, matrices = {}, {}
    with open(folder / _ARRAYS, "wb") as file:
        np.savez(file, **{f"{i:03d}": array for i, array in enumerate(state.arrays)})
        _flush(file)
    digests[_ARRAYS] = _digest(folder / _ARRAYS)
    for name, matrix in state.matrices.items():
        shards = []
        for first, end in itertools.pairwise(matrix.bounds.tolist()):
            file_name = f"{name}.{first:09d}-{end:09d}.npy"
            digests[file_name] = _write_rows(folder / file_name, matrix, first, end)
            shards.append([file_name, first, end])
        matrices[name] = {"shape": matrix.shape, "shards": shards}
    with open(folder / _MANIFEST, "w") as file:
        json.dump({"matrices": matrices, "sha256": digests}, file, indent=1)
        _flush(file)
    _sync(folder)


def _write_rows(path: pathlib.Path, matrix: Any, first: int, end: int) -> str:
    """Writes rows as a .npy file, block by block; returns its SHA-256."""
    with open(path, "wb") as file:
        hashing = _HashingFile(file)
        write_npy(hashing, matrix, first, end)
        _flush(file)
    return hashing.sha.hexdigest()


class _HashingFile:
    """Hashes what is written to a file: gigabytes need not be read back for it."""

    def __init__(self, file: Any):
        self.sha = hashlib.sha256()
        self._file = file

    def write(self, data: Any) -> None:
        self.sha.update(data)
        self._file.write(data)


def write_npy(file: Any, matrix: Any, first: int = 0, end: int | None = None) -> None:
    """Writes rows of a `models.ShardedMatrix` in NumPy's format, block by block.

    Args:
        file: Open for bytes.
        matrix: The matrix.
        first: The first row.
        end: The row after the last; None: all.
    """
    end = matrix.shape[0] if end is None else end
    header = {
        "descr": np.dtype(np.float32).str,
        "fortran_order": False,
        "shape": (end - first, matrix.shape[1]),
    }
    np.lib.format.write_array_header_1_0(file, header)
    for block in matrix.row_blocks(first, end):
        file.write(np.ascontiguousarray(block).data)


def _digest(path: pathlib.Path) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(_HASH_BYTES):
            sha.update(part)
    return sha.hexdigest()


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync(folder: pathlib.Path) -> None:
    """Makes sure that the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
