"""Centralized training in rounds, to stand beside federated runs."""

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.tasks import Task
from tff_fedss.training import draws
from tff_fedss.training.loop import Metrics


def pooled_batches(
    dataset: FederatedDataset, batch_size: int, seed: int, num_done: int
) -> tf.data.Dataset:
    """Returns mini-batches of all clients' images, see `algorithms.iid_batches`.

    Args:
        dataset: The data.
        batch_size: The mini-batch.
        seed: Of the order and of the crops.
        num_done: How many batches to leave out, because they have been used before.
    """
    return algorithms.iid_batches(
        dataset.pooled_examples(),
        sum(map(dataset.num_examples, dataset.train.client_ids)),
        batch_size,
        seed,
        ready=None if dataset.preprocessing is None else dataset.ready,
        num_done=num_done,
    )


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
    ):
        """Pools the clients' data.

        Args:
            name: What to call the run.
            task: The task.
            optimizer: A fresh Keras optimizer.
            cohort_size: K of the federated run.
            batch_size: The mini-batch.
            seed: Of the initial W, the cohorts and the order of the examples.
        """
        self.name = name
        self.task = task
        self.round_num = 0
        self._cohort_size = cohort_size
        self._batch_size = batch_size
        self._seed = seed
        self._algorithm = algorithms.Centralized(
            task.feature_extractor_fn(), task.dataset.num_classes, optimizer, seed=seed
        )
        self._num_updates = 0
        self._batches: Iterator[Any] | None = None

    def set_feature_extractor(self, phi: Sequence[np.ndarray]) -> None:
        """Replaces phi, to start from another than the initial one.

        Args:
            phi: Its weights, in the order of the Keras model's `trainable_variables`.
        """
        self._algorithm.set_state([*phi, *self._algorithm.state[len(phi) :]])

    @property
    def state(self) -> list[np.ndarray]:
        """Everything that the next rounds depend on, beside `round_num`."""
        return [np.asarray(self._num_updates), *self._algorithm.state]

    def resume(self, state: list[np.ndarray], round_num: int) -> None:
        """Goes on from the state after a round.

        Args:
            state: As `state` was then.
            round_num: The number of rounds done.
        """
        num_updates, *algorithm_state = state
        self._algorithm.set_state(algorithm_state)
        self._num_updates, self.round_num = int(num_updates), round_num
        self._batches = None

    def _next_batches(self, num_updates: int) -> Iterator[Any]:
        if self._batches is None:
            self._batches = iter(
                pooled_batches(
                    self.task.dataset, self._batch_size, self._seed, self._num_updates
                )
            )
        self._num_updates += num_updates
        return itertools.islice(self._batches, num_updates)

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
        for batch in self._next_batches(num_updates):
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
