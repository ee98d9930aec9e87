"""Training on public images in epochs."""

from tff_fedss.algorithms import Centralized
from tff_fedss.tasks import Pretraining
from tff_fedss.training.run import Metrics, Run


class PretrainRun(Run):
    """Trains phi and a classifier of the public classes; a round is an epoch."""

    def __init__(self, name: str, task: Pretraining, algorithm: Centralized):
        """Begins at epoch 0.

        Args:
            name: What to call the run.
            task: The task.
            algorithm: With the task's phi, for images of float32.
        """
        super().__init__(name, task, algorithm)

    def _train_round(self, round_num: int) -> Metrics:
        """See `Run`.

        Returns:
            `steps` (all of them by now), and of this epoch `loss`, `accuracy` (both on
            augmented images, before each step) and `num_examples`.
        """
        steps = self.task.steps_per_epoch
        loss_sum = num_correct = num_examples = 0
        for images, labels in self._next_batches((round_num - 1) * steps, steps):
            loss, correct = self._algorithm.update(images, labels)
            loss_sum += float(loss)
            num_correct += int(correct)
            num_examples += len(labels)
        return Metrics(
            steps=round_num * steps,
            loss=loss_sum / num_examples,
            accuracy=num_correct / num_examples,
            num_examples=num_examples,
        )
