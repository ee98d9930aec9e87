"""Tasks: data, a model to train on them, and a metric."""

import abc
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import tensorflow_federated as tff

from tff_fedss import models
from tff_fedss.datasets.fingerprint import Fingerprint


class Task(abc.ABC):
    """The triple of data, model and metric of one experiment.

    Attributes:
        metric: The key, in the result of `evaluate`, of the metric that compares
            methods.
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
        """Yields arguments of an algorithm's `update` without end, after `num_done`.

        Tasks whose clients or algorithm make the mini-batches do not have it.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Returns metrics of held-out data by name, `metric` among them.

        If there is a W, the weights have trainable = [*phi, W].
        """

    @staticmethod
    def format_metric(value: float) -> str:
        """Formats a value of the metric, here a share."""
        return f"{100 * value:.1f} %"


class SampledSoftmaxTask(Task):
    """A task on which samplers are compared, with its own encoder.

    Its `batches` have inputs for the encoder, int32 labels, and optionally the
    `left_out` of `algorithms.SampledSoftmax`. It evaluates trainable = [*encoder, W].

    Attributes:
        num_classes: n.
        embedding_dim: d.
        logit_scale: tau.
    """

    def __init__(
        self, dataset: Any, num_classes: int, embedding_dim: int, logit_scale: float
    ):
        super().__init__(dataset)
        self.num_classes = num_classes
        self.embedding_dim = embedding_dim
        self.logit_scale = logit_scale

    @abc.abstractmethod
    def encoder(self) -> Any:
        """Builds the encoder with its initial weights."""


def load_weights(encoder: Any, weights: tff.learning.models.ModelWeights) -> np.ndarray:
    """Sets an encoder's weights from trainable = [*encoder, W]; returns W."""
    *values, classifier = weights.trainable
    models.assign(encoder.trainable_variables, values)
    return classifier
