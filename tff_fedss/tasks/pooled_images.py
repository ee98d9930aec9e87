"""Pooled images task: classification, trained centrally with sampled softmax."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_fedss import models
from tff_fedss.tasks import sampled_softmax
from tff_fedss.tasks.classification import Classification


class PooledImages(sampled_softmax.SampledSoftmaxTask):
    """The clients' images of a classification task, pooled; the metric is top-1."""

    metric = Classification.metric
    metric_title = Classification.metric_title

    def __init__(
        self,
        task: Classification,
        pooled_batches: Callable[[int], Iterable[Any]],
        *,
        logit_scale: float,
    ):
        """Takes the test and phi from a task.

        Args:
            task: The task.
            pooled_batches: Gives `{"image", "label"}` batches of all clients' images
                from the number of those that have been used before, see
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
