"""Checkpoints of matrices in shards, read and written a piece at a time."""

import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tff_fedss.algorithms import ShardedState
from tff_fedss.training import checkpoints
from tff_fedss.training.checkpoints import Checkpoints, check_shapes


class ShardedCheckpoints(Checkpoints):
    """Checkpoints of `ShardedState`s: like `Checkpoints`, with files of rows beside.

    `round_N/` has a file of rows for each matrix and shard, MATRIX.FIRST-END.npy, too.
    Files are read by ranges of rows: a state may be restored to other shards, on
    another number of devices. Neither way needs more memory than a piece of a shard.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 2):
        """See `Checkpoints`. Those of ten million classes take 5 GB each."""
        super().__init__(folder, keep)

    def _write(self, folder: pathlib.Path, state: ShardedState) -> dict[str, Any]:
        """See `Checkpoints`."""
        checkpoints.write_arrays(folder, state.arrays)
        digests, matrices = {}, {}
        for name, matrix in state.matrices.items():
            shards = []
            for first, end in itertools.pairwise(matrix.bounds.tolist()):
                file_name = f"{name}.{first:09d}-{end:09d}.npy"
                with open(folder / file_name, "wb") as file:
                    hashing = _HashingFile(file)
                    write_npy(hashing, matrix, first, end)
                digests[file_name] = hashing.sha.hexdigest()
                shards.append([file_name, first, end])
            matrices[name] = {"shape": matrix.shape, "shards": shards}
        return {"matrices": matrices, "sha256": digests}

    def _read(
        self, folder: pathlib.Path, manifest: dict[str, Any], structure: ShardedState
    ) -> ShardedState:
        """Opens a checkpoint; its rows are read when they are asked for.

        Raises:
            ValueError: If something has another shape.
        """
        arrays = checkpoints.read_arrays(folder)
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
