"""Embedding network that is trained in a process of its own (LEAP, section 4).

"The embedding CNN is trained asynchronously in parallel with the student CNN [...] to
share data between processes locally using arrays and values."
"""

import multiprocessing
import os
import signal
import sys

import numpy as np

from tff_fedss.algorithms import MagnetEmbedding, MagnetSettings
from tff_fedss.errors import RunStoppedError
from tff_fedss.training.shared_arrays import SharedArrays

# The state of a network can be large: it is not copied after every update.
_STEPS_PER_COPY = 100
_POLL_SECONDS = 0.05
_STOP_SECONDS = 20.0
# Places in the shared array "progress".
_STEPS, _LOSS_SUM = range(2)


class EmbeddingProcess:
    """Trains a `MagnetEmbedding` without end while the student is at work.

    How many updates it does between two epochs of the student depends on the machine,
    so that results cannot be repeated bit for bit. A state is at most 100 updates old.
    """

    def __init__(
        self, settings: MagnetSettings, images: np.ndarray, labels: np.ndarray
    ):
        """Starts no process yet: the state may still be set.

        Args:
            settings: Of the network.
            images: uint8[N, height, width, channels], to train on.
            labels: int32[N].
        """
        self._settings = settings
        # Of here, only the initial state and the shapes are used.
        initial = MagnetEmbedding(settings, images, labels).state
        self._num_arrays = len(initial)
        self._shared = SharedArrays.of(
            {
                "images": images,
                "labels": labels,
                "progress": np.zeros(2),
                **{f"state_{i}": value for i, value in enumerate(initial)},
            }
        )
        context = multiprocessing.get_context("spawn")
        self._lock = context.Lock()
        self._has_clusters = context.Event()
        self._stop = context.Event()
        self._context = context
        self._process: multiprocessing.Process | None = None
        self._seen = np.zeros(2)

    @property
    def clusters(self) -> np.ndarray:
        """int32[N], the newest clusters of the training examples."""
        self._ensure_clusters()
        with self._lock:
            return self._shared[f"state_{MagnetEmbedding.CLUSTERS}"].copy()

    def advance(self, num_steps: int) -> float:
        """Returns the mean loss of the updates since the last call; starts at first.

        Args:
            num_steps: Of the student; they do not matter here.

        Raises:
            RunStoppedError: If the process has ended.
        """
        del num_steps
        self._ensure_clusters()
        with self._lock:
            progress = self._shared["progress"].copy()
        steps, loss_sum = progress - self._seen
        self._seen = progress
        return float(loss_sum / steps) if steps else np.nan

    @property
    def state(self) -> list[np.ndarray]:
        """A recent state, see `MagnetEmbedding.state`."""
        with self._lock:
            return [self._shared[f"state_{i}"].copy() for i in range(self._num_arrays)]

    def set_state(self, state: list[np.ndarray]) -> None:
        """Goes back to a state, before the process has started."""
        assert self._process is None
        for i, value in enumerate(state):
            self._shared[f"state_{i}"][...] = value

    def trained(self) -> MagnetEmbedding:
        """Returns a copy of the network, with a recent state."""
        embedding = MagnetEmbedding(
            self._settings, self._shared["images"].copy(), self._shared["labels"].copy()
        )
        embedding.set_state(self.state)
        return embedding

    def close(self) -> None:
        """Ends the process and frees the shared memory."""
        if self._process is not None:
            self._stop.set()
            self._process.join(_STOP_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._shared.close()

    def _ensure_clusters(self) -> None:
        if self._process is None:
            self._process = self._context.Process(
                target=_train,
                args=(
                    self._settings,
                    self._shared,
                    self._num_arrays,
                    self._lock,
                    self._has_clusters,
                    self._stop,
                    os.getpid(),
                ),
                daemon=True,
                name="embedding",
            )
            self._process.start()
        while not self._has_clusters.wait(_POLL_SECONDS) and self._process.is_alive():
            pass
        if not self._process.is_alive():
            raise RunStoppedError(
                "the process that trains the embedding network has ended with exit "
                f"code {self._process.exitcode}; the same command resumes from the "
                "last checkpoint"
            )


def _train(settings, shared, num_arrays, lock, has_clusters, stop, parent) -> None:
    """Trains in the process, until it is to stop or its parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent.
    embedding = MagnetEmbedding(settings, shared["images"], shared["labels"])
    embedding.set_state([shared[f"state_{i}"] for i in range(num_arrays)])
    if embedding.num_steps:
        has_clusters.set()
    clusters = embedding.clusters
    while not stop.is_set() and os.getppid() == parent:
        try:
            loss = embedding.update()
        except RunStoppedError as error:  # The parent ends the program.
            print(f"embedding: {error}", file=sys.stderr, flush=True)
            sys.exit(1)
        is_new = embedding.clusters is not clusters
        clusters = embedding.clusters
        is_due = is_new or embedding.num_steps % _STEPS_PER_COPY == 0
        state = embedding.state if is_due else ()
        with lock:
            shared["progress"][_STEPS] += 1
            shared["progress"][_LOSS_SUM] += loss
            for i, value in enumerate(state):
                shared[f"state_{i}"][...] = value
        if is_due:
            has_clusters.set()
    del embedding  # It looks at the shared images.
    shared.close()
