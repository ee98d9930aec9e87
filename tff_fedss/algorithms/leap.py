"""LEAP: a student trained on easy and diverse examples, and its embedding.

"LEAP: Learning Embeddings for Adaptive Pace". At the start of an epoch, examples whose
loss is below a threshold are selected; within a cluster of similar examples the
threshold falls with their rank (`samplers.self_paced`). In LEAP the clusters come from
a network that is trained beside the student (`MagnetEmbedding`), in SPLD they are found
once, from the pixels; SPL has gamma = 0, so that clusters do not matter, and Random
selects everything. `SelfPacedStudent` is all four.

The order is that of Algorithm 2: the first epoch trains on all of D with the initial W*
(line 10), each later one on the examples that the epoch before selected (lines 11 to
23, 27). A student that selects before it has learned anything selects a few random
classes. Line 24 is inside the loop over mini-batches, where 390 factors of 1.1 an epoch
would give 10^16; the text says "at every epoch", which is implemented here.

The paper contradicts itself on the mini-batches of the embedding network: sections 4.1
and 4.3 have "randomly sampled mini-batches of size 64", Algorithm 1 has neighbourhoods
of clusters (lines 13 and 25). The Magnet loss is defined on neighbourhoods, so these
are drawn here. Section 4.3 uses VGG-16 "without any fine-tuning", and trains it with
Adam; here it is trained, from random weights. Line 21 refreshes the index when epoch e
equals R; we read this as a refresh every R epochs.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tff_fedss import losses, models, seeds
from tff_fedss.algorithms.in_place import InPlace, as_numbers
from tff_fedss.datasets.central.augmentation import AUGMENTATIONS, Augmentation
from tff_fedss.errors import RunStoppedError, check_range
from tff_fedss.samplers import self_paced

# Keep the draws of student and embedding apart if they have the same seed.
_EMBEDDING_STREAM = 1
_STUDENT_STREAM = 2


class SelfPacedStudent(InPlace):
    """A classifier, trained step by step on the examples that it finds easy.

    Args:
        model: From images in 0..255 to logits float32[examples, n]; its weights are
            the initial ones and are trained in place.
        images: uint8[N, height, width, channels], to train on.
        labels: int32[N].
        pace: How lambda and gamma grow; None: every example is selected (Random).
        clusters_fn: Returns the clusters, int32[N], at the start of an epoch; not
            needed without a pace.
        batch_size: B. The last mini-batch of an epoch may be shorter.
        weight_decay: Decay of all weights, see `InPlace`.
        augmentation: Augmentation of training images; losses for selection have none.
        seed: Seed of the order of the examples and of their augmentation.

    Attributes:
        epoch: The number of epochs begun, also of those that select nothing.
        easiness: lambda of this epoch; infinity without a pace.
        diversity: gamma of this epoch.
        selected: bool[N], W* of this epoch.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        images: np.ndarray,
        labels: np.ndarray,
        optimizer: tf.keras.optimizers.Optimizer,
        pace: self_paced.Pace | None,
        clusters_fn: Callable[[], np.ndarray] | None,
        *,
        batch_size: int,
        weight_decay: float,
        augmentation: Augmentation,
        seed: int,
    ):
        self.epoch = 0
        self.easiness, self.diversity = np.inf, 0.0
        self.selected = np.zeros(len(labels), bool)
        self._position = 0
        self._order: np.ndarray | None = None
        super().__init__(
            model.trainable_variables,
            optimizer,
            model.non_trainable_variables,
            weight_decay,
        )
        self._model = model
        self._images, self._labels = images, labels
        self._pace, self._clusters_fn = pace, clusters_fn
        self._batch_size = batch_size
        self._augmentation = augmentation
        self._seed = seed
        self._infer = models.inference(model)
        self._update_graph = tf.function(self._step, reduce_retracing=True)
        # Traces the graph of whole mini-batches first, also if a run resumes at a short
        # mini-batch: short ones share a second graph, which rounds differently.
        self._update_graph.get_concrete_function(
            images[:batch_size], labels[:batch_size]
        )

    def update(self) -> dict[str, float]:
        """Does one step on the next mini-batch; begins an epoch if there is none.

        Returns sums measured before the step: `loss`, `accuracy` (the number of
        correctly classified examples) and `num_examples`. Raises
        RunStoppedError if a loss that decides the selection is not finite.
        """
        if self._order is None and self.selected.any():
            self._order = self._shuffled()
        if self._order is None or self._position >= len(self._order):
            self._begin_epoch()
        examples = self._order[self._position : self._position + self._batch_size]
        self._position += len(examples)
        sums = self._update_graph(self._images[examples], self._labels[examples])
        return {**as_numbers(sums), "num_examples": len(examples)}

    def _begin_epoch(self) -> None:
        """Solves for W (lines 11-23) and takes the next step of the pace (24)."""
        if self._pace is None or self.epoch == 0:
            self.selected[:] = True
            self.epoch += 1
        else:
            logits = self._infer(self._images)
            example_losses = losses.softmax_loss(logits, self._labels).numpy()
            if not np.isfinite(example_losses).all():
                raise RunStoppedError(
                    f"the student has diverged in epoch {self.epoch}: a loss is not "
                    "finite. Try a smaller learning rate."
                )
            clusters = self._clusters_fn()
            is_empty = True
            while is_empty:  # The threshold grows until an example is below it.
                self.easiness, self.diversity = self._pace.at(
                    self.epoch - 1, example_losses, clusters
                )
                self.selected = self_paced.select(
                    example_losses, clusters, self.easiness, self.diversity
                )
                is_empty = not self.selected.any()
                self.epoch += 1
        self._order, self._position = self._shuffled(), 0

    def _shuffled(self) -> np.ndarray:
        """Returns the selected examples in the order of this epoch."""
        generator = seeds.generator(self._seed + (_STUDENT_STREAM << 32), self.epoch)
        return generator.permutation(np.flatnonzero(self.selected))

    def _step(self, images, labels):
        step_num = self._optimizer.iterations
        seed = seeds.fold_in(tf.constant([self._seed, _STUDENT_STREAM]), step_num)
        return self._softmax_step(
            lambda: self._model(self._augmentation(images, seed), training=True), labels
        )

    @property
    def state(self) -> list[np.ndarray]:
        """Everything that the next updates depend on."""
        return [
            np.asarray(self.epoch),
            np.asarray(self._position),
            np.asarray(self.easiness),
            np.asarray(self.diversity),
            self.selected.copy(),
            *super().state,
        ]

    def set_state(self, state: Sequence[np.ndarray]) -> None:
        """Goes back to a state."""
        epoch, position, easiness, diversity, selected, *values = state
        self.epoch, self._position = int(epoch), int(position)
        self.easiness, self.diversity = float(easiness), float(diversity)
        self.selected = np.array(selected)
        self._order = None
        super().set_state(values)


@dataclasses.dataclass(frozen=True)
class MagnetSettings:
    """The embedding network and its training.

    Attributes:
        network_fn: Builds the network, from images in 0..255 to float32[examples, d],
            always with the same initial weights. It can be pickled.
        num_classes: n.
        clusters_per_class: K.
        clusters_per_batch: M.
        examples_per_cluster: D, at least 2.
        alpha: alpha of the Magnet loss.
        epochs_per_refresh: R, in epochs of ceil(N / (M D)) mini-batches.
        augmentation: Augmentation of training images; clustered images have none.
        seed: Seed of the mini-batches and of the initial centers.

    Raises:
        InvalidInputError: If there are too few classes for a mini-batch.
    """

    network_fn: Callable[[], tf.keras.Model]
    num_classes: int
    clusters_per_class: int = 8
    clusters_per_batch: int = 8
    examples_per_cluster: int = 8
    alpha: float = 1.0
    learning_rate: float = 1e-4
    epochs_per_refresh: int = 1
    augmentation: Augmentation = AUGMENTATIONS["none"]
    seed: int = 0

    def __post_init__(self):
        # A neighbourhood: a cluster, and clusters of other classes.
        most = self.clusters_per_class * (self.num_classes - 1) + 1
        check_range("clusters_per_batch", self.clusters_per_batch, 1, most)


class MagnetEmbedding(InPlace):
    """An embedding network in training, and the clusters of its representations.

    The first update makes the clusters.

    Args:
        images: uint8[N, height, width, channels], to train on.
        labels: int32[N].

    Attributes:
        CLUSTERS: Index of `clusters` in `state`.
    """

    CLUSTERS: ClassVar[int] = 1

    def __init__(
        self, settings: MagnetSettings, images: np.ndarray, labels: np.ndarray
    ):
        self.num_steps = 0
        self._settings = settings
        self._images, self._labels = images, labels
        self._model = settings.network_fn()
        super().__init__(
            self._model.trainable_variables,
            tf.keras.optimizers.Adam(settings.learning_rate),
            self._model.non_trainable_variables,
        )
        self._infer = models.inference(self._model)
        self._update_graph = tf.function(self._step)
        batch = settings.clusters_per_batch * settings.examples_per_cluster
        self._steps_per_refresh = settings.epochs_per_refresh * -(-len(labels) // batch)
        num_clusters = settings.num_classes * settings.clusters_per_class
        self._index = self_paced.ClusterIndex(
            settings.clusters_per_class,
            np.zeros(len(labels), np.int32),
            np.zeros([num_clusters, self._model.output_shape[1]], np.float32),
        )
        # The loss of each example when it was last in a mini-batch; -1: never.
        self._losses = np.full(len(labels), -1, np.float32)

    @property
    def clusters(self) -> np.ndarray:
        """int32[N], the cluster of each example at the last refresh."""
        return self._index.assignments

    def represent(self, images: np.ndarray) -> np.ndarray:
        """Returns the representations r of images uint8[N, ...], float32[N, d]."""
        return self._infer(images)

    def update(self) -> float:
        """Does one step on a neighbourhood, after a refresh if it is time for one.

        Returns the Magnet loss of the mini-batch before the step; raises
        RunStoppedError if it is not finite.
        """
        settings = self._settings
        generator = seeds.generator(
            settings.seed + (_EMBEDDING_STREAM << 32), self.num_steps
        )
        if self.num_steps % self._steps_per_refresh == 0:
            self._refresh(int(generator.integers(2**31)))
        try:
            chosen, examples = self_paced.draw_neighbourhood(
                self._index,
                self_paced.cluster_losses(self._index, self._losses),
                settings.clusters_per_batch,
                settings.examples_per_cluster,
                generator,
            )
        except ValueError as error:
            raise RunStoppedError(
                f"clusters_per_batch={settings.clusters_per_batch}: {error}, whose "
                "images differ too little or are too few. Use fewer."
            ) from error
        example_losses = self._update_graph(
            self._images[examples.reshape(-1)],
            self._index.classes(chosen),
        ).numpy()
        if not np.isfinite(example_losses).all():
            raise RunStoppedError(
                f"the embedding network has diverged in step {self.num_steps + 1}. Try "
                "a smaller learning rate for it, or a smaller alpha."
            )
        self._losses[examples] = example_losses
        self.num_steps += 1
        return float(example_losses.mean())

    def advance(self, num_steps: int) -> float:
        """Does as many updates; returns their mean loss."""
        return float(np.mean([self.update() for _ in range(num_steps)]))

    def trained(self) -> "MagnetEmbedding":
        """Returns the network, for use after the training."""
        return self

    def close(self) -> None:
        """Does nothing; `training.EmbeddingProcess` ends its process."""

    def _refresh(self, seed: int) -> None:
        """Recomputes representations and clusters (lines 4-12 and 21-24)."""
        self._index = self_paced.build_index(
            self._infer(self._images),
            self._labels,
            self._settings.num_classes,
            self._settings.clusters_per_class,
            seed,
        )

    def _step(self, images, cluster_classes):
        settings = self._settings
        step_num = self._optimizer.iterations
        seed = seeds.fold_in(tf.constant([settings.seed, _EMBEDDING_STREAM]), step_num)
        with tf.GradientTape() as tape:
            outputs = self._model(settings.augmentation(images, seed), training=True)
            shape = [settings.clusters_per_batch, settings.examples_per_cluster, -1]
            example_losses = losses.magnet_loss(
                tf.reshape(outputs, shape), cluster_classes, settings.alpha
            )
            loss = tf.reduce_mean(example_losses)
        self._descend(tape.gradient(loss, self._trainable))
        return example_losses

    @property
    def state(self) -> list[np.ndarray]:
        """Everything that the next updates depend on."""
        return [
            np.asarray(self.num_steps),
            self._index.assignments,
            self._index.centers,
            self._losses.copy(),
            *super().state,
        ]

    def set_state(self, state: Sequence[np.ndarray]) -> None:
        """Goes back to a state."""
        num_steps, assignments, centers, example_losses, *values = state
        self.num_steps = int(num_steps)
        self._index = self_paced.ClusterIndex(
            self._settings.clusters_per_class,
            np.array(assignments),
            np.array(centers),
        )
        self._losses = np.array(example_losses)
        super().set_state(values)


def pixel_clusters(images: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """Returns SPLD's clusters: of the pixels, found once before training: int32[N].

    LEAP says of SPLD that it "uses K-Means to partition its data into K clusters at the
    start": all data, not class by class. Ours are clusters of images at 8x8 pixels.

    Args:
        images: uint8[N, height, width, channels].
        num_clusters: Number of clusters in all; LEAP has n K.
    """
    blocks = [
        tf.image.resize(images[start : start + 4096], [8, 8], antialias=True).numpy()
        for start in range(0, len(images), 4096)
    ]
    pixels = np.concatenate(blocks).reshape(len(images), -1)
    one_class = np.zeros(len(images), np.int32)
    return self_paced.build_index(pixels, one_class, 1, num_clusters, seed).assignments
