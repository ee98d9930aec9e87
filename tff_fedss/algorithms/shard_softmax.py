"""One device's part of Partial FC's model-parallel softmax.

The softmax over all shards' rows is exact: each device finds the maximum and the sum of
exponentials of its own logits, both are all-reduced, and each device can then compute
the gradient of its rows. Rows are taken in chunks. The exponentials of the first chunks
are kept for the gradient, up to `_KEPT_BYTES`; the others are computed twice, so that
the memory of a step is bounded for any sample size.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_fedss import losses, models
from tff_fedss.samplers import ShardSample

# Rows of a chunk. On 2 cores, at d = 64 and 64 examples, its working set fits in the
# cores' caches.
_CHUNK_ROWS = 8192
# Bytes of exponentials on a device: all 262,144 rows at 64 examples.
_KEPT_BYTES = 64 << 20
# Below every logit and finite, so that a shard without rows adds exactly 0.
_LOWEST = -1e30


class KeptExponentials(NamedTuple):
    """exp(o - maxima) of a shard's negatives, by chunk, so that `descend` can reuse it.

    Attributes:
        values: float32[examples, rows] of each chunk; [0, 0] of those not kept.
        maxima: float32[examples] of each chunk, subtracted from its logits.
        num_chunks: int32[], the number of chunks kept, the first ones.
    """

    values: tf.TensorArray
    maxima: tf.TensorArray
    num_chunks: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class ShardSoftmax:
    """The rows of W on one device, their momentum and their update.

    Attributes:
        weights: float32[rows, d], a shard of W.
        momentums: float32[rows, d], the momentum of each row.
        margin: Margin of the targets, with the scale of all logits.
        momentum: Momentum of SGD: m <- momentum m + g, w <- w - learning_rate m, on
            sampled rows only. The momentum of the others does not decay.
        weight_decay: Times w, it is added to g, for sampled rows only. A row's length
            matters only for how fast its direction changes.
    """

    weights: tf.Variable
    momentums: tf.Variable
    margin: losses.Margin
    learning_rate: float
    momentum: float
    weight_decay: float = 0.0

    def target_cosines(self, features: tf.Tensor, sample: ShardSample) -> tf.Tensor:
        """Computes cos(x_i, w_{y_i}), float32[examples]; 0 where y_i is elsewhere.

        Features are float32[examples, d], of length 1. Classes count also if not drawn.
        """
        ids = tf.maximum(sample.labels, 0)
        rows = models.unit(tf.gather(self.weights, ids))
        cosines = tf.reduce_sum(features * rows, 1)
        return tf.where(sample.labels >= 0, cosines, 0.0)

    def partition(
        self, features: tf.Tensor, target_logits: tf.Tensor, sample: ShardSample
    ) -> tuple[tf.Tensor, tf.Tensor, KeptExponentials]:
        """Finds the maximum of this shard's logits, and the sum of exp(o - maximum).

        Features are float32[examples, d], of length 1; the targets' logits have
        their margin. Returns float32[examples] each, a maximum of -1e30 and a
        sum of 0 without rows; and the `kept` of `descend`.
        """
        num_chunks = -(-tf.size(sample.negatives) // _CHUNK_ROWS)
        # Avoids a division by 0 without examples.
        chunk_bytes = 4 * _CHUNK_ROWS * tf.maximum(tf.size(target_logits), 1)
        num_kept = tf.minimum(num_chunks, _KEPT_BYTES // chunk_bytes)
        arrays = [
            tf.TensorArray(tf.float32, num_chunks, element_shape=shape)
            for shape in ([None, None], [None])
        ]

        def add(chunk, ids, sums):
            highest, total, values, maxima = sums
            logits = self._logits(features, _unit(tf.gather(self.weights, ids))[0])
            highest, total, exponentials = _accumulate(highest, total, logits)
            kept = tf.cond(
                chunk < num_kept,
                lambda: exponentials,
                lambda: tf.zeros_like(exponentials[:0, :0]),
            )
            return (
                highest,
                total,
                values.write(chunk, kept),
                maxima.write(chunk, highest),
            )

        nothing = tf.zeros_like(target_logits)
        positive_rows = _unit(tf.gather(self.weights, sample.positives))[0]
        is_target = _is_target(sample)
        logits = tf.where(
            is_target,
            target_logits[:, tf.newaxis],
            self._logits(features, positive_rows),
        )
        *sums, _ = _accumulate(nothing + _LOWEST, nothing, logits)
        *sums, values, maxima = _over_chunks(sample.negatives, add, (*sums, *arrays))
        return *sums, KeptExponentials(values, maxima, num_kept)

    def descend(
        self,
        features: tf.Tensor,
        target_logits: tf.Tensor,
        target_slopes: tf.Tensor,
        log_partition: tf.Tensor,
        example_weights: tf.Tensor,
        sample: ShardSample,
        kept: KeptExponentials,
    ) -> tf.Tensor:
        """Updates the rows of the sample; returns the gradient of the features.

        The loss is sum_i a_i (log Z_i - o_{i, y_i}) with weights a. Its gradient by the
        logit o_ij is a_i (p_ij - [j = y_i]).

        Args:
            features: float32[examples, d], of length 1.
            target_logits: float32[examples], with their margin.
            target_slopes: float32[examples], their derivatives by the cosines.
            log_partition: float32[examples], log Z over all shards.
            example_weights: float32[examples], a >= 0.
            kept: From `partition`.

        Returns:
            float32[examples, d], this shard's part of the gradient.
        """
        # exp(o - shift) = a p; exp(-inf) for an example that does not count.
        shift = log_partition - tf.math.log(example_weights)
        shift = tf.where(example_weights > 0, shift, float("inf"))
        ones = tf.ones_like(shift)

        def descend_negatives(chunk, ids, sums):
            weights = tf.gather(self.weights, ids)
            exponentials, factors = tf.cond(
                chunk < kept.num_chunks,
                lambda: (
                    kept.values.read(chunk),
                    tf.exp(kept.maxima.read(chunk) - shift),
                ),
                lambda: (
                    tf.exp(
                        self._logits(features, _unit(weights)[0]) - shift[:, tf.newaxis]
                    ),
                    ones,
                ),
            )
            factors *= self.margin.scale
            return (
                sums[0] + self._update(ids, weights, exponentials, factors, features),
            )

        ids = sample.positives
        weights = tf.gather(self.weights, ids)
        is_target = _is_target(sample)
        logits = tf.where(
            is_target,
            target_logits[:, tf.newaxis],
            self._logits(features, _unit(weights)[0]),
        )
        slopes = tf.exp(logits - shift[:, tf.newaxis])
        slopes -= tf.where(is_target, example_weights[:, tf.newaxis], 0.0)
        slopes *= tf.where(is_target, target_slopes[:, tf.newaxis], self.margin.scale)
        sums = (self._update(ids, weights, slopes, ones, features),)
        (gradient,) = _over_chunks(sample.negatives, descend_negatives, sums)
        return gradient

    def _logits(self, features: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return tf.matmul(self.margin.scale * features, rows, transpose_b=True)

    def _update(
        self,
        ids: tf.Tensor,
        weights: tf.Tensor,
        slopes: tf.Tensor,
        factors: tf.Tensor,
        features: tf.Tensor,
    ) -> tf.Tensor:
        """Takes a step on rows with distinct ids.

        Args:
            ids: int32[N].
            weights: float32[N, d], the rows before the step.
            slopes: float32[examples, N]; times the factors, the derivatives of the loss
                by the cosines.
            factors: float32[examples], multiplied into the smaller of two arrays.
            features: float32[examples, d].

        Returns:
            float32[examples, d], the gradient of the features by these rows.
        """
        rows, inverse_norms = _unit(weights)
        factors = factors[:, tf.newaxis]
        gradient = factors * tf.matmul(slopes, rows)
        by_unit = tf.matmul(slopes, factors * features, transpose_a=True)
        # The gradient of w / |w|: the component along w does not change the direction.
        along = tf.reduce_sum(rows * by_unit, 1, keepdims=True)
        by_row = inverse_norms * (by_unit - along * rows)
        if self.weight_decay:
            by_row += self.weight_decay * weights
        momentums = self.momentum * tf.gather(self.momentums, ids) + by_row
        weights -= self.learning_rate * momentums
        models.scatter_rows(self.momentums, ids, momentums)
        models.scatter_rows(self.weights, ids, weights)
        return gradient


def _unit(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Brings rows [N, d] to length 1; returns them and 1 / |w|, [N, 1]."""
    squares = tf.reduce_sum(tf.square(rows), 1, keepdims=True)
    inverse_norms = tf.math.rsqrt(tf.maximum(squares, models.UNIT_EPSILON))
    return rows * inverse_norms, inverse_norms


def _is_target(sample: ShardSample) -> tf.Tensor:
    """Returns which of the positives is each example's class, bool[examples, P]."""
    places = tf.range(tf.size(sample.positives))
    return tf.equal(sample.targets[:, tf.newaxis], places)


def _accumulate(
    highest: tf.Tensor, total: tf.Tensor, logits: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Adds logits [examples, N] to a running maximum and sum of exponentials.

    Returns:
        The new maximum and sum, and the exponentials, [examples, N].
    """
    new = tf.maximum(highest, tf.reduce_max(logits, 1))
    exponentials = tf.exp(logits - new[:, tf.newaxis])
    total = total * tf.exp(highest - new) + tf.reduce_sum(exponentials, 1)
    return new, total, exponentials


def _over_chunks(
    ids: tf.Tensor, body: Callable[[tf.Tensor, tf.Tensor, Any], Any], sums: Any
) -> Any:
    """Folds a function of a chunk's number and ids over the chunks, one at a time."""
    size = tf.size(ids)

    def step(chunk, sums):
        start = chunk * _CHUNK_ROWS
        return chunk + 1, body(chunk, ids[start : start + _CHUNK_ROWS], sums)

    _, sums = tf.while_loop(
        lambda chunk, sums: chunk * _CHUNK_ROWS < size,
        step,
        (tf.constant(0), sums),
        # The default would keep ten chunks in memory.
        parallel_iterations=1,
    )
    return sums
