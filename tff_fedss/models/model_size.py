"""Size of a model in memory, without building it."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

_FLOAT = 4


class ModelSize(NamedTuple):
    """What a model takes in memory.

    Attributes:
        parameters: Bytes of its weights.
        activations: Bytes that must be kept of each example for a gradient, at least:
            the outputs of the layers that have weights.
    """

    parameters: int
    activations: int


def model_size(model_fn: Callable[[], tf.keras.Model]) -> ModelSize:
    """Measures a model that may be too large to be built.

    Args:
        model_fn: Builds it. It is called inside a graph, where no weight gets a value.
    """
    with tf.Graph().as_default(), _quiet():
        model = model_fn()
        outputs = [
            math.prod(layer.output_shape[1:]) for layer in model.layers if layer.weights
        ]
        return ModelSize(
            _FLOAT * sum(math.prod(v.shape.as_list()) for v in model.variables),
            _FLOAT * sum(outputs),
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides TensorFlow's warning of what Keras's BatchNorm uses in graphs."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
