"""An optimizer whose gradients are bounded before each step."""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss.errors import check_range


def clip_gradients(
    optimizer: tff.learning.optimizers.Optimizer, norm: float
) -> tff.learning.optimizers.Optimizer:
    """Bounds the norm of all gradients as one vector (Pascanu et al., 2013).

    A client's first steps from scratch are long: scaled cosine logits have gradients of
    about the scale over the norm of the features. Bounded, they cannot throw phi to
    where all images look alike.

    Args:
        optimizer: Of TFF.
        norm: The largest norm, above 0. Longer gradients are scaled to it.

    Returns:
        An optimizer with the state of `optimizer`.

    Raises:
        ValueError: If norm is not above 0.
    """
    check_range("norm", norm, 0, above=True)
    return _Clipped(optimizer, norm)


class _Clipped(tff.learning.optimizers.Optimizer):
    def __init__(self, optimizer: tff.learning.optimizers.Optimizer, norm: float):
        self._optimizer = optimizer
        self._norm = norm

    def initialize(self, specs: Any) -> Any:
        return self._optimizer.initialize(specs)

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        clipped, _ = tf.clip_by_global_norm(tf.nest.flatten(gradients), self._norm)
        return self._optimizer.next(
            state, weights, tf.nest.pack_sequence_as(gradients, clipped)
        )

    def get_hparams(self, state: Any) -> Any:
        return self._optimizer.get_hparams(state)

    def set_hparams(self, state: Any, hparams: Any) -> Any:
        return self._optimizer.set_hparams(state, hparams)
