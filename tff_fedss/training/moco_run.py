"""Contrastive training in epochs."""

import itertools

import numpy as np

from tff_fedss.algorithms import MoCo
from tff_fedss.algorithms.moco import StepSums
from tff_fedss.tasks import Contrastive
from tff_fedss.training.run import Metrics, Run


class MocoRun(Run):
    """Runs MoCo on a task; a round is an epoch."""

    def __init__(self, name: str, task: Contrastive, algorithm: MoCo, clusters: bool):
        """Begins at epoch 0.

        Args:
            name: What to call the run.
            task: The task.
            algorithm: With the task's backbone.
            clusters: Whether to cluster the queue anew before every epoch.
        """
        super().__init__(name, task, algorithm)
        self._clusters = clusters

    def _train_round(self, round_num: int) -> Metrics:
        """See `Run`.

        Returns:
            `steps` (all of them by now), `loss` (the one that is trained on),
            `accuracy` (the share of queries to which no key of the queue was as similar
            as their own), `num_examples`, and with clusters `cluster_share`: the mean
            share of the queue that was in a query's cluster, and `cluster_purity`: of
            these keys, the share that is of the query's class.
        """
        steps = self.task.steps_per_epoch
        if self._clusters:
            self._algorithm.fit_clusters(round_num)
        batches = self._next_batches((round_num - 1) * steps, steps)
        num_examples = 0
        sums = np.zeros(len(StepSums._fields))
        for batch in batches:
            sums += self._algorithm.update(*batch)
            num_examples += len(batch[0])
        total = StepSums(*sums.tolist())
        metrics = Metrics(
            steps=round_num * steps,
            loss=total.loss / num_examples,
            accuracy=total.num_correct / num_examples,
            num_examples=num_examples,
        )
        if self._clusters:
            metrics["cluster_share"] = total.cluster_share / num_examples
            if total.num_labelled:
                metrics["cluster_purity"] = total.num_right / total.num_labelled
        return metrics

    def measure_losses(self) -> dict[str, np.ndarray]:
        """Goes through the next epoch's views without training (figures 3 to 5).

        The run is as it was before, afterwards.

        Returns:
            By form of the loss, float32[examples] at gamma = 0.
        """
        state, steps = self.state, self.task.steps_per_epoch
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
