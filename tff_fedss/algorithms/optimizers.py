"""Additional optimizers for TFF and Keras.

`build_sparse_sgdm` is the server's (FedSS, A.2 and line 13); `over_one_vector` makes a
client's faster on GPUs, `clip_gradients` bounds its steps; `SGDUnderRate` is PyTorch's.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.framework import config as tf_config

from tff_fedss import errors, models
from tff_fedss.models import layers

_LEARNING_RATE = tff.learning.optimizers.LEARNING_RATE_KEY
_MOMENTUM = "momentum"
_ACCUMULATOR = "accumulator"


def check_optimizer(name: str, optimizer: Any) -> None:
    """Raises TypeError unless it is a TFF optimizer (not Keras', nor a builder)."""
    wanted = "one of tff.learning.optimizers, such as build_sgdm(0.1)"
    errors.check_kind(name, optimizer, tff.learning.optimizers.Optimizer, wanted)


def build_sparse_sgdm(
    learning_rate: float = 1.0, momentum: float = 0.0
) -> tff.learning.optimizers.Optimizer:
    """Builds v <- momentum v + g, w <- w - learning_rate v, where g may be sparse.

    `tff.learning.optimizers.build_sgdm` is the same rule with the same state, but first
    converts a `tf.IndexedSlices` to a dense gradient. Here its rows are added to the
    decayed v directly: a step on W of shape [n, d] allocates a new v and a new w, and
    nothing else of that shape. Rows without a slice still move by their momentum.

    Args:
        learning_rate: Not negative.
        momentum: In [0, 1]. With 0 there is no v, and only rows with a slice change.

    Returns:
        The optimizer. Its gradients are tensors or `tf.IndexedSlices`; slices of a
        repeated index are added.
    """
    errors.check_range("learning_rate", learning_rate, 0)
    errors.check_range("momentum", momentum, 0, 1)
    return _SparseSGDM(float(learning_rate), float(momentum))


class _SparseSGDM(tff.learning.optimizers.Optimizer):
    def __init__(self, learning_rate: float, momentum: float):
        self._hparams = collections.OrderedDict({_LEARNING_RATE: learning_rate})
        if momentum:
            self._hparams[_MOMENTUM] = momentum

    def initialize(self, specs: Any) -> collections.OrderedDict[str, Any]:
        state = self._hparams.copy()
        if _MOMENTUM in state:
            state[_ACCUMULATOR] = tf.nest.map_structure(_zeros, specs)
        return state

    def next(self, state, weights, gradients):
        learning_rate = state[_LEARNING_RATE]
        if _MOMENTUM not in state:
            steps = tf.nest.map_structure(
                lambda g: scaled(g, -learning_rate), gradients
            )
            return state, tf.nest.map_structure(_plus, weights, steps)
        velocity = tf.nest.map_structure(
            lambda v, g: _plus(state[_MOMENTUM] * v, g), state[_ACCUMULATOR], gradients
        )
        weights = tf.nest.map_structure(
            lambda w, v: w - learning_rate * v, weights, velocity
        )
        return collections.OrderedDict(state, **{_ACCUMULATOR: velocity}), weights

    def get_hparams(self, state) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict((k, state[k]) for k in self._hparams)

    def set_hparams(self, state, hparams) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(state, **hparams)


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    # A graph would keep tf.zeros of a known shape as a constant.
    zero = tf.compat.v1.placeholder_with_default(tf.zeros([], spec.dtype), [])
    return tf.fill(spec.shape, zero)


def dense_sum(slices: tf.IndexedSlices, num_rows: tf.Tensor) -> tf.Tensor:
    """Adds up slices into [n, d] in sorted order, the same on every device.

    An index may be repeated; rows without a slice are zero.
    """
    order = tf.argsort(slices.indices, stable=True)
    keys = tf.gather(slices.indices, order)
    is_first = tf.concat(
        [tf.ones_like(keys[:1], tf.bool), tf.not_equal(keys[1:], keys[:-1])], 0
    )
    sums = tf.math.segment_sum(
        tf.gather(slices.values, order), tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    )
    # One more index, which is no row's, so that the lookup of each row is in range.
    keys = tf.concat([tf.boolean_mask(keys, is_first), [-1]], 0)
    sums = tf.concat([sums, tf.zeros(tf.stack([1, tf.shape(slices.values)[1]]))], 0)
    rows = tf.range(num_rows)
    place = tf.searchsorted(keys[:-1], rows)
    is_there = tf.equal(tf.gather(keys, place), rows)
    return tf.where(is_there[:, tf.newaxis], tf.gather(sums, place), 0.0)


def _plus(values: tf.Tensor, gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        if tf_config.is_op_determinism_enabled() and tf.config.get_visible_devices(
            "GPU"
        ):
            # TensorFlow would bring both to the CPU to scatter them there.
            return values + dense_sum(gradient, tf.shape(values)[0])
        # In place, if nothing else holds the values.
        return tf.tensor_scatter_nd_add(
            values, models.row_indices(gradient.indices), gradient.values
        )
    return values + gradient


def scaled(
    gradient: tf.Tensor | tf.IndexedSlices, factor: tf.Tensor
) -> tf.Tensor | tf.IndexedSlices:
    """Returns a gradient times a factor, with the same rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            factor * gradient.values, gradient.indices, gradient.dense_shape
        )
    return factor * gradient


def with_summed_rows(
    gradient: tf.Tensor | tf.IndexedSlices,
) -> tf.Tensor | tf.IndexedSlices:
    """Adds up the slices of each row, as where examples share a word or a class.

    The norm of the slices is then that of the gradient.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, positions = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(sums, rows, gradient.dense_shape)


def over_one_vector(
    optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.optimizers.Optimizer:
    """Applies an optimizer to all weights as one vector: a step is a few operations.

    A network has hundreds of small weights, and launching an operation on a GPU costs
    more than its work on one of them. The results are equal, to the bit, for an
    elementwise optimizer (SGD, Adagrad, Adam, Yogi; not Adafactor).

    Args:
        optimizer: A TFF optimizer of any structure of float32 tensors, such as a single
            one.

    Returns:
        An optimizer of structures of float32 tensors, whose state is that of
        `optimizer` for a vector. Without GPUs `optimizer` itself, since on a CPU
        concatenating the weights costs more than it saves.
    """
    check_optimizer("optimizer", optimizer)
    return _OverOneVector(optimizer) if layers.is_for_gpus() else optimizer


class _Around(tff.learning.optimizers.Optimizer):
    """A wrapper of an optimizer: the same state, a different `next`."""

    def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
        self._optimizer = optimizer

    def initialize(self, specs: Any) -> Any:
        return self._optimizer.initialize(specs)

    def get_hparams(self, state: Any) -> Any:
        return self._optimizer.get_hparams(state)

    def set_hparams(self, state: Any, hparams: Any) -> Any:
        return self._optimizer.set_hparams(state, hparams)


class _OverOneVector(_Around):
    def initialize(self, specs: Any) -> Any:
        size = sum(math.prod(spec.shape) for spec in tf.nest.flatten(specs))
        return self._optimizer.initialize(tf.TensorSpec([size], tf.float32))

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        parts = tf.nest.flatten(weights)
        tf.nest.assert_same_structure(weights, gradients)
        state, vector = self._optimizer.next(
            state, _vector(parts), _vector(tf.nest.flatten(gradients))
        )
        updated = tf.split(vector, [math.prod(part.shape) for part in parts])
        updated = [
            tf.reshape(u, part.shape) for u, part in zip(updated, parts, strict=True)
        ]
        return state, tf.nest.pack_sequence_as(weights, updated)


def _vector(parts: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(part, [-1]) for part in parts], 0)


def with_rate(
    optimizer: tff.learning.optimizers.Optimizer,
    state: Any,
    learning_rate_fn: Callable[[tf.Tensor], tf.Tensor] | None,
    round_num: tf.Tensor,
) -> Any:
    """Returns an optimizer's state with the learning rate of a round, from 0.

    Without a `learning_rate_fn` the state is unchanged. Raises ValueError if the
    optimizer has no learning rate in its state.
    """
    if learning_rate_fn is None:
        return state
    hparams = optimizer.get_hparams(state)
    if _LEARNING_RATE not in hparams:
        kind = type(optimizer).__name__
        raise ValueError(f"learning_rate_fn: {kind} has no learning rate in its state.")
    rate = tf.cast(learning_rate_fn(round_num), tf.float32)
    return optimizer.set_hparams(
        state, collections.OrderedDict(hparams, **{_LEARNING_RATE: rate})
    )


class SGDUnderRate(tf.keras.optimizers.Optimizer):
    """SGD as in PyTorch: the learning rate multiplies the momentum.

    m <- momentum m + g, w <- w - rate m. In Keras' SGD the rate is part of the momentum
    (v <- momentum v - rate g), so that after a decay old gradients keep the old rate.
    With a constant rate both are equal. The rate may be a schedule.
    """

    def __init__(
        self,
        learning_rate: float | tf.keras.optimizers.schedules.LearningRateSchedule,
        momentum: float,
    ):
        super().__init__(name="SGDUnderRate")
        self._learning_rate = self._build_learning_rate(learning_rate)
        self._momentum = momentum

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Makes a momentum for each variable, of zeros."""
        super().build(var_list)
        if not getattr(self, "_momentums", None):
            self._momentums = [
                self.add_variable_from_reference(v, variable_name="m") for v in var_list
            ]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Does a step on one variable."""
        momentum = self._momentums[self._index_dict[self._var_key(variable)]]
        momentum.assign(self._momentum * momentum + gradient)
        rate = tf.cast(self.learning_rate, variable.dtype)
        variable.assign_sub(rate * momentum)


class CosineByEpoch(tf.keras.optimizers.schedules.LearningRateSchedule):
    """MoCo's schedule: rate (1 + cos(pi epoch / epochs)) / 2 in each step of an epoch.

    Args:
        learning_rate: Learning rate of the first epoch.
        epochs: Number of epochs; the rate of the last one is above zero.
    """

    def __init__(self, learning_rate: float, epochs: int, steps_per_epoch: int):
        self._rate = learning_rate
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the rate of a step, counted from 0."""
        epoch = tf.cast(tf.cast(step, tf.int64) // self._steps_per_epoch, tf.float32)
        share = tf.minimum(epoch / self._epochs, 1.0)
        return self._rate * 0.5 * (1.0 + tf.cos(math.pi * share))


def clip_gradients(
    optimizer: tff.learning.optimizers.Optimizer, norm: float
) -> tff.learning.optimizers.Optimizer:
    """Bounds the norm of all gradients as one vector (Pascanu et al., 2013).

    A client's first steps from scratch are long: the gradient of scaled cosine
    logits is about the scale over the norm of the features. Clipping keeps phi from
    collapsing to one feature for all images. The norm must be above 0; the state is
    that of `optimizer`.
    """
    check_optimizer("optimizer", optimizer)
    errors.check_range("norm", norm, 0, above=True)
    return _Clipped(optimizer, norm)


class _Clipped(_Around):
    def __init__(self, optimizer: tff.learning.optimizers.Optimizer, norm: float):
        super().__init__(optimizer)
        self._norm = norm

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        flat = map(with_summed_rows, tf.nest.flatten(gradients))
        clipped, _ = tf.clip_by_global_norm([*flat], self._norm)
        return self._optimizer.next(
            state, weights, tf.nest.pack_sequence_as(gradients, clipped)
        )
