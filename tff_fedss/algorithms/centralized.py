"""Centralized training with the full softmax (FedSS, section 4.1: Centralized).

An ordinary TensorFlow loop with a Keras optimizer over IID batches: the reference for
federated training, and the warm start of the feature extractor.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss import models, seeds
from tff_fedss.algorithms.in_place import InPlace, as_numbers

# A full shuffle of more would cost too much memory.
_SHUFFLE_BUFFER = 200_000


class Centralized(InPlace):
    """phi and a cosine classifier W, trained step by step on Eq. 2.

    Args:
        model: phi, from images [examples, h, w, c] to float32[examples, d]. Its weights
            are the initial ones and are trained in place.
        num_classes: n.
        seed: Seed of the initial W; `build_fedss` draws the same W from it.
        initial_norm: Norm of its rows, see `models.initial_classifier`.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        num_classes: int,
        optimizer: tf.keras.optimizers.Optimizer,
        *,
        logit_scale: float = models.LOGIT_SCALE,
        image_dtype: tf.DType = tf.uint8,
        seed: int = 0,
        initial_norm: float = models.INITIAL_NORM,
    ):
        if model.losses:
            raise ValueError(
                "model has regularizers, which are no part of Eq. 2: use weight decay "
                "of its optimizer."
            )
        self._model = model
        self._logit_scale = logit_scale
        self._classifier = tf.Variable(
            models.initial_classifier(
                num_classes, model.output_shape[1], [seed, 0], initial_norm
            )
        )
        super().__init__(
            [*model.trainable_variables, self._classifier],
            optimizer,
            model.non_trainable_variables,
        )
        # One graph for all batch sizes.
        self._update_graph = tf.function(
            self._step,
            input_signature=[
                tf.TensorSpec([None, *model.input_shape[1:]], image_dtype),
                tf.TensorSpec([None], tf.int32),
            ],
        )

    def update(
        self, images: np.ndarray | tf.Tensor, labels: np.ndarray | tf.Tensor
    ) -> dict[str, float]:
        """Does one step on images [examples, h, w, c] with labels int32[examples].

        Returns sums measured before the step: `loss`, `accuracy` (the number of
        correctly classified examples) and `num_examples`.
        """
        sums = as_numbers(self._update_graph(images, labels))
        return {**sums, "num_examples": len(labels)}

    def _step(self, images: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
        def logits() -> tf.Tensor:
            features = self._model(tf.cast(images, tf.float32), training=True)
            return models.cosine_logits(features, self._classifier, self._logit_scale)

        return self._softmax_step(logits, labels)


def iid_batches(
    data: tf.data.Dataset,
    num_examples: int,
    batch_size: int,
    seed: int,
    ready: Callable[[Any, tf.Tensor], Any] | None = None,
    num_done: int = 0,
) -> tf.data.Dataset:
    """Repeats data without end, shuffled anew for every epoch.

    Args:
        data: Examples, not batched.
        num_examples: The number of elements of `data`.
        batch_size: The mini-batch. The last one of an epoch may be shorter.
        seed: Seed of the order, and of the draws of `ready`. It and the epoch's number
            decide an epoch.
        ready: Maps an example and a seed, int32[2], to `{"image": [h, w, c], "label":
            int32[]}`; it is applied after the shuffle, to several examples at a time.
            None: the examples have that form already.
        num_done: Number of batches to skip, because they have been used before.

    Returns:
        Batches. None spans two epochs: an epoch has ceil(num_examples / batch_size).
    """
    buffer = min(num_examples, _SHUFFLE_BUFFER)

    def epoch(number):
        epoch_seed = seeds.fold_in([seed, 0], number)
        order_seed = tf.cast(seeds.fold_in(epoch_seed, 0)[0], tf.int64)
        shuffled = data.shuffle(buffer, order_seed, reshuffle_each_iteration=False)
        if ready is not None:
            shuffled = shuffled.enumerate().map(
                lambda i, example: ready(example, seeds.fold_in(epoch_seed, i + 1)),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
        return shuffled.batch(batch_size)

    epochs_done, batches_done = divmod(num_done, -(-num_examples // batch_size))
    return (
        tf.data.Dataset.range(epochs_done, tf.int64.max)
        .flat_map(epoch)
        .skip(batches_done)
        .prefetch(4)
    )
