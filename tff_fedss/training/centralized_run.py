"""Centralized run in rounds, for comparison with federated runs."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tff_fedss import algorithms, errors, models
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.tasks import FederatedTask
from tff_fedss.training import draws
from tff_fedss.training.run import Metrics
from tff_fedss.training.step_run import StepRun


def pooled_batches(
    dataset: FederatedDataset, batch_size: int, seed: int, num_done: int
) -> tf.data.Dataset:
    """Returns batches of all clients' images after `num_done`, as `iid_batches`."""
    return algorithms.iid_batches(
        dataset.pooled_examples(),
        sum(map(dataset.num_examples, dataset.train.client_ids)),
        batch_size,
        seed,
        ready=None if dataset.preprocessing is None else dataset.ready,
        num_done=num_done,
    )


# What counts as an update of the federated run: "client_steps", each step of a client,
# so that a round here has sum_k ceil(n_k / batch size) steps over the cohort, and more
# images, since a client's last mini-batch may be short; "rounds", each step of the
# server, one a round.
CENTRALIZED_UPDATES = ("client_steps", "rounds")


class CentralizedRun(StepRun):
    """Trains on the clients' pooled data, with as many updates as a federated run.

    "The corresponding centralized experiment is trained for an equivalent number of
    model updates" (FedSS, A.2), which can be read in two ways: `CENTRALIZED_UPDATES`.
    """

    def __init__(
        self,
        name: str,
        task: FederatedTask,
        optimizer: tf.keras.optimizers.Optimizer,
        *,
        cohort_size: int,
        batch_size: int,
        seed: int,
        updates: str = "client_steps",
        initial_norm: float = models.INITIAL_NORM,
        logit_scale: float = models.LOGIT_SCALE,
        learning_rate_fn: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ):
        """Starts at round 0.

        Args:
            cohort_size: K of the federated run.
            seed: Seed of the initial W, the cohorts and the order of the examples.
            updates: One of `CENTRALIZED_UPDATES`.
            initial_norm: Norm of the rows of W, see `models.initial_classifier`.
        """
        errors.check_choice("updates", updates, CENTRALIZED_UPDATES)
        algorithm = algorithms.Centralized(
            task.feature_extractor_fn(),
            task.dataset.num_classes,
            optimizer,
            image_dtype=task.dataset.test_examples().element_spec["image"].dtype,
            seed=seed,
            initial_norm=initial_norm,
            logit_scale=logit_scale,
        )
        super().__init__(name, task, algorithm, 1)
        self._cohort_size = cohort_size
        self._batch_size = batch_size
        self._seed = seed
        self._updates = updates
        self._num_updates = 0
        self._optimizer, self._learning_rate_fn = optimizer, learning_rate_fn

    def set_feature_extractor(self, phi: Sequence[np.ndarray]) -> None:
        """Replaces the initial phi, in the order of Keras' `trainable_variables`."""
        self._algorithm.set_state([*phi, *self._algorithm.state[len(phi) :]])

    @property
    def state(self) -> list[np.ndarray]:
        """The number of updates done, and the state of the algorithm."""
        return [np.asarray(self._num_updates), *self._algorithm.state]

    def set_state(self, state: Sequence[np.ndarray]) -> None:
        """Sets the state to an earlier value of `state`."""
        num_updates, *algorithm_state = state
        self._algorithm.set_state(algorithm_state)
        self._num_updates = int(num_updates)

    def _batches_after(self, num_done: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        for batch in pooled_batches(
            self.task.dataset, self._batch_size, self._seed, num_done
        ):
            yield batch["image"], batch["label"]

    def _client_steps(self, round_num: int) -> int:
        dataset = self.task.dataset
        cohort = draws.cohort(
            self._seed, round_num, dataset.train.client_ids, self._cohort_size
        )
        return sum(
            -(-dataset.num_examples(client_id) // self._batch_size)
            for client_id in cohort
        )

    def _train_round(self, round_num: int) -> Metrics:
        """Does as many updates as the federated round; returns the same metrics."""
        if self._learning_rate_fn is not None:
            rate = self._learning_rate_fn(tf.constant(round_num - 1))
            self._optimizer.learning_rate.assign(rate)
        num_updates = 1 if self._updates == "rounds" else self._client_steps(round_num)
        measured = self._do_steps(self._num_updates, num_updates)
        self._num_updates += num_updates
        return Metrics(measured)
