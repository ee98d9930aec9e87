"""The workload's model in TensorFlow, for the contenders that run on it."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from experiments.benchmarks.workload import LOGIT_SCALE, Client, Workload
from tff_fedss import models


def feature_extractor(workload: Workload) -> tf.keras.Model:
    """Builds phi; its initial weights are replaced by the workload's."""
    if workload.model == "mobilenet_v3_small":
        return models.FEATURE_EXTRACTORS["mobilenet_v3_small"](
            workload.image_shape, workload.embedding_dim
        )
    images = tf.keras.Input(workload.image_shape)
    x = tf.keras.layers.Rescaling(1 / 255)(images)
    seeded = tf.keras.initializers.GlorotUniform(seed=0)
    x = tf.keras.layers.Conv2D(
        32, 3, activation="relu", kernel_initializer=seeded, name="conv1"
    )(x)
    x = tf.keras.layers.Conv2D(
        64, 3, activation="relu", kernel_initializer=seeded, name="conv2"
    )(x)
    x = tf.keras.layers.MaxPooling2D()(x)
    x = tf.keras.layers.Flatten()(x)
    x = tf.keras.layers.Dense(
        workload.embedding_dim, "relu", kernel_initializer=seeded, name="dense"
    )(x)
    return tf.keras.Model(images, x)


def names(model: tf.keras.Model) -> list[str]:
    """Returns the workload's names of phi's weights, in the order of the model."""
    return [v.name.removesuffix(":0") for v in model.trainable_variables]


def initial_weights(workload: Workload, model: tf.keras.Model) -> list[np.ndarray]:
    """Returns the workload's weights, phi's in the order of the model and then W."""
    weights = workload.initial_weights()
    ordered = [weights.pop(name) for name in (*names(model), "classifier")]
    if weights:
        raise ValueError(f"The model lacks {sorted(weights)}.")
    return ordered


def named(model: tf.keras.Model, weights: Sequence[np.ndarray]) -> dict:
    """The opposite of `initial_weights`."""
    return dict(zip((*names(model), "classifier"), weights, strict=True))


def mean_loss(
    workload: Workload, weights: Sequence[np.ndarray], clients: Sequence[Client]
) -> float:
    """Returns the mean softmax loss over all classes and all clients' examples."""
    # A new model: Keras no longer calls models older than one made in a graph.
    model = feature_extractor(workload)
    *phi, w = weights
    for variable, value in zip(model.trainable_variables, phi, strict=True):
        variable.assign(value)
    total, count = 0.0, 0
    for client in clients:
        features = model(tf.cast(client.images, tf.float32))
        logits = models.cosine_logits(features, w, LOGIT_SCALE)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(client.labels, logits)
        total += float(tf.reduce_sum(losses))
        count += len(client.labels)
    return total / count
