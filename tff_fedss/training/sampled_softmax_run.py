"""Training by steps, with a sampled softmax, in rounds of equally many steps."""

from tff_fedss.algorithms import PartialFC, SampledSoftmax
from tff_fedss.tasks import SampledSoftmaxTask
from tff_fedss.training.run import Metrics, Run


class SampledSoftmaxRun(Run):
    """Runs the steps of one sampler, or of Partial FC, on a task."""

    def __init__(
        self,
        name: str,
        task: SampledSoftmaxTask,
        algorithm: SampledSoftmax | PartialFC,
        steps_per_round: int,
        rounds_per_measurement: int | None = None,
    ):
        """Begins at round 0.

        Args:
            name: What to call the run.
            task: The task.
            algorithm: With the task's encoder.
            steps_per_round: How many updates make a round.
            rounds_per_measurement: How often to compare the sampler's q with the
                softmax, after which rounds. None: never.
        """
        super().__init__(name, task, algorithm)
        self._steps_per_round = steps_per_round
        self._rounds_per_measurement = rounds_per_measurement

    def _train_round(self, round_num: int) -> Metrics:
        """See `Run`.

        Returns:
            `steps` (all of them by now), `loss` (the one that is trained on),
            `num_examples`, and the algorithm's `round_metrics`; after some rounds
            `effective_samples` and `clipped_mass`, see `metrics.ProposalQuality`.
        """
        steps = self._steps_per_round
        self._algorithm.begin_round()
        loss_sum = num_examples = 0
        for batch in self._next_batches((round_num - 1) * steps, steps):
            loss_sum += self._algorithm.update(*batch)
            num_examples += len(batch[1])
        metrics = Metrics(
            steps=round_num * steps,
            loss=loss_sum / num_examples,
            num_examples=num_examples,
        )
        metrics.update(self._algorithm.round_metrics)
        every = self._rounds_per_measurement
        if every is not None and round_num % every == 0:
            quality = self._algorithm.measure_proposal()
            if quality is not None:
                metrics.update(quality._asdict())
        return metrics
