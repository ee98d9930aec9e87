"""Sampled softmax tasks: mini-batches for an encoder, and a test over all n classes."""

import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_fedss import models
from tff_fedss.tasks.federated import Classification
from tff_fedss.tasks.task import Task


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


class PooledImages(SampledSoftmaxTask):
    """A classification task on the pooled images of all clients, measured by top-1."""

    metric = Classification.metric
    metric_title = Classification.metric_title

    def __init__(
        self,
        task: Classification,
        pooled_batches: Callable[[int], Iterable[Any]],
        *,
        logit_scale: float,
    ):
        """Takes test images and phi from a task.

        Args:
            task: The task.
            pooled_batches: Maps the number of batches used before to the following
                `{"image", "label"}` batches of all clients' images, see
                `training.pooled_batches`.
            logit_scale: tau.
        """
        dim = task.feature_extractor_fn().output_shape[1]
        super().__init__(task.dataset, task.dataset.num_classes, dim, logit_scale)
        self._task = task
        self._pooled_batches = pooled_batches

    def encoder(self) -> models.ImageEncoder:
        """Builds phi with its initial weights."""
        return models.ImageEncoder(self._task.feature_extractor_fn())

    def batches(self, num_done: int) -> Iterator[tuple[Any, np.ndarray]]:
        """Yields images and labels of all clients together, without end."""
        for batch in self._pooled_batches(num_done):
            yield batch["image"], batch["label"].numpy()

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Returns {"top1": ...} on the held-out images."""
        return self._task.evaluate(weights)


def load_weights(encoder: Any, weights: tff.learning.models.ModelWeights) -> np.ndarray:
    """Sets an encoder's weights.

    Args:
        encoder: See `algorithms.Encoder`.
        weights: With trainable = [*encoder, W].

    Returns:
        W.
    """
    *values, classifier = weights.trainable
    models.assign(encoder.trainable_variables, values)
    return classifier
