"""Centralized training in rounds, to stand beside federated runs."""

import collections
import itertools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms
from tff_fedss.tasks import Task
from tff_fedss.training import draws
from tff_fedss.training.loop import Metrics


class CentralizedRun:
    """Trains on the clients' pooled data, with as many updates as a federated run.

    "The corresponding centralized experiment is trained for an equivalent number of
    model updates" (FedSS, A.2): a round here has one update for each mini-batch that
    the cohort of the federated round goes through, sum_k ceil(n_k / batch size).

    Attributes:
        name: What to call the run in tables and progress lines.
        task: The task.
        round_num: The number of rounds done.
    """

    def __init__(
        self,
        name: str,
        task: Task,
        optimizer: tf.keras.optimizers.Optimizer,
        *,
        cohort_size: int,
        batch_size: int,
        seed: int,
        feature_extractor: list[np.ndarray] | None = None,
    ):
        """Pools the clients' data.

        Args:
            name: What to call the run.
            task: The task.
            optimizer: A fresh Keras optimizer.
            cohort_size: K of the federated run.
            batch_size: The mini-batch.
            seed: Of the initial W, the cohorts and the order of the examples.
            feature_extractor: phi to start from, instead of the initial one.
        """
        self.name = name
        self.task = task
        self.round_num = 0
        self._cohort_size = cohort_size
        self._batch_size = batch_size
        self._seed = seed
        model = task.feature_extractor_fn()
        if feature_extractor is not None:
            model.set_weights(feature_extractor)
        self._algorithm = algorithms.Centralized(
            model, task.dataset.num_classes, optimizer, seed=seed
        )
        dataset = task.dataset
        self._batches = iter(
            algorithms.iid_batches(
                dataset.pooled_examples(),
                sum(map(dataset.num_examples, dataset.train.client_ids)),
                batch_size,
                seed,
                ready=None if dataset.preprocessing is None else dataset.ready,
            )
        )

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The model, with trainable = [*phi, W]."""
        return self._algorithm.weights

    def run_round(self) -> Metrics:
        """Runs the updates of one round.

        Returns:
            `loss`, `accuracy` and `num_examples`, as a federated run measures them.
        """
        next_round = self.round_num + 1
        cohort = draws.cohort(
            self._seed,
            next_round,
            self.task.dataset.train.client_ids,
            self._cohort_size,
        )
        num_updates = sum(
            -(-self.task.dataset.num_examples(client_id) // self._batch_size)
            for client_id in cohort
        )
        loss_sum = num_correct = num_examples = 0
        for batch in itertools.islice(self._batches, num_updates):
            batch_loss, batch_correct = self._algorithm.update(
                batch["image"], batch["label"]
            )
            loss_sum += float(batch_loss)
            num_correct += int(batch_correct)
            num_examples += len(batch["label"])
        self.round_num = next_round
        return collections.OrderedDict(
            loss=loss_sum / num_examples,
            accuracy=num_correct / num_examples,
            num_examples=num_examples,
        )
