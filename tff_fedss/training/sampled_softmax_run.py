"""Training by steps, with a sampled softmax, in rounds of equally many steps."""

import collections

from tff_fedss.algorithms import PartialFC, SampledSoftmax
from tff_fedss.tasks import SampledSoftmaxTask
from tff_fedss.training.loop import Metrics
from tff_fedss.training.stepped_run import SteppedRun


class SampledSoftmaxRun(SteppedRun):
    """Runs the steps of one sampler, or of Partial FC, on a task."""

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
        super().__init__(name, task, algorithm)
        self._steps_per_round = steps_per_round

    def run_round(self) -> Metrics:
        """Runs the steps of one round.

        Returns:
            `steps` (all of them by now), `loss` (the one that is trained on),
            `num_examples`, and the algorithm's `round_metrics`.
        """
        self._algorithm.begin_round()
        loss_sum = num_examples = 0
        for inputs, labels in self._next_batches(self._steps_per_round):
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
