"""SGD with momentum that makes no dense gradient of W (FedSS, A.2 and line 13)."""

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.framework import config as tf_config

from tff_fedss import errors

_LEARNING_RATE = tff.learning.optimizers.LEARNING_RATE_KEY
_MOMENTUM = "momentum"
_ACCUMULATOR = "accumulator"


def build_sparse_sgdm(
    learning_rate: float = 1.0, momentum: float = 0.0
) -> tff.learning.optimizers.Optimizer:
    """Builds v <- momentum v + g, w <- w - learning_rate v, where g may be sparse.

    `tff.learning.optimizers.build_sgdm` is the same rule, and the states of the two are
    alike, but it turns a `tf.IndexedSlices` into a dense gradient first. Here its rows
    are added to the decayed v directly: a step on W of shape [n, d] makes a new v and a
    new w, and nothing else of that shape. Rows that no slice names move by their
    momentum all the same.

    Args:
        learning_rate: Not negative.
        momentum: In [0, 1]. With 0 there is no v, and only the rows that the slices
            name change.

    Returns:
        The optimizer. Its gradients are tensors or `tf.IndexedSlices`, in which an
        index that comes up twice counts twice.

    Raises:
        ValueError: If an argument is out of range.
    """
    errors.check_range("learning_rate", learning_rate, 0)
    errors.check_range("momentum", momentum, 0, 1)
    return _SparseSGDM(learning_rate, momentum)


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

    def next(
        self, state: collections.OrderedDict[str, Any], weights: Any, gradients: Any
    ) -> tuple[collections.OrderedDict[str, Any], Any]:
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

    def get_hparams(
        self, state: collections.OrderedDict[str, Any]
    ) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict((k, state[k]) for k in self._hparams)

    def set_hparams(
        self,
        state: collections.OrderedDict[str, Any],
        hparams: collections.OrderedDict[str, Any],
    ) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict(state, **hparams)


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    # A graph would keep tf.zeros of a known shape as a constant, for good.
    zero = tf.compat.v1.placeholder_with_default(tf.zeros([], spec.dtype), [])
    return tf.fill(spec.shape, zero)


def dense_sum(slices: tf.IndexedSlices, num_rows: tf.Tensor) -> tf.Tensor:
    """Adds up slices into [n, d] by sorting them: in one order, on every device.

    An index may come up more than once; rows without a slice are zero.
    """
    order = tf.argsort(slices.indices, stable=True)
    keys = tf.gather(slices.indices, order)
    is_first = tf.concat(
        [tf.ones_like(keys[:1], tf.bool), tf.not_equal(keys[1:], keys[:-1])], 0
    )
    sums = tf.math.segment_sum(
        tf.gather(slices.values, order), tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    )
    # One more, which is no row's: so that all rows can look for theirs.
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
        # In place, where nothing else holds the values.
        return tf.tensor_scatter_nd_add(
            values, gradient.indices[:, tf.newaxis], gradient.values
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
