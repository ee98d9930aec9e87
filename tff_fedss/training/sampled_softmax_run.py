"""Training by steps, with a sampled softmax, in rounds of equally many steps."""

import collections
import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow_federated as tff

from tff_fedss.algorithms import PartialFC, SampledSoftmax
from tff_fedss.tasks import SampledSoftmaxTask
from tff_fedss.training.loop import Metrics


class SampledSoftmaxRun:
    """Runs the steps of one sampler, or of Partial FC, on a task.

    Attributes:
        name: What to call the run in tables and progress lines.
        task: The task.
        round_num: The number of rounds done.
    """

    def __init__(
        self,
        name: str,
        task: SampledSoftmaxTask,
        algorithm: SampledSoftmax | PartialFC,
        steps_per_round: int,
    ):
        """Begins at round 0.

        Args:
            name: What to call the run.
            task: The task.
            algorithm: With the task's encoder.
            steps_per_round: How many updates make a round.
        """
        self.name = name
        self.task = task
        self.round_num = 0
        self._algorithm = algorithm
        self._steps_per_round = steps_per_round
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
        """The model, with trainable = [*encoder, W]."""
        return self._algorithm.weights

    def run_round(self) -> Metrics:
        """Runs the steps of one round.

        Returns:
            `steps` (all of them by now), `loss` (the one that is trained on),
            `num_examples`, and the algorithm's `round_metrics`.
        """
        if self._batches is None:
            num_done = self.round_num * self._steps_per_round
            self._batches = self.task.batches(num_done)
        self._algorithm.begin_round()
        loss_sum = num_examples = 0
        for inputs, labels in itertools.islice(self._batches, self._steps_per_round):
            loss_sum += self._algorithm.update(inputs, labels)
            num_examples += len(labels)
        self.round_num += 1
        metrics = collections.OrderedDict(
            steps=self.round_num * self._steps_per_round,
            loss=loss_sum / num_examples,
            num_examples=num_examples,
        )
        metrics.update(self._algorithm.round_metrics)
        return metrics
