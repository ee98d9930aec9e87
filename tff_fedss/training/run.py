"""Run: a method in training, the interface of the loop and the results folder."""

import abc
import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow_federated as tff

from tff_fedss.tasks import Task

Metrics = collections.OrderedDict[str, Any]


class Run(abc.ABC):
    """One method, trained in place, a round at a time.

    The constructor's arguments, `state` and `round_num` decide all that a round does.
    So a new run with the same arguments that resumes from both does the same rounds as
    the old one would have: its metrics, weights and states are equal to the bit.
    (`EmbeddingProcess` is the only exception.)

    Attributes:
        name: The run's name in tables, progress lines and checkpoints.
    """

    def __init__(self, name: str, task: Task, algorithm: Any = None):
        """Starts at round 0 of an algorithm with `state`, `set_state` and `weights`.

        A run that has these three itself gives None.
        """
        self.name = name
        self.task = task
        self.round_num = 0
        self._algorithm = algorithm
        self._num_begun = 0
        self._batches: Iterator[Any] | None = None

    @property
    def state(self) -> Any:
        """All arrays, besides `round_num`, on which the next rounds depend.

        They are copied, which takes time and memory. They are a round's state only
        between two rounds.
        """
        return self._algorithm.state

    def set_state(self, state: Any) -> None:
        """Sets the state."""
        self._algorithm.set_state(state)

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The weights to evaluate; in classification, trainable = [*phi, W]."""
        return self._algorithm.weights

    def resume(self, state: Any, round_num: int) -> None:
        """Resumes from `state` and the number of completed rounds after a round."""
        self.set_state(state)
        self.round_num = self._num_begun = round_num
        self._batches = None

    def state_reader(self) -> Callable[[], Any | None]:
        """Returns a function that reads the current state, after a whole round.

        It returns None once the next round has started, since training in place has
        then overwritten the state.
        """
        num_begun = self._num_begun
        return lambda: self.state if self._num_begun == num_begun else None

    def run_round(self) -> Metrics:
        """Runs one round and returns its metrics as Python numbers.

        An interrupted round leaves `round_num` unchanged and the state invalid: such a
        run must `resume`.
        """
        self._num_begun += 1
        metrics = self._train_round(self.round_num + 1)
        self.round_num += 1
        return metrics

    def measure(self) -> Mapping[str, float]:
        """Measures more than the task does, at each evaluation; nothing by default."""
        return {}

    @abc.abstractmethod
    def _train_round(self, round_num: int) -> Metrics:
        """Does `run_round` for the round of that number, counted from 1."""

    def _next_batches(self, num_done: int, count: int) -> Iterator[Any]:
        """Returns the next batches, also in a resumed run."""
        if self._batches is None:
            self._batches = iter(self._batches_after(num_done))
        return itertools.islice(self._batches, count)

    def _batches_after(self, num_done: int) -> Iterable[Any]:
        return self.task.batches(num_done)
