"""Partial FC: a softmax over ten million classes, split over devices and sampled.

An et al., "Partial FC: Training 10 Million Identities on a Single Machine" (arXiv
2010.05222; we have an article about it). W lies in shards of rows on the devices of a
mesh; the encoder works on a slice of the mini-batch on each. A step is

1. x = features at length 1 of the device's slice, all-gathered;
2. on each device, the maximum and the sum of exponentials of the logits s cos(x, w) of
   its sampled rows (`samplers.ShardSampler`), both all-reduced: the softmax over the
   samples of all shards is exact;
3. on each device, the gradient of its sampled rows, applied at once to them and their
   momentum, and that of x, which is reduce-scattered;
4. backpropagation of the device's slice; the encoder's gradients are all-reduced.

At r = 1 it is the model-parallel full softmax. The logits are not corrected for the
sampling; neither are the article's.

An example whose class is not in its step's sample (all-random sampling only) has no
target and no -log p_y: it is left out of the loss, which is the mean over the others.
The article does not say what it did.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import losses, models
from tff_fedss.algorithms.in_place import InPlace, as_numbers
from tff_fedss.algorithms.rf_softmax import Encoder
from tff_fedss.algorithms.shard_softmax import ShardSoftmax
from tff_fedss.errors import InvalidInputError, check_range
from tff_fedss.runtime import DeviceMesh, balanced_bounds
from tff_fedss.samplers import ShardSample, ShardSampler

# W ~ N(0, 0.01), as in the authors' code; 0.01 is the standard deviation.
_INITIAL_STDDEV = 0.01


class PartialFC(InPlace):
    """An encoder and a classifier W in shards, trained step by step."""

    def __init__(
        self,
        encoder: Encoder,
        num_classes: int,
        embedding_dim: int,
        mesh: DeviceMesh,
        *,
        margin: losses.Margin,
        sample_rate: float = 0.1,
        sampling: str = "pprn",
        num_strata: int = 16,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        seed: int = 0,
    ):
        """Draws the initial W, which does not depend on the mesh.

        Args:
            encoder: A stateless encoder. Its weights are the initial ones and are
                trained in place, with SGD as W is. Its inputs are arrays with an entry
                for each example.
            num_classes: n.
            embedding_dim: d.
            margin: Margin of the targets, and the scale s of the logits.
            sample_rate: r.
            num_strata: Number of parts of the classes that are sampled separately, see
                `samplers.ShardSampler`.
            weight_decay: Decay of the encoder and of the rows of W in a sample: times a
                weight, it is added to its gradient (5e-4 in the authors' code).
            seed: Seed of W and of the draws.

        Raises:
            InvalidInputError: If there are more strata than classes, or devices than
                strata, or if strata are too small for a sample.
        """
        check_range("num_strata", num_strata, len(mesh), num_classes)
        largest = -(-num_classes // num_strata)
        if round(sample_rate * largest) == 0:
            raise InvalidInputError(
                f"sample_rate={sample_rate:g}: nothing is sampled of a stratum of "
                f"{largest} classes. Use fewer strata (num_strata={num_strata}) or a "
                "higher rate."
            )
        self._num_steps = 0
        self._encoder = encoder
        self._mesh = mesh
        self._margin = margin
        strata = balanced_bounds(num_classes, num_strata)
        bounds = strata[balanced_bounds(num_strata, len(mesh))]
        self._sampler = ShardSampler(
            strata, bounds, sample_rate, sampling=sampling, seed=seed
        )
        self._matrices = {
            name: models.ShardedMatrix(mesh.devices, bounds, embedding_dim)
            for name in ("W", "momentum")
        }
        self._matrices["W"].draw_normal(_INITIAL_STDDEV, seed)
        self._shards = [
            ShardSoftmax(
                w,
                m,
                margin,
                learning_rate=learning_rate,
                momentum=momentum,
                weight_decay=weight_decay,
            )
            for w, m in zip(
                *(matrix.shards for matrix in self._matrices.values()), strict=True
            )
        ]
        super().__init__(
            encoder.trainable_variables,
            tf.keras.optimizers.SGD(learning_rate, momentum),
            weight_decay=weight_decay,
        )
        self._graph = None

    def round_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Computes the metrics of a round.

        Returns:
            `loss`, the mean over the examples whose class was in the sample;
            `trained_share`, the share of these; `ca_pcc`, the article's CA_pcc: the
            mean cosine between the features of all examples and the centres (rows of W)
            of their classes, before their step; `classes_per_step`, the mean number of
            rows in a step; and `num_examples`.
        """
        num_examples = sums["num_examples"]
        return {
            "loss": sums["loss"] / max(sums["trained"], 1),
            "ca_pcc": sums["cosines"] / num_examples,
            "trained_share": sums["trained"] / num_examples,
            "classes_per_step": sums["classes"] / sums["steps"],
            "num_examples": num_examples,
        }

    def draw_sample(self, labels: np.ndarray) -> list[ShardSample]:
        """Returns the rows of each device that a step on these labels would take."""
        return self._sampler.draw(labels, self._num_steps)

    def update(self, inputs: Any, labels: np.ndarray) -> dict[str, float]:
        """Does one step on inputs of the encoder with labels int32[examples].

        Returns `loss`, the sum before the step, and further inputs of `round_metrics`.
        Raises ValueError if there are fewer examples than devices, or a label is not in
        0..n-1.
        """
        if len(labels) < len(self._mesh):
            raise ValueError(f"{len(labels)} examples for {len(self._mesh)} devices")
        last = self._matrices["W"].shape[0] - 1
        if np.min(labels) < 0 or np.max(labels) > last:
            raise ValueError(f"labels outside of 0..{last}")
        samples = self.draw_sample(labels)
        has_target = np.any([sample.targets >= 0 for sample in samples], 0)
        num_trained = int(has_target.sum())
        example_weights = has_target.astype(np.float32) / max(num_trained, 1)
        if self._graph is None:
            self._graph = self._build_graph(inputs)
        self._num_steps += 1
        means = as_numbers(self._graph(inputs, example_weights, samples))
        return {
            "loss": means["loss"] * num_trained,
            "cosines": means["cosines"],
            "trained": num_trained,
            "num_examples": len(labels),
            "classes": sum(len(s.positives) + len(s.negatives) for s in samples),
            "steps": 1,
        }

    def _build_graph(self, inputs: Any):
        """Traces the step once, for mini-batches and samples of all sizes."""

        def any_length(array):
            array = tf.convert_to_tensor(array)
            return tf.TensorSpec([None, *array.shape[1:]], array.dtype)

        ids = tf.TensorSpec([None], tf.int32)
        signature = [
            tf.nest.map_structure(any_length, inputs),
            tf.TensorSpec([None], tf.float32),
            [ShardSample(ids, ids, ids, ids)] * len(self._mesh),
        ]
        return tf.function(self._step, input_signature=signature)

    def _step(self, inputs, example_weights, samples):
        mesh, shards = self._mesh, self._shards
        slices = [mesh.scatter(part) for part in tf.nest.flatten(inputs)]
        tapes, own_features = zip(
            *mesh.map(
                lambda *parts: self._encode(tf.nest.pack_sequence_as(inputs, parts)),
                *slices,
            ),
            strict=True,
        )
        features = mesh.all_gather(own_features)
        cosines = mesh.all_reduce(
            tf.add, mesh.map(ShardSoftmax.target_cosines, shards, features, samples)
        )
        logits, slopes = zip(*mesh.map(self._target_logits, cosines), strict=True)
        maxima, sums, kept = zip(
            *mesh.map(ShardSoftmax.partition, shards, features, logits, samples),
            strict=True,
        )
        highest = mesh.all_reduce(tf.maximum, maxima)
        rescaled = mesh.map(lambda z, m, h: z * tf.exp(m - h), sums, maxima, highest)
        log_partition = mesh.map(
            lambda z, h: tf.math.log(z) + h, mesh.all_reduce(tf.add, rescaled), highest
        )
        gradients = mesh.map(
            ShardSoftmax.descend,
            shards,
            features,
            logits,
            slopes,
            log_partition,
            [example_weights] * len(mesh),
            samples,
            kept,
        )
        self._update_encoder(tapes, own_features, mesh.reduce_scatter(gradients))
        losses_ = tf.where(example_weights > 0, log_partition[0] - logits[0], 0.0)
        return {
            "loss": tf.reduce_sum(example_weights * losses_),
            "cosines": tf.reduce_sum(cosines[0]),
        }

    def _encode(self, inputs) -> tuple[tf.GradientTape, tf.Tensor]:
        with tf.GradientTape() as tape:
            features, _ = self._encoder(inputs, (), training=True)
            features = models.unit(features)
        return tape, features

    def _target_logits(self, cosines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The logits of the targets and their derivatives by the cosines."""
        with tf.GradientTape() as tape:
            tape.watch(cosines)
            logits = self._margin.target_logits(cosines)
        return logits, tape.gradient(logits, cosines)

    def _update_encoder(self, tapes, features, gradients) -> None:
        by_device = self._mesh.map(
            lambda tape, own, gradient: tape.gradient(own, self._trainable, gradient),
            tapes,
            features,
            gradients,
        )
        self._descend(
            [functools.reduce(tf.add, parts) for parts in zip(*by_device, strict=True)]
        )

    @property
    def state(self) -> list[np.ndarray | models.ShardedMatrix]:
        """The state on which the next steps depend.

        W and its momentum come last and are not copied: the next step changes them, so
        save the state at once.
        """
        return [np.asarray(self._num_steps), *super().state, *self._matrices.values()]

    def set_state(self, state: Sequence[np.ndarray | models.ShardedMatrix]) -> None:
        """Sets a state of an algorithm with the same strata, on any mesh."""
        num_steps, *arrays, classifier, momentum = state
        super().set_state(arrays)
        self._matrices["W"].copy_from(classifier)
        self._matrices["momentum"].copy_from(momentum)
        self._num_steps = int(num_steps)

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The model: trainable = [*encoder, W]; W stays on the devices.

        See `models.ShardedMatrix` for how to read it.
        """
        return tff.learning.models.ModelWeights(
            trainable=[*super().weights.trainable, self._matrices["W"]],
            non_trainable=[],
        )
