"""Checkpoints: the newest states of a run, a file of arrays each."""

import contextlib
import errno
import os
import pathlib
import re
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss import files, models
from tff_fedss.errors import InvalidInputError, check_range

_NAME = re.compile(r"round_(\d+)\.npz")
_HALF_WRITTEN = ".round_*.tmp"
_DAMAGED = "damaged_"
_COUNT_FROM_END = -12  # End record of a zip file without a comment.


class Checkpoints:
    """The newest states of one run, each written whole or not at all.

    `round_N.npz` holds the arrays of a state and a CRC-32 of each. The file gets its
    name when it is on the disk, so that a program killed at any moment leaves no
    partial file.

    A file that does not match its CRC-32 is damaged: it is renamed and the previous
    checkpoint is used. Any other failure to read (a forbidden file, a failing disk, a
    state of another model) stops the run and changes nothing. TFF's
    `FileProgramStateManager` does not distinguish the two.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        keep: int = 2,
        before_save: Callable[[], None] = lambda: None,
    ):
        """Removes files that a killed program left half written, if there are any.

        The folder need not exist. `before_save` brings to the disk what a resumed run
        needs beside a checkpoint.
        """
        check_range("keep", keep, 1, whole=True)
        self._folder = pathlib.Path(folder)
        self._keep = keep
        self._before_save = before_save
        self._newest: int | None = None
        for path in self._folder.glob(_HALF_WRITTEN):
            path.unlink(missing_ok=True)

    def save(self, state: Any, round_num: int) -> None:
        """Saves the state after `round_num` completed rounds, unless it is saved.

        The state is any structure of arrays and of `models.ShardedMatrix`. The number
        must not fall from call to call: files of the smallest numbers are removed.
        Raises InvalidInputError if there can be no such folder, RunStoppedError if it
        cannot be written; earlier checkpoints stay.
        """
        if round_num == self._newest:
            return
        arrays = {_key(i): v for i, v in enumerate(tf.nest.flatten(state))}
        self._before_save()
        files.make_folder(self._folder)
        with files.replacing(self._path(round_num)) as temporary:
            files.write_npz(temporary, arrays)
        with files.writing(self._folder):
            files.sync(self._folder)
            self._newest = round_num
            for old in self._rounds()[: -self._keep]:
                self._path(old).unlink()

    def restore(self, structure: Any) -> tuple[Any, int] | None:
        """Reads the newest undamaged checkpoint.

        A damaged one is reported on standard error and renamed, and the previous one is
        read.

        Args:
            structure: A state of the same structure; its values are ignored.

        Returns:
            The state, with NumPy arrays, and for a `models.ShardedMatrix` an object for
            its `copy_from`; and the number of completed rounds. None if none was saved.

        Raises:
            InvalidInputError: If a checkpoint is of another model, all of them are
                damaged, or the folder is a file.
            RunStoppedError: If the folder or a checkpoint cannot be read.
        """
        for round_num in reversed(self._rounds()):
            path = self._path(round_num)
            with files.reading(path):
                damage = _damage(path)
                if damage is not None:
                    self._put_aside(path, damage)
                    continue
                try:
                    state = _read(path, structure)
                except (ValueError, MemoryError) as error:
                    what = f"the state of another model or version ({error})"
                    cure = "use the version in run.json, or another results folder"
                    raise InvalidInputError(f"{path} is {what}: {cure}.") from error
            self._newest = round_num
            return state, round_num
        # Also if an earlier start has renamed the last of them.
        if any(name.startswith(_DAMAGED) for name in self._names()):
            raise InvalidInputError(
                f"{self._folder}: all checkpoints are damaged and were renamed. "
                "Remove the results folder to start again."
            )
        return None

    def clear(self) -> None:
        """Removes the checkpoints, except those renamed as damaged."""
        for round_num in self._rounds():
            self._path(round_num).unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _names(self) -> list[str]:
        """Returns the names in the folder; none if it is missing."""
        with files.reading(self._folder), contextlib.suppress(FileNotFoundError):
            return os.listdir(self._folder)
        return []

    def _rounds(self) -> list[int]:
        """Returns the rounds with a checkpoint, ascending."""
        return sorted(int(m[1]) for m in map(_NAME.fullmatch, self._names()) if m)

    def _path(self, round_num: int) -> pathlib.Path:
        return self._folder / f"round_{round_num}.npz"

    def _put_aside(self, path: pathlib.Path, damage: str) -> None:
        name, count = _DAMAGED + path.name, 1
        while (path.parent / name).exists():
            count += 1
            name = f"{_DAMAGED}{count}_{path.name}"
        path.rename(path.parent / name)
        print(
            f"Checkpoint {path} is damaged ({damage}): moved to {name}, trying the one "
            "before.",
            file=sys.stderr,
        )


def _key(number: int) -> str:
    return f"{number:05d}"


def _damage(path: pathlib.Path) -> str | None:
    """Reads a whole file and describes its damage; None: no damage."""
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            if any(info.compress_type for info in archive.infolist()):
                return "its arrays are compressed"  # A few bytes may hold many.
            name = archive.testzip()
            # The index has no CRC-32, so its names and their number are checked.
            file.seek(_COUNT_FROM_END, os.SEEK_END)
            count = int.from_bytes(file.read(2), "little")
        if archive.namelist() != [f"{_key(i)}.npy" for i in range(count)]:
            return "the index of its arrays is wrong"
        return name and f"{name} does not match its CRC-32"
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):
            raise
        return files.error_text(error)
    # zipfile raises a dozen kinds of errors on archives whose index is damaged.
    except Exception as error:
        return files.error_text(error)


def _read(path: pathlib.Path, structure: Any) -> Any:
    """Reads an undamaged file; raises ValueError if it is of another model."""
    expected = tf.nest.flatten(structure)
    archive = zipfile.ZipFile(path)
    if (count := len(archive.namelist())) != len(expected):
        raise ValueError(f"{count} arrays, not {len(expected)}")
    values = []
    for i, other in enumerate(expected):
        file, shape = archive.open(f"{_key(i)}.npy"), np.shape(other)
        if isinstance(other, models.ShardedMatrix):
            value = _StoredMatrix(file)
        else:
            value = np.lib.format.read_array(file, allow_pickle=False)
        if value.shape != shape:
            raise ValueError(f"an array of shape {value.shape}, not {shape}")
        values.append(value)
    return tf.nest.pack_sequence_as(structure, values)


class _StoredMatrix:
    """A matrix float32[n, d] in a file, whose rows are read on request."""

    def __init__(self, file: zipfile.ZipExtFile):
        np.lib.format.read_magic(file)
        self.shape, _, self._dtype = np.lib.format.read_array_header_1_0(file)
        self._file = file
        self._start = file.tell()

    def read(self, first: int, end: int) -> np.ndarray:
        """Returns rows first..end-1; fastest in their order."""
        shape = end - first, self.shape[1]
        row_bytes = shape[1] * self._dtype.itemsize
        self._file.seek(self._start + first * row_bytes)
        content = self._file.read(shape[0] * row_bytes)
        return np.frombuffer(content, self._dtype).reshape(shape)
