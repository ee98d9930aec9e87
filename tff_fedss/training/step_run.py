"""Step run: training in place, in rounds with a fixed number of mini-batches."""

import collections
import itertools

import numpy as np

from tff_fedss.algorithms import MoCo
from tff_fedss.algorithms.in_place import InPlace
from tff_fedss.tasks import Contrastive, Task
from tff_fedss.training.run import Metrics, Run


class StepRun(Run):
    """Trains an algorithm on mini-batches of its task, `steps_per_round` each round."""

    def __init__(self, name: str, task: Task, algorithm: InPlace, steps_per_round: int):
        super().__init__(name, task, algorithm)
        self._steps_per_round = steps_per_round

    def _train_round(self, round_num: int) -> Metrics:
        """Returns `steps` of all rounds so far, and the algorithm's `round_metrics`."""
        steps = self._steps_per_round
        measured = self._do_steps((round_num - 1) * steps, steps)
        return Metrics(steps=round_num * steps, **measured)

    def _do_steps(self, num_done: int, count: int) -> dict[str, float]:
        """Does `count` steps after `num_done`; returns their `round_metrics`."""
        sums = collections.Counter()
        for batch in self._next_batches(num_done, count):
            sums.update(self._algorithm.update(*batch))
        return self._algorithm.round_metrics(sums)


class SampledSoftmaxRun(StepRun):
    """Compares the proposal q with the softmax at each evaluation."""

    def measure(self) -> dict[str, float]:
        """Returns `ProposalQuality`; {} without a sampler, or before the first step."""
        quality = self._algorithm.measure_proposal()
        return {} if quality is None else quality._asdict()


class MocoRun(StepRun):
    """Runs MoCo on a task; a round is an epoch.

    With `clusters`, the queue is clustered before every epoch.
    """

    def __init__(self, name: str, task: Contrastive, algorithm: MoCo, clusters: bool):
        super().__init__(name, task, algorithm, task.steps_per_epoch)
        self._clusters = clusters

    def _train_round(self, round_num: int) -> Metrics:
        if self._clusters:
            self._algorithm.fit_clusters(round_num)
        return super()._train_round(round_num)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the encoders and the queue, see `MoCo.arrays`."""
        return self._algorithm.arrays()

    def measure_losses(self) -> dict[str, np.ndarray]:
        """Measures the next epoch's float32[examples] by form (figures 3 to 5).

        Gamma is 0. The run is unchanged afterwards.
        """
        state, steps = self.state, self._steps_per_round
        self._algorithm.fit_clusters(self.round_num + 1)
        batches = self.task.batches(self.round_num * steps)
        measured = [
            self._algorithm.measure(*batch)
            for batch in itertools.islice(batches, steps)
        ]
        self._algorithm.set_state(state)
        return {
            form: np.concatenate([losses[form] for losses in measured])
            for form in measured[0]
        }
