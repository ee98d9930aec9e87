"""Training of an algorithm that takes one mini-batch after another."""

import abc
import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow_federated as tff

from tff_fedss.training.loop import Metrics


class SteppedRun(abc.ABC):
    """An algorithm that is trained in place, on the batches of a task.

    Attributes:
        name: What to call the run in tables and progress lines.
        task: The task.
        round_num: The number of rounds done.
    """

    def __init__(self, name: str, task: Any, algorithm: Any):
        """Begins at round 0.

        Args:
            name: What to call the run.
            task: The task, with `batches(num_done)`.
            algorithm: With `state`, `set_state` and `weights`.
        """
        self.name = name
        self.task = task
        self.round_num = 0
        self._algorithm = algorithm
        self._batches: Iterator[Any] | None = None

    @property
    def state(self) -> Any:
        """Everything that the next rounds depend on, beside `round_num`."""
        return self._algorithm.state

    def resume(self, state: Any, round_num: int) -> None:
        """Goes on from the state after a round.

        Args:
            state: As `state` was then.
            round_num: The number of rounds done.
        """
        self._algorithm.set_state(state)
        self.round_num = round_num
        self._batches = None

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """What the task evaluates."""
        return self._algorithm.weights

    @abc.abstractmethod
    def run_round(self) -> Metrics:
        """Runs the steps of one round and returns what they measured."""

    def _next_batches(self, steps_per_round: int) -> Iterator[Any]:
        """Goes on with the batches, in a new process from where the last one was."""
        if self._batches is None:
            self._batches = self.task.batches(self.round_num * steps_per_round)
        return itertools.islice(self._batches, steps_per_round)
