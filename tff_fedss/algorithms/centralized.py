"""Centralized training with the full softmax (FedSS, section 4.1: Centralized).

An ordinary TensorFlow loop with a Keras optimizer over IID batches: the reference that
federated training is judged by, and the warm start of the feature extractor.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss import models, seeds
from tff_fedss.algorithms.in_place import InPlace, as_numbers

# Beyond some size a full shuffle costs more memory than it is worth.
_SHUFFLE_BUFFER = 200_000


class Centralized(InPlace):
    """phi and a cosine classifier W, trained step by step on Eq. 2.

    Args:
        model: phi, from images [examples, h, w, c] to float32[examples, d]. Its weights
            are the start, and are trained in place.
        num_classes: n.
        optimizer: A fresh Keras optimizer.
        logit_scale: The fixed scale of the cosine logits.
        image_dtype: The dtype of the images in the data.
        seed: Of the initial W, which is that of `build_fedss` with the same seed.
        initial_norm: Of its rows, see `models.initial_classifier`.
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
        """Does one step on a mini-batch.

        Args:
            images: [examples, h, w, c].
            labels: int32[examples].

        Returns:
            From before the step `loss`, the sum, `accuracy`, the number of correctly
            classified examples, and `num_examples`.
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
    """Shuffles data again for every epoch, and repeats them without end.

    Args:
        data: Examples, not batched.
        num_examples: The number of elements of `data`.
        batch_size: The mini-batch. The last one of an epoch may be shorter.
        seed: Of the order, and of what `ready` draws. An epoch is a function of it and
            of the number of the epoch.
        ready: Maps an example and a seed, int32[2], to `{"image": [h, w, c], "label":
            int32[]}`; it is applied after the shuffle, to several examples at a time.
            None: the examples are that already.
        num_done: How many batches to leave out, because they have been used before.

    Returns:
        Batches. Epochs do not mix: ceil(num_examples / batch_size) batches are one.
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
