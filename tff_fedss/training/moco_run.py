"""MoCo run: contrastive training in epochs."""

import itertools

import numpy as np

from tff_fedss.algorithms import MoCo
from tff_fedss.tasks import Contrastive
from tff_fedss.training.run import Metrics
from tff_fedss.training.step_run import StepRun


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
        """Goes through the next epoch's views without training (figures 3 to 5).

        Afterwards the run is as it was before.

        Returns:
            By form of the loss, float32[examples] at gamma = 0.
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
