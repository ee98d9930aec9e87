"""Checkpoints of a run: folders of arrays, each with a digest of every file."""

import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tff_fedss import files
from tff_fedss.errors import InvalidInputError

PREFIX = "round_"
_DAMAGED = "damaged_"
_MANIFEST = "manifest.json"
_ARRAYS = "arrays.npz"
# What version 0.1.0 wrote before it had manifests with a digest of their own.
_OLD = "saved_model.pb"

_T = TypeVar("_T")


class Checkpoints:
    """The newest states of one run, each whole or not there at all.

    `round_N/` holds the arrays of a state and a manifest with the SHA-256 of every file
    and of itself. The folder gets its name when all of that is on the disk, so that a
    program killed at any moment leaves no half of one.

    A file that does not match its digest is damage: the checkpoint is put aside, for
    good, and the one before is taken. Anything else that keeps a checkpoint from being
    read (a forbidden file, a failing disk, a state of another model) stops the run and
    leaves all of them as they are. TFF's `FileProgramStateManager` cannot tell the one
    from the other.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 3):
        """Writes nothing yet, unless a killed program left something to clear away.

        Args:
            folder: Where the checkpoints are, or will be.
            keep: How many to keep, the newest ones.

        Raises:
            RunStoppedError: If the folder cannot be read.
        """
        self._folder = pathlib.Path(folder)
        self._keep = keep
        self._newest: int | None = None
        # What a killed program was writing. It was never in its place.
        for name in self._names():
            if name.startswith(PREFIX) and "_temp" in name:
                shutil.rmtree(self._folder / name, ignore_errors=True)

    def save(self, state: Any, round_num: int) -> None:
        """Saves the state after a round; does nothing if that is saved already.

        Args:
            state: Any structure of arrays.
            round_num: The number of rounds done, larger at every call.

        Raises:
            InvalidInputError: If there can be no such folder.
            RunStoppedError: If it cannot be written. Those saved before stay.
        """
        if round_num == self._newest:
            return
        place = self._path(round_num)
        temporary = place.with_name(f"{place.name}_temp")
        try:
            # A signal can come between the end of a save and the note of it.
            if not place.exists():
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
                self._write_whole(temporary, state)
                os.rename(temporary, place)
                files.sync(self._folder)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise files.io_error(error, place, "cannot be written") from error
        self._newest = round_num
        for old in self._versions()[: -self._keep]:
            shutil.rmtree(self._path(old), ignore_errors=True)

    def restore(self, structure: Any) -> tuple[Any, int] | None:
        """Reads the newest checkpoint that is whole.

        A damaged one is named on standard error and put aside, and the one before is
        taken.

        Args:
            structure: A state of the same structure; its values do not matter.

        Returns:
            The state, with NumPy arrays, and the number of rounds done; None if none
            was ever saved.

        Raises:
            InvalidInputError: If a checkpoint is of another model or another version,
                or if there are damaged ones only.
            RunStoppedError: If a checkpoint cannot be read.
        """
        for round_num in reversed(self._versions()):
            place = self._path(round_num)
            try:
                manifest = self._verified(place)
                if manifest is None:
                    continue
                state = self._read(place, manifest, structure)
                self._newest = round_num
                return state, round_num
            except OSError as error:
                raise files.io_error(error, place, "cannot be read") from error
            except InvalidInputError:
                raise
            except ValueError as error:
                raise InvalidInputError(
                    f"{place} is the state of another model ({error}): the data, the "
                    "flags or the version of this project have changed since."
                ) from error
        # Also if a start before this one has put the last of them aside.
        if any(name.startswith(_DAMAGED) for name in self._names()):
            raise InvalidInputError(
                f"{self._folder}: all checkpoints are damaged and put aside. Remove "
                "the results folder to begin anew."
            )
        return None

    def clear(self) -> None:
        """Removes the checkpoints, but nothing that was put aside as damaged."""
        for round_num in self._versions():
            shutil.rmtree(self._path(round_num), ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _write(self, folder: pathlib.Path, state: Any) -> dict[str, Any]:
        """Writes the files of a state.

        Returns:
            What the manifest shall say; "sha256", digests by the name of the file,
            need not be there, or not of all files.
        """
        write_arrays(folder, [np.asarray(value) for value in tf.nest.flatten(state)])
        return {}

    def _read(
        self, folder: pathlib.Path, manifest: dict[str, Any], structure: Any
    ) -> Any:
        """Reads a checkpoint whose files match their digests.

        Raises:
            ValueError: If it is of another model.
        """
        values = read_arrays(folder)
        check_shapes(values, tf.nest.flatten(structure))
        return tf.nest.pack_sequence_as(structure, values)

    def _write_whole(self, folder: pathlib.Path, state: Any) -> None:
        content = self._write(folder, state)
        digests = content.setdefault("sha256", {})
        for name in sorted(os.listdir(folder)):
            if name not in digests:
                digests[name] = files.sha256(folder / name)
            files.sync(folder / name)
        text = json.dumps({"content": content, "sha256": _digest(content)}, indent=1)
        (folder / _MANIFEST).write_text(text)
        files.sync(folder / _MANIFEST)
        files.sync(folder)

    def _verified(self, place: pathlib.Path) -> dict[str, Any] | None:
        """Returns the manifest of a checkpoint; puts the checkpoint aside if damaged.

        Raises:
            InvalidInputError: If it is of a version that wrote no such manifests.
            OSError: If a file cannot be read.
        """
        try:
            manifest = json.loads((place / _MANIFEST).read_bytes())
            content = manifest["content"]
            if manifest["sha256"] != _digest(content):
                raise ValueError(f"{_MANIFEST} does not match its digest")
            for name, digest in content["sha256"].items():
                if files.sha256(place / name) != digest:
                    raise ValueError(f"{name} does not match its digest")
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            if (place / _OLD).exists() or _is_old(place):
                raise InvalidInputError(
                    f"{place} was saved by an earlier state of version 0.1.0 (run.json "
                    "names its commit), which must finish the run; or remove the "
                    "results folder to begin anew."
                ) from error
            self._put_aside(place, error)
            return None
        return content

    def _names(self) -> list[str]:
        """The names in the folder; none if it is not there."""
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise files.io_error(error, self._folder, "cannot be read") from error

    def _versions(self) -> list[int]:
        """The numbers of the rounds that are there, ascending."""
        numbers = [n.removeprefix(PREFIX) for n in self._names() if PREFIX in n]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _path(self, round_num: int) -> pathlib.Path:
        return self._folder / f"{PREFIX}{round_num}"

    def _put_aside(self, place: pathlib.Path, error: Exception) -> None:
        name, count = _DAMAGED + place.name, 1
        while (place.parent / name).exists():
            count += 1
            name = f"{_DAMAGED}{place.name}_{count}"
        place.rename(place.parent / name)
        text = " ".join(str(error).split())[:200] or type(error).__name__
        print(
            f"Checkpoint {place} is damaged ({text}): moved to {name}, trying the one "
            "before.",
            file=sys.stderr,
        )


def wait_for(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs one of TFF's coroutines to its end and returns its result.

    `asyncio.run` would leave the thread without an event loop, and TFF's synchronous
    functions ask for the one of the thread.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def write_arrays(folder: pathlib.Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes the small arrays of a state into the folder of a checkpoint.

    Raises:
        OSError: If they cannot be written.
    """
    named = {f"{i:05d}": array for i, array in enumerate(arrays)}
    files.write_npz(folder / _ARRAYS, named)


def read_arrays(folder: pathlib.Path) -> list[np.ndarray]:
    """Reads what `write_arrays` wrote."""
    with np.load(folder / _ARRAYS) as saved:
        return [saved[name] for name in sorted(saved.files)]


def check_shapes(values: Sequence[np.ndarray], expected: Sequence[Any]) -> None:
    """Compares the values of a checkpoint with those of a state.

    Raises:
        ValueError: If a shape differs, or how many there are.
    """
    if len(values) != len(expected):
        raise ValueError(f"{len(values)} arrays, not {len(expected)}")
    for value, other in zip(values, expected, strict=True):
        if value.shape != np.shape(other):
            raise ValueError(f"an array of shape {value.shape}, not {np.shape(other)}")


def is_finite(state: Any) -> bool:
    """Whether no float of a state's arrays is NaN or infinite.

    Args:
        state: Any structure of arrays. Scalars are no weights, and may be infinite, as
            the easiness is of what has no pace.
    """
    return all(map(_is_finite, tf.nest.flatten(state)))


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    if array.dtype.kind != "f" or not array.ndim:
        return True
    flat = array.reshape(-1)
    # Faster than a look at each, and right unless the sum of finite squares overflows.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)) or np.isfinite(flat).all())


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_old(place: pathlib.Path) -> bool:
    """Whether a manifest is whole, but of before it had a digest of its own."""
    try:
        return "matrices" in json.loads((place / _MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
