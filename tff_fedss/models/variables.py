"""Variables as NumPy arrays, and back."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf


def values(variables: Iterable[tf.Variable]) -> list[np.ndarray]:
    """Returns copies of the values of variables, in their order."""
    return [variable.numpy() for variable in variables]


def assign(
    variables: Iterable[tf.Variable], values: Iterable[np.ndarray | tf.Tensor]
) -> None:
    """Gives variables their values.

    Args:
        variables: In the order of the values.
        values: One for each variable, of its shape.

    Raises:
        ValueError: If there are more or fewer, or one has another shape.
    """
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
