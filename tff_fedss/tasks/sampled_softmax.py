"""Sampled softmax task: mini-batches for an encoder, and a test over all n classes."""

import abc
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_fedss import models
from tff_fedss.tasks.task import Task


class SampledSoftmaxTask(Task):
    """A task on which samplers are compared, with an encoder of its own.

    Its `batches` have inputs for the encoder, int32 labels, and maybe a third part:
    `left_out` of `algorithms.SampledSoftmax`. It measures trainable = [*encoder, W].

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
