"""What the tasks have in common on which samplers are compared (RF-softmax).

Each gives mini-batches to an encoder of its own, and measures a model over all n
classes, whatever it was trained with.
"""

import abc
import collections
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import tensorflow_federated as tff

from tff_fedss import models
from tff_fedss.datasets.fingerprint import Fingerprint


class SampledSoftmaxTask(abc.ABC):
    """The triple of data, encoder and metric.

    Attributes:
        metric: The key in the result of `evaluate` by which samplers are compared.
        metric_title: How to write it in tables and plots.
        num_classes: n.
        embedding_dim: d.
        logit_scale: tau.
        summary: The data in one line.
    """

    metric: ClassVar[str]
    metric_title: ClassVar[str]
    num_classes: int
    embedding_dim: int
    logit_scale: float
    summary: str

    @abc.abstractmethod
    def fingerprint(self) -> Fingerprint:
        """By what a run knows its data again; see `datasets.fingerprint`."""

    @abc.abstractmethod
    def encoder(self) -> Any:
        """Builds the encoder with its initial weights."""

    @abc.abstractmethod
    def batches(self, num_done: int) -> Iterator[tuple[Any, ...]]:
        """Yields inputs for the encoder and int32 labels without end.

        Some tasks yield a third part: `left_out` of `algorithms.SampledSoftmax`.

        Args:
            num_done: How many batches to leave out, because they have been used before.
        """

    @abc.abstractmethod
    def evaluate(
        self, weights: tff.learning.models.ModelWeights
    ) -> "collections.OrderedDict[str, float]":
        """Measures a model on held-out data.

        Args:
            weights: With trainable = [*encoder, W].
        """

    @staticmethod
    def format_metric(value: float) -> str:
        """Writes a value of the metric, here a share."""
        return f"{100 * value:.1f} %"


def load_weights(encoder: Any, weights: tff.learning.models.ModelWeights) -> np.ndarray:
    """Gives an encoder its weights.

    Args:
        encoder: See `algorithms.Encoder`.
        weights: With trainable = [*encoder, W].

    Returns:
        W.
    """
    *values, classifier = weights.trainable
    models.assign(encoder.trainable_variables, values)
    return classifier
