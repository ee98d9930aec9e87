"""Centralized training with the full softmax (FedSS, section 4.1: Centralized)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_fedss import losses, models


class CentralizedResult(NamedTuple):
    """What centralized training ends with.

    Attributes:
        feature_extractor: phi, float32 arrays in the order of `trainable_variables`.
        classifier: W, float32[n, d].
        loss: The mean loss over the last epoch, each example's before its step.
        accuracy: Likewise, the share of examples that were classified correctly.
    """

    feature_extractor: list[np.ndarray]
    classifier: np.ndarray
    loss: float
    accuracy: float


def train_centralized(
    model: tf.keras.Model,
    data: tf.data.Dataset,
    num_examples: int,
    num_classes: int,
    *,
    optimizer: tf.keras.optimizers.Optimizer,
    num_epochs: int,
    batch_size: int = 32,
    logit_scale: float = 20.0,
    seed: int = 0,
    on_step: Callable[[int, float, float], None] | None = None,
) -> CentralizedResult:
    """Trains phi and a cosine classifier on IID batches (Eq. 2).

    Args:
        model: phi, from images [examples, h, w, c] to float32[examples, d]. Its weights
            are the start, and are trained in place.
        data: {"image": [h, w, c], "label": int32[]}, not batched.
        num_examples: The number of elements of `data`.
        num_classes: n.
        optimizer: A fresh Keras optimizer.
        num_epochs: Passes over the data.
        batch_size: The mini-batch; a last short one is a step too.
        logit_scale: The fixed scale of the cosine logits.
        seed: Of the initial W and of the order of the examples.
        on_step: Called after each step with (steps done, loss, accuracy), the last two
            means over the epoch so far.

    Returns:
        The trained weights and the metrics of the last epoch.
    """
    classifier = tf.Variable(
        models.initial_classifier(num_classes, model.output_shape[1], [seed, 0])
    )
    variables = [*model.trainable_variables, classifier]
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(images, labels):
        with tf.GradientTape() as tape:
            features = model(tf.cast(images, tf.float32), training=True)
            logits = models.cosine_logits(features, classifier, logit_scale)
            example_losses = losses.softmax_loss(logits, labels)
            loss = tf.reduce_mean(example_losses)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        is_correct = tf.argmax(logits, 1, tf.int32) == labels
        return tf.reduce_sum(example_losses), tf.math.count_nonzero(is_correct)

    batches = (
        # Beyond some size a full shuffle costs more memory than it is worth.
        data.shuffle(min(num_examples, 50_000), seed, reshuffle_each_iteration=True)
        .batch(batch_size)
        .prefetch(4)
    )
    steps = 0
    loss = accuracy = float("nan")
    for _ in range(num_epochs):
        loss_sum = num_correct = num_seen = 0
        for batch in batches:
            batch_loss, batch_correct = step(batch["image"], batch["label"])
            loss_sum += float(batch_loss)
            num_correct += int(batch_correct)
            num_seen += len(batch["label"])
            steps += 1
            loss, accuracy = loss_sum / num_seen, num_correct / num_seen
            if on_step is not None:
                on_step(steps, loss, accuracy)
    return CentralizedResult(
        [v.numpy() for v in model.trainable_variables],
        classifier.numpy(),
        loss,
        accuracy,
    )
