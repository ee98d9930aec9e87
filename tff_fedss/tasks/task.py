"""Task: data, a model to train on them, and a metric."""

import abc
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow_federated as tff

from tff_fedss.datasets.fingerprint import Fingerprint


class Task(abc.ABC):
    """The triple of data, model and metric of one experiment.

    Attributes:
        metric: The key in the result of `evaluate` by which methods are compared.
        metric_title: How to write the metric in tables and plots.
        dataset: The data.
    """

    metric: ClassVar[str]
    metric_title: ClassVar[str]

    def __init__(self, dataset: Any):
        self.dataset = dataset

    @property
    def summary(self) -> str:
        """The data in one line."""
        return self.dataset.summary()

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the data, see `datasets.fingerprint`."""
        return self.dataset.fingerprint()

    def batches(self, num_done: int) -> Iterator[tuple[Any, ...]]:
        """Yields mini-batches without end, as the `update` of an algorithm takes them.

        A task whose clients or algorithm make the mini-batches has none.

        Args:
            num_done: How many batches to leave out, because they have been used before.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures a model on held-out data.

        Args:
            weights: As the run has them; trainable = [*phi, W] where there is a W.

        Returns:
            Metrics by name, `metric` among them.
        """

    @staticmethod
    def format_metric(value: float) -> str:
        """Writes a value of the metric, here a share."""
        return f"{100 * value:.1f} %"
