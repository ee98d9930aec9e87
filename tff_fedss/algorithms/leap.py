"""LEAP: a student that is trained on easy examples of all kinds (Algorithm 2).

"LEAP: Learning Embeddings for Adaptive Pace". At the start of an epoch, examples whose
loss is below a threshold are selected; within a cluster of similar examples it falls
with their rank (`samplers.self_paced`). In LEAP the clusters come from a network that
is trained beside the student (`magnet_embedding`), in SPLD from the pixels, once; SPL
has gamma = 0, so that clusters do not matter, and Random selects everything. All four
are this class.

The order is that of Algorithm 2: the first epoch trains on all of D with the initial W*
(line 10), each one after on what the one before has selected (lines 11 to 23, 27). A
student that selects before it has learned anything finds a few classes easy, at random.
Line 24 stands inside the loop over mini-batches, where 390 factors of 1.1 an epoch
would be 10^16; the text says "at every epoch", and so it is here.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tff_fedss import losses, models, seeds
from tff_fedss.algorithms.in_place import InPlace, as_numbers
from tff_fedss.datasets.central.augmentation import Augmentation
from tff_fedss.errors import RunStoppedError
from tff_fedss.samplers import self_paced

# Keeps the draws apart from those of an embedding network with the same seed.
_STREAM = 2


class SelfPacedStudent(InPlace):
    """A classifier, trained step by step on what it finds easy.

    Args:
        model: From images in 0..255 to logits float32[examples, n]; its weights are
            the start, and are trained in place.
        images: uint8[N, height, width, channels], to train on.
        labels: int32[N].
        optimizer: A fresh Keras optimizer.
        pace: How lambda and gamma grow; None: every example is selected (Random).
        clusters_fn: Gives the clusters, int32[N], when an epoch begins; not needed
            without a pace.
        batch_size: B. The last mini-batch of an epoch may be shorter.
        weight_decay: Of all weights, see `InPlace`.
        augmentation: Of what it is trained on; not of what is measured.
        seed: Of the order of the examples and of their augmentation.
        epochs_on_all: How many epochs train on everything before the pace begins:
            1 in Algorithm 2. With 0 the untrained student selects first.

    Attributes:
        epoch: The number of epochs begun. One for which nothing is selected counts too.
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
        epochs_on_all: int = 1,
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
        self._epochs_on_all = epochs_on_all
        self._batch_size = batch_size
        self._augmentation = augmentation
        self._seed = seed
        self._infer = models.inference(model)
        self._update_graph = tf.function(self._step, reduce_retracing=True)

    def update(self) -> dict[str, float]:
        """Does one step on the next mini-batch; begins an epoch if there is none.

        Returns:
            From before the step `loss`, the sum, `accuracy`, the number of correctly
            classified examples, and `num_examples`.

        Raises:
            RunStoppedError: If an epoch is to be selected by losses that are not
                finite.
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
        if self._pace is None or self.epoch < self._epochs_on_all:
            self.selected[:] = True
            self.epoch += 1
        else:
            logits = self._infer(self._images)
            example_losses = losses.softmax_loss(logits, self._labels).numpy()
            if not np.isfinite(example_losses).all():
                raise RunStoppedError(
                    f"the student has diverged in epoch {self.epoch}: the loss of a "
                    "training example is not finite. Try a smaller learning rate."
                )
            clusters = self._clusters_fn()
            is_empty = True
            while is_empty:  # The threshold grows until something is below it.
                self.easiness, self.diversity = self._pace.at(
                    self.epoch - self._epochs_on_all, example_losses, clusters
                )
                self.selected = self_paced.select(
                    example_losses, clusters, self.easiness, self.diversity
                )
                is_empty = not self.selected.any()
                self.epoch += 1
        self._order, self._position = self._shuffled(), 0

    def _shuffled(self) -> np.ndarray:
        """The selected examples in the order of this epoch."""
        generator = seeds.generator(self._seed + (_STREAM << 32), self.epoch)
        return generator.permutation(np.flatnonzero(self.selected))

    def _step(self, images, labels):
        step_num = self._optimizer.iterations
        seed = seeds.fold_in(tf.constant([self._seed, _STREAM]), step_num)
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
