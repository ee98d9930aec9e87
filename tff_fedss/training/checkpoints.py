"""Checkpoints of a run, through TFF's program state manager."""

import asyncio
import contextlib
import hashlib
import os
import pathlib
import shutil
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

PREFIX = "round_"
_DAMAGED = "damaged_"

_T = TypeVar("_T")


class Checkpoints:
    """The newest states of one run, each whole or not there at all.

    TFF's `FileProgramStateManager` writes a state beside its place and then moves it
    there, so that a program killed at any moment leaves no half of one. A digest of all
    values is kept with them: what a disk has damaged since is found when it is read.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 3):
        """Writes nothing yet, unless a killed program left something to clear away.

        Args:
            folder: Where the checkpoints are, or will be.
            keep: How many to keep, the newest ones.
        """
        self._folder = pathlib.Path(folder)
        self._keep = keep
        self._newest: int | None = None
        # What a killed program was writing. It was never in its place.
        for path in self._folder.glob(f"{PREFIX}*_temp*"):
            shutil.rmtree(path, ignore_errors=True)

    def save(self, state: Any, round_num: int) -> None:
        """Saves the state after a round; does nothing if that is saved already.

        Args:
            state: Any structure of arrays.
            round_num: The number of rounds done, larger at every call.
        """
        if round_num == self._newest:
            return
        values = [np.asarray(value) for value in tf.nest.flatten(state)]
        saved = [*values, _digest(values)]
        # A signal can come between the end of a save and the note of it.
        with contextlib.suppress(tff.program.ProgramStateExistsError):
            wait_for(self._manager().save(saved, round_num))
        self._newest = round_num

    def restore(self, structure: Any) -> tuple[Any, int] | None:
        """Reads the newest checkpoint that is whole.

        A damaged one is named on standard error and put aside, and the one before is
        taken.

        Args:
            structure: A state of the same structure; its values do not matter.

        Returns:
            The state, with NumPy arrays, and the number of rounds done; None if there
            is no whole checkpoint.
        """
        if not self._folder.is_dir():
            return None
        for round_num in reversed(self._versions()):
            try:
                state = self._read(round_num, structure)
            # A damaged file surfaces as nearly any exception of TensorFlow's readers.
            except Exception as error:
                self._put_aside(self._path(round_num), error)
                continue
            self._newest = round_num
            return state, round_num
        return None

    def _versions(self) -> Sequence[int]:
        """The numbers of the rounds that are there, ascending."""
        return wait_for(self._manager().get_versions()) or []

    def _read(self, round_num: int, structure: Any) -> Any:
        """Reads a checkpoint.

        Raises:
            Exception: If it is damaged.
        """
        expected = tf.nest.flatten(structure)
        *values, digest = wait_for(
            self._manager().load(round_num, [0] * (len(expected) + 1))
        )
        values = [np.asarray(value) for value in values]
        if not np.array_equal(digest, _digest(values)):
            raise ValueError("its values do not match their digest")
        check_shapes(values, expected)
        return tf.nest.pack_sequence_as(structure, values)

    def _path(self, round_num: int) -> pathlib.Path:
        return self._folder / f"{PREFIX}{round_num}"

    def _manager(self) -> tff.program.FileProgramStateManager:
        return tff.program.FileProgramStateManager(
            self._folder, PREFIX, keep_total=self._keep, keep_first=False
        )

    def _put_aside(self, path: pathlib.Path, error: Exception) -> None:
        aside = path.with_name(_DAMAGED + path.name)
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        reason = " ".join(str(error).split())[:200]
        print(
            f"Checkpoint {path} is damaged ({reason}): moved to {aside.name}, trying "
            "the one before.",
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


def _digest(values: list[np.ndarray]) -> np.ndarray:
    """SHA-256 over dtypes, shapes and bytes: uint8[32]."""
    sha = hashlib.sha256()
    for value in values:
        sha.update(f"{value.dtype.str}{value.shape}".encode())
        sha.update(np.ascontiguousarray(value).tobytes())
    return np.frombuffer(sha.digest(), np.uint8)


def check_shapes(values: Sequence[np.ndarray], expected: Sequence[Any]) -> None:
    """Compares the values of a checkpoint with those of a state.

    Raises:
        ValueError: If a shape differs, or how many there are.
    """
    for value, other in zip(values, expected, strict=True):
        if value.shape != np.shape(other):
            raise ValueError(f"a value of shape {value.shape}, not {np.shape(other)}")
