"""Task: data, a model to train on them, and a metric."""

import abc
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow_federated as tff

from tff_fedss.datasets.fingerprint import Fingerprint


class Task(abc.ABC):
    """The triple of data, model and metric of one experiment.

    Attributes:
        metric: The key, in the result of `evaluate`, of the metric that compares
            methods.
        metric_title: Its name in tables and plots.
        dataset: The data.
    """

    metric: ClassVar[str]
    metric_title: ClassVar[str]

    def __init__(self, dataset: Any):
        self.dataset = dataset

    @property
    def summary(self) -> str:
        """A description of the data in one line."""
        return self.dataset.summary()

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the data, see `datasets.fingerprint`."""
        return self.dataset.fingerprint()

    def batches(self, num_done: int) -> Iterator[tuple[Any, ...]]:
        """Yields mini-batches without end, the arguments of an algorithm's `update`.

        Tasks whose clients or algorithm make the mini-batches do not have it.

        Args:
            num_done: Number of batches to skip, because they have been used before.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures a model on held-out data.

        Args:
            weights: The run's weights; trainable = [*phi, W] if there is a W.

        Returns:
            Metrics by name, `metric` among them.
        """

    @staticmethod
    def format_metric(value: float) -> str:
        """Formats a value of the metric, here a share."""
        return f"{100 * value:.1f} %"
