"""One method in training: a process, its state and its task."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_fedss.tasks import Task
from tff_fedss.training import draws
from tff_fedss.training.loop import Metrics


def client_selection_fn(
    task: Task, cohort_size: int, seed: int
) -> Callable[[int], list[Any]]:
    """Builds the function that `tff.simulation.run_training_process` calls each round.

    Args:
        task: The task.
        cohort_size: K, the number of clients of a round.
        seed: Of the run.

    Returns:
        A function from the round, counted from 1, to the client argument of
        `algorithms.build_fedss`.
    """

    def select_clients(round_num: int) -> list[Any]:
        return [
            task.client(client_id, draws.client_seed(seed, round_num, client_id))
            for client_id in draws.cohort(
                seed, round_num, task.dataset.train.client_ids, cohort_size
            )
        ]

    return select_clients


class FederatedRun:
    """Runs the rounds of a learning process on the clients of a task.

    Attributes:
        name: What to call the run in tables and progress lines.
        task: The task.
        round_num: The number of rounds done.
    """

    def __init__(
        self,
        name: str,
        process: tff.learning.templates.LearningProcess,
        task: Task,
        *,
        cohort_size: int,
        seed: int,
        feature_extractor: list[np.ndarray] | None = None,
    ):
        """Initializes the state of the process.

        Args:
            name: What to call the run.
            process: From `algorithms.build_fedss`.
            task: The task.
            cohort_size: K, the number of clients of a round.
            seed: Of the cohorts and of the clients' draws.
            feature_extractor: phi to start from, instead of the initial one.
        """
        self.name = name
        self.task = task
        self.round_num = 0
        self._process = process
        self._select_clients = client_selection_fn(task, cohort_size, seed)
        self._state = process.initialize()
        if feature_extractor is not None:
            initial = process.get_model_weights(self._state)
            self._state = process.set_model_weights(
                self._state,
                tff.learning.models.ModelWeights(
                    trainable=[*feature_extractor, initial.trainable[-1]],
                    non_trainable=[],
                ),
            )

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The model, with trainable = [*phi, W]."""
        return self._process.get_model_weights(self._state)

    def run_round(self) -> Metrics:
        """Runs one round.

        Returns:
            The metrics of the process as Python numbers.
        """
        clients = self._select_clients(self.round_num + 1)
        self._state, round_metrics = self._process.next(self._state, clients)
        self.round_num += 1
        return collections.OrderedDict(
            (key, np.asarray(value).item()) for key, value in round_metrics.items()
        )
