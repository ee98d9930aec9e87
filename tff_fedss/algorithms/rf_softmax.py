"""Sampled softmax training with any proposal distribution, on one machine.

Rawat et al., "Sampled Softmax with Random Fourier Features" (NeurIPS 2019), and the
samplers it is compared with. It needs the embeddings of all classes, which a client
does not have (FedSS, section 3.3), so here it is a centralized comparison.

Input and class embeddings are brought to length 1, and logits are o_i = tau h.c_i. In a
step, each example draws its own m negatives from the sampler, given its h.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tff_fedss import losses, metrics, models, seeds
from tff_fedss.algorithms.in_place import InPlace, as_numbers
from tff_fedss.algorithms.optimizers import scaled, with_summed_rows
from tff_fedss.samplers import ClassSampler

# Number of examples of the last mini-batch on which q is measured.
_MEASURED_EXAMPLES = 8
# Padding of a row of classes that are left out of a softmax.
NO_CLASS = -1


class Encoder(Protocol):
    """An encoder from inputs to embeddings h, possibly with a carried state.

    Attributes:
        trainable_variables: Its weights, always in the same order.
        initial_carry: The state before the first input; () if there is none.
        shapes_vary: Whether nearly every mini-batch has other shapes of inputs.
    """

    trainable_variables: Sequence[tf.Variable]
    initial_carry: tuple[np.ndarray, ...]
    shapes_vary: bool

    def __call__(
        self, inputs: Any, carry: tuple[tf.Tensor, ...], training: bool
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Maps inputs and a state to float32[examples, d] and the next state."""


class SampledSoftmax(InPlace):
    """An encoder and a classifier W, trained step by step.

    Attributes:
        sampler: The sampler of negatives; None: the full softmax (Eq. 2 of FedSS).
    """

    def __init__(
        self,
        encoder: Encoder,
        num_classes: int,
        embedding_dim: int,
        optimizer: tf.keras.optimizers.Optimizer,
        sampler: ClassSampler | None,
        *,
        num_negatives: int,
        logit_scale: float,
        max_gradient_norm: float | None = None,
        seed: int = 0,
    ):
        """Draws the initial W.

        Args:
            encoder: Its weights are the initial ones and are trained in place.
            num_classes: n.
            embedding_dim: d.
            optimizer: A fresh Keras optimizer. It must not change a row of W without a
                gradient (SGD and Adagrad do not, momentum and Adam do): the sampler is
                updated on the other rows only.
            sampler: A sampler of n classes; None for the full softmax.
            num_negatives: m.
            logit_scale: tau.
            max_gradient_norm: Gradients with a larger norm, over all weights together,
                are scaled down to it. None: no clipping.
            seed: Seed of W and of the draws.
        """
        self.sampler = sampler
        self._encoder = encoder
        self._num_negatives = num_negatives
        self._logit_scale = logit_scale
        self._max_gradient_norm = max_gradient_norm
        self._seed = seed
        self._classifier = tf.Variable(
            models.initial_classifier(num_classes, embedding_dim, [seed, 0])
        )
        super().__init__([*encoder.trainable_variables, self._classifier], optimizer)
        self._carry = encoder.initial_carry
        # h, labels and left_out of the last mini-batch.
        self._last: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None = None
        # Unless shapes vary, each mini-batch size has its own graph: a graph for all
        # sizes rounds differently, and a run may resume at the short last mini-batch.
        self._update_graph = tf.function(
            self._step, reduce_retracing=encoder.shapes_vary
        )
        self._rebuild_sampler()

    def round_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Computes the metrics of a round.

        Returns:
            `loss`, `num_examples`; with a maximum `clipped_steps`, the number of steps
            whose gradient was clipped; and with a sampler `clipped_share`, the share of
            its estimates below their bound, 0 if it estimates nothing.
        """
        num_examples = sums["num_examples"]
        found = {"loss": sums["loss"] / num_examples, "num_examples": num_examples}
        if self._max_gradient_norm is not None:
            found["clipped_steps"] = sums["clipped_steps"]
        if self.sampler is not None:
            found["clipped_share"] = sums["clipped"] / max(sums["estimates"], 1)
        return found

    def measure_proposal(self) -> metrics.ProposalQuality | None:
        """Compares the sampler's q with the softmax, at a cost of O(n) an example.

        Returns:
            The comparison on those of the first 8 examples of the last mini-batch that
            have negatives, with their h in it and the current W. None without a
            sampler, without such an example, or before the first step.
        """
        if self.sampler is None or self._last is None:
            return None
        h, labels, left_out = self._last
        few = slice(_MEASURED_EXAMPLES)
        rows = _unit_rows(self._classifier.numpy())
        logits = self._logit_scale * h[few] @ rows.T
        is_left_out = np.zeros(logits.shape, bool)
        examples = np.arange(len(logits))
        is_left_out[examples, labels[few]] = True
        if left_out is not None:
            example, place = np.nonzero(left_out[few] != NO_CLASS)
            is_left_out[example, left_out[few][example, place]] = True
        some = ~is_left_out.all(1)
        if not some.any():
            return None
        proposal = self.sampler.distribution(h[few][some], labels[few][some])
        return metrics.proposal_quality(
            logits[some], is_left_out[some], proposal, self._num_negatives
        )

    def update(
        self, inputs: Any, labels: np.ndarray, left_out: np.ndarray | None = None
    ) -> dict[str, float]:
        """Does one step on inputs of the encoder with targets int32[examples].

        Classes of `left_out`, int32[examples, L], are left out of the example's
        softmax, such as its other labels; NO_CLASS is padding. Returns `loss`,
        the sum before the step (sampled, or full without a sampler), and
        further inputs of `round_metrics`.
        """
        sampler = self.sampler
        if sampler is not None:
            sampler.num_estimates = sampler.num_clipped = 0
        sums, self._carry, h = self._update_graph(inputs, self._carry, labels, left_out)
        sums = {**as_numbers(sums), "num_examples": len(labels)}
        if sampler is not None:
            self._last = h.numpy(), np.asarray(labels), left_out
            sums["estimates"] = sampler.num_estimates
            sums["clipped"] = sampler.num_clipped
        return sums

    def _step(self, inputs, carry, labels, left_out):
        with tf.GradientTape() as tape:
            features, next_carry = self._encoder(inputs, carry, training=True)
            h = None
            if self.sampler is None:
                logits = models.cosine_logits(
                    features, self._classifier, self._logit_scale
                )
                if left_out is not None:
                    at = tf.where(left_out != NO_CLASS)
                    others = tf.cast(tf.gather_nd(left_out, at), at.dtype)
                    at = tf.stack([at[:, 0], others], 1)
                    logits = tf.tensor_scatter_nd_update(
                        logits, at, tf.fill([tf.shape(at)[0]], losses.LEFT_OUT)
                    )
                example_losses = losses.softmax_loss(logits, labels)
            else:
                h = models.unit(features)
                ids, log_q = self._draw(tf.stop_gradient(h), labels)
                positive = models.unit(tf.gather(self._classifier, labels))
                negative = models.unit(tf.gather(self._classifier, ids))
                scaled = self._logit_scale * h
                is_out = None
                if left_out is not None:
                    is_other = ids[:, :, tf.newaxis] == left_out[:, tf.newaxis]
                    is_out = tf.reduce_any(is_other, 2)
                example_losses = losses.sampled_softmax_loss(
                    tf.reduce_sum(scaled * positive, 1),
                    tf.linalg.matvec(negative, scaled),
                    log_q,
                    is_out,
                )
            loss = tf.reduce_mean(example_losses)
        gradient = tape.gradient(loss, self._trainable)
        sums = {"loss": tf.reduce_sum(example_losses)}
        if self._max_gradient_norm is not None:
            gradient, is_clipped = _clip(gradient, self._max_gradient_norm)
            sums["clipped_steps"] = tf.cast(is_clipped, tf.int32)
        self._descend(gradient)
        if self.sampler is not None and self.sampler.needs_embeddings:
            changed, _ = tf.unique(tf.concat([labels, tf.reshape(ids, [-1])], 0))
            # A graph runs operations with effects in the order of the code.
            tf.numpy_function(
                lambda ids, rows: self.sampler.update(ids, _unit_rows(rows)),
                [changed, tf.gather(self._classifier, changed)],
                [],
            )
        return sums, next_carry, h

    def _draw(self, h: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def draw(h, labels, step):
            # The step's number decides its draws, so a resumed run has the same.
            generator = seeds.generator(self._seed, step)
            return self.sampler.draw(h, labels, self._num_negatives, generator)

        ids, log_q = tf.numpy_function(
            draw, [h, labels, self._optimizer.iterations], [tf.int32, tf.float32]
        )
        ids.set_shape([None, self._num_negatives])
        log_q.set_shape([None, self._num_negatives])
        return ids, log_q

    def _rebuild_sampler(self) -> None:
        if self.sampler is not None:
            self.sampler.rebuild(_unit_rows(self._classifier.numpy()))

    @property
    def state(self) -> list[np.ndarray]:
        """The weights, the carried state and the optimizer's state."""
        return [*super().state, *map(np.asarray, self._carry)]

    def set_state(self, state: Sequence[np.ndarray]) -> None:
        """Sets a state."""
        count = len(self._variables)
        super().set_state(state[:count])
        self._carry = tuple(state[count:])
        self._rebuild_sampler()


def _clip(
    gradient: Sequence[tf.Tensor | tf.IndexedSlices], max_norm: float
) -> tuple[list[tf.Tensor | tf.IndexedSlices], tf.Tensor]:
    """Scales a gradient down to a norm, which counts a sparse row once.

    Returns:
        The gradient, with at most one slice a row, and whether it was clipped.
    """
    gradient = [with_summed_rows(g) for g in gradient]
    norm = tf.linalg.global_norm(gradient)
    scale = max_norm / tf.maximum(norm, max_norm)
    return [scaled(g, scale) for g in gradient], norm > max_norm


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    """Brings rows of W to length 1 for the sampler.

    TensorFlow may round a row differently depending on its position. Here a row has the
    same bits alone as in the whole W, so that a resumed run has the same draws.
    """
    squares = np.square(rows, dtype=np.float64).sum(1, keepdims=True)
    return (rows / np.sqrt(np.maximum(squares, models.UNIT_EPSILON))).astype(np.float32)
