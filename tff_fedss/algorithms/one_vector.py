"""An optimizer that takes all weights as one vector."""

import math
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss.models import placement


def over_one_vector(
    optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.optimizers.Optimizer:
    """Lets an optimizer see all weights as one vector: a step is a few operations.

    A network has hundreds of small weights, and on a GPU an operation costs more than
    the work on one of them. The numbers are the same, to the bit, for an optimizer that
    treats each element for itself, as SGD, Adagrad, Adam and Yogi do. Adafactor does
    not.

    Args:
        optimizer: Of any structure of float32 tensors, such as a single one.

    Returns:
        An optimizer of structures of float32 tensors, whose state is that of
        `optimizer` for a vector; without GPUs `optimizer` itself, since a CPU loses
        more by putting the weights together than it gains.
    """
    return _OverOneVector(optimizer) if placement.is_for_gpus() else optimizer


class _OverOneVector(tff.learning.optimizers.Optimizer):
    def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
        self._optimizer = optimizer

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

    def get_hparams(self, state: Any) -> Any:
        return self._optimizer.get_hparams(state)

    def set_hparams(self, state: Any, hparams: Any) -> Any:
        return self._optimizer.set_hparams(state, hparams)


def _vector(parts: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
