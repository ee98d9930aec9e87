"""Run: a method in training, as the loop and the results folder know it."""

import abc
import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow_federated as tff

from tff_fedss.tasks import Task

Metrics = collections.OrderedDict[str, Any]


class Run(abc.ABC):
    """One method, trained in place, a round at a time.

    All that a round does follows from the arguments that a run was built with, from
    `state` and from `round_num`. So a new run with the same arguments that resumes from
    both does the same rounds as the old one would have: its metrics, weights and states
    are equal in every bit. (`EmbeddingProcess` alone makes an exception.)

    Attributes:
        name: What to call the run in tables, progress lines and checkpoints.
        task: The task.
        round_num: The number of rounds done, whole ones.
    """

    def __init__(self, name: str, task: Task, algorithm: Any = None):
        """Starts at round 0.

        Args:
            name: See above.
            task: See above.
            algorithm: What is trained, with `state`, `set_state` and `weights`. None
                for a run that has these three itself.
        """
        self.name = name
        self.task = task
        self.round_num = 0
        self._algorithm = algorithm
        self._num_begun = 0
        self._batches: Iterator[Any] | None = None

    @property
    def state(self) -> Any:
        """All that the next rounds depend on beside `round_num`, in arrays.

        They are copied, which takes time and memory: ask for it where it is saved. It
        is the state of a round only between two rounds.
        """
        return self._algorithm.state

    def set_state(self, state: Any) -> None:
        """Takes over a state."""
        self._algorithm.set_state(state)

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """What the task evaluates; in classification, trainable = [*phi, W]."""
        return self._algorithm.weights

    def resume(self, state: Any, round_num: int) -> None:
        """Resumes from the state after a round.

        Args:
            state: As `state` was then.
            round_num: The number of rounds done.
        """
        self.set_state(state)
        self.round_num = self._num_begun = round_num
        self._batches = None

    def state_reader(self) -> Callable[[], Any | None]:
        """Returns a function that reads the state as it is now, after a whole round.

        It returns None once the next round has started: training in place has
        overwritten the state by then.
        """
        num_begun = self._num_begun
        return lambda: self.state if self._num_begun == num_begun else None

    def run_round(self) -> Metrics:
        """Runs one round and returns its metrics as Python numbers.

        What stops it in its middle leaves `round_num` as it was, and a state that is of
        no round: such a run must `resume`.
        """
        self._num_begun += 1
        metrics = self._train_round(self.round_num + 1)
        self.round_num += 1
        return metrics

    @abc.abstractmethod
    def _train_round(self, round_num: int) -> Metrics:
        """Does what `run_round` does in the round of that number, counted from 1."""

    def _next_batches(self, num_done: int, count: int) -> Iterator[Any]:
        """Returns the next batches; in a resumed run, those after the last one used.

        Args:
            num_done: How many have been used in the rounds before.
            count: How many this round takes.
        """
        if self._batches is None:
            self._batches = iter(self._batches_after(num_done))
        return itertools.islice(self._batches, count)

    def _batches_after(self, num_done: int) -> Iterable[Any]:
        return self.task.batches(num_done)
