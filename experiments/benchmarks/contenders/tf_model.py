"""The workload's model in TensorFlow, and what the contenders that run on it share."""

import abc
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from experiments.benchmarks import protocol
from experiments.benchmarks.workload import LOGIT_SCALE, Workload
from tff_fedss import models


def feature_extractor(workload: Workload) -> tf.keras.Model:
    """Builds phi; its initial weights are replaced by the workload's."""
    if workload.model == "mobilenet_v3_small":
        return models.FEATURE_EXTRACTORS["mobilenet_v3_small"](
            workload.image_shape, workload.embedding_dim
        )
    layers = tf.keras.layers
    seeded = tf.keras.initializers.GlorotUniform(seed=0)
    options = {"activation": "relu", "kernel_initializer": seeded}
    images = tf.keras.Input(workload.image_shape)
    x = layers.Rescaling(1 / 255)(images)
    x = layers.Conv2D(32, 3, name="conv1", **options)(x)
    x = layers.Conv2D(64, 3, name="conv2", **options)(x)
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    x = layers.Dense(workload.embedding_dim, name="dense", **options)(x)
    return tf.keras.Model(images, x)


class TfContender(protocol.Contender):
    """A contender on TensorFlow.

    `_trainable` returns its global model, phi's weights in the order of the Keras model
    and then W.
    """

    def __init__(self, workload: Workload):
        self._workload = workload
        self._clients = workload.clients()
        self._phi = feature_extractor(workload)

    @abc.abstractmethod
    def _trainable(self) -> Sequence[np.ndarray]: ...

    def _names(self) -> list[str]:
        """Returns the workload's names of the weights."""
        phi = [v.name.removesuffix(":0") for v in self._phi.trainable_variables]
        return [*phi, "classifier"]

    def _initial(self) -> list[np.ndarray]:
        """Returns the workload's weights, ordered like `_trainable`."""
        weights = self._workload.initial_weights()
        ordered = [weights.pop(name) for name in self._names()]
        if weights:
            raise ValueError(f"The model lacks {sorted(weights)}.")
        return ordered

    def weights(self) -> dict[str, np.ndarray]:
        return dict(zip(self._names(), self._trainable(), strict=True))

    def loss(self) -> float:
        # A new model: Keras no longer calls models older than one made in a graph.
        model = feature_extractor(self._workload)
        *phi, w = self._trainable()
        for variable, value in zip(model.trainable_variables, phi, strict=True):
            variable.assign(value)
        total, count = 0.0, 0
        for client in self._clients:
            features = model(tf.cast(client.images, tf.float32))
            logits = models.cosine_logits(features, w, LOGIT_SCALE)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                client.labels, logits
            )
            total += float(tf.reduce_sum(losses))
            count += len(client.labels)
        return total / count
