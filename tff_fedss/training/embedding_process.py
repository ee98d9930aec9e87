"""Embedding network that is trained in a separate process (LEAP, section 4).

"The embedding CNN is trained asynchronously in parallel with the student CNN [...] to
share data between processes locally using arrays and values."
"""

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tff_fedss import runtime
from tff_fedss.algorithms import MagnetEmbedding, MagnetSettings
from tff_fedss.errors import RunStoppedError

# Updates between two copies of the network's state, which can be large.
_STEPS_PER_COPY = 100
_POLL_SECONDS = 0.05
_STOP_SECONDS = 20.0
_CONTEXT = multiprocessing.get_context("spawn")


class _SharedArray(NamedTuple):
    """An array in memory shared by both processes; changes need the process's lock."""

    memory: Any
    dtype: np.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: np.ndarray) -> "_SharedArray":
        value = np.asarray(value)
        memory = _CONTEXT.RawArray(ctypes.c_byte, max(value.nbytes, 1))
        shared = cls(memory, value.dtype, value.shape)
        shared.array[...] = value
        return shared

    @property
    def array(self) -> np.ndarray:
        count = int(np.prod(self.shape))
        return np.frombuffer(self.memory, self.dtype, count).reshape(self.shape)


class _Shared(NamedTuple):
    """The memory shared by both processes; `progress` is [updates, sum of losses]."""

    images: _SharedArray
    labels: _SharedArray
    progress: _SharedArray
    state: list[_SharedArray]
    lock: Any
    has_clusters: Any
    stop: Any


class EmbeddingProcess:
    """Trains a `MagnetEmbedding` while the student trains.

    The number of updates between two epochs of the student depends on the machine, so
    that results are not repeatable to the bit. A state is at most 100 updates old.
    """

    def __init__(
        self,
        settings: MagnetSettings,
        images: np.ndarray,
        labels: np.ndarray,
        set_up: Callable[[], None] = runtime.configure_gpus,
    ):
        """Does not start the process, so that the state can still be set.

        `set_up` is called first in the process, such as for its GPUs; it can be
        pickled.
        """
        self._settings = settings
        self._set_up = set_up
        # Here only the initial state and the shapes are used.
        initial = MagnetEmbedding(settings, images, labels).state
        self._shared = _Shared(
            *map(_SharedArray.of, (images, labels, np.zeros(2))),
            [_SharedArray.of(value) for value in initial],
            _CONTEXT.Lock(),
            _CONTEXT.Event(),
            _CONTEXT.Event(),
        )
        self._process: multiprocessing.Process | None = None
        self._seen = np.zeros(2)

    @property
    def clusters(self) -> np.ndarray:
        """int32[N], the newest clusters of the training examples."""
        self._ensure_clusters()
        with self._locked():
            return self._shared.state[MagnetEmbedding.CLUSTERS].array.copy()

    def advance(self, num_steps: int) -> float:
        """Returns the mean loss of updates since the last call; NaN if there are none.

        Starts the process if it has not started; `num_steps` is ignored. Raises
        RunStoppedError if the process has ended.
        """
        self._ensure_clusters()
        with self._locked():
            progress = self._shared.progress.array.copy()
        steps, loss_sum = progress - self._seen
        self._seen = progress
        return float(loss_sum / steps) if steps else np.nan

    @property
    def state(self) -> list[np.ndarray]:
        """A recent `MagnetEmbedding.state`."""
        with self._locked():
            return [shared.array.copy() for shared in self._shared.state]

    def set_state(self, state: list[np.ndarray]) -> None:
        """Sets the state, before the process has started."""
        assert self._process is None
        _copy_state(state, self._shared)

    def trained(self) -> MagnetEmbedding:
        """Returns a copy of the network, with a recent state."""
        images, labels = self._shared.images, self._shared.labels
        embedding = MagnetEmbedding(
            self._settings, images.array.copy(), labels.array.copy()
        )
        embedding.set_state(self.state)
        return embedding

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            atexit.unregister(self.close)
            self._shared.stop.set()
            self._process.join(_STOP_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _ensure_clusters(self) -> None:
        if self._process is None:
            self._process = _CONTEXT.Process(
                target=_train,
                args=(self._settings, self._shared, os.getpid(), self._set_up),
                daemon=True,
                name="embedding",
            )
            self._process.start()
            # Runs before multiprocessing's handler, which would wait for ever: it sends
            # SIGTERM, which the embedding's process ignores.
            atexit.register(self.close)
        has_clusters = self._shared.has_clusters
        while not has_clusters.wait(_POLL_SECONDS) and self._process.is_alive():
            pass
        self._check_alive()

    def _check_alive(self) -> None:
        if not self._process.is_alive():
            code = f"exit code {self._process.exitcode}"
            raise RunStoppedError(f"the embedding's process has ended: {code}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the lock; a process that has died may never have released it."""
        while not self._shared.lock.acquire(timeout=_POLL_SECONDS):
            self._check_alive()
        try:
            yield
        finally:
            self._shared.lock.release()


def _copy_state(state: list[np.ndarray], shared: _Shared) -> None:
    for value, target in zip(state, shared.state, strict=True):
        target.array[...] = value


def _train(
    settings: MagnetSettings, shared: _Shared, parent: int, set_up: Callable[[], None]
) -> None:
    """Trains until a request to stop or the end of the parent process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # The parent handles them.
        signal.signal(number, signal.SIG_IGN)
    set_up()
    embedding = MagnetEmbedding(settings, shared.images.array, shared.labels.array)
    embedding.set_state([value.array for value in shared.state])
    if embedding.num_steps:
        shared.has_clusters.set()
    clusters = embedding.clusters
    while not shared.stop.is_set() and os.getppid() == parent:
        try:
            loss = embedding.update()
        except RunStoppedError as error:  # The parent ends the program.
            print(f"embedding: {error}", file=sys.stderr, flush=True)
            sys.exit(1)
        is_new = embedding.clusters is not clusters
        clusters = embedding.clusters
        is_due = is_new or embedding.num_steps % _STEPS_PER_COPY == 0
        state = embedding.state if is_due else None
        with shared.lock:
            shared.progress.array[...] += 1, loss
            if state is not None:
                _copy_state(state, shared)
        if is_due:
            shared.has_clusters.set()
