"""Tools for Keras models: weights as arrays, outputs for many images, and size."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from tff_fedss import errors


def check_feature_extractor_fn(function: Any) -> None:
    """Raises TypeError unless it is a function that builds phi, not phi itself."""
    wanted = (
        "without arguments that builds phi, with the same initial weights at each call,"
        " such as functools.partial(models.small_cnn, image_shape)"
    )
    errors.check_function(
        "feature_extractor_fn", function, 0, wanted, tf.keras.layers.Layer
    )


def values(variables: Iterable[tf.Variable]) -> list[np.ndarray]:
    """Returns copies of the values of variables, in their order."""
    return [variable.numpy() for variable in variables]


def assign(
    variables: Iterable[tf.Variable], values: Iterable[np.ndarray | tf.Tensor]
) -> None:
    """Assigns values to variables, in order; ValueError if they do not fit."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


_BATCH = 512


def inference(model: tf.keras.Model) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that applies a model to many images, in inference mode.

    It maps uint8[N, height, width, channels] to float32[N, outputs], always by the
    model's current weights.
    """

    @tf.function(
        input_signature=[tf.TensorSpec([None, *model.input_shape[1:]], tf.uint8)]
    )
    def apply(images):
        return model(tf.cast(images, tf.float32), training=False)

    def infer(images: np.ndarray) -> np.ndarray:
        starts = range(0, len(images), _BATCH)
        return np.concatenate([apply(images[i : i + _BATCH]).numpy() for i in starts])

    return infer


_FLOAT = 4


class ModelSize(NamedTuple):
    """A model's memory.

    Attributes:
        parameters: Bytes of its weights.
        activations: Lower bound of the bytes kept of each example for a gradient: the
            outputs of the layers that have weights.
    """

    parameters: int
    activations: int


def model_size(model_fn: Callable[[], tf.keras.Model]) -> ModelSize:
    """Measures a model that may be too large to be built.

    Args:
        model_fn: Builds it. It is called inside a graph, where weights get no values.
    """
    with tf.Graph().as_default(), _quiet(), building_in_graphs():
        model = model_fn()
        outputs = [
            math.prod(layer.output_shape[1:]) for layer in model.layers if layer.weights
        ]
        return ModelSize(
            _FLOAT * sum(math.prod(v.shape.as_list()) for v in model.variables),
            _FLOAT * sum(outputs),
        )


@contextlib.contextmanager
def building_in_graphs() -> Iterator[None]:
    """Undoes what models that are built in graphs change in TensorFlow and Keras.

    A layer that is created in a graph of TensorFlow 1, such as TFF's, changes its
    class's base also for existing models: until the next layer is created eagerly,
    these have no `get_weights`, and cannot be called.

    TensorFlow registers the gradient of every call of a `tf.custom_gradient`, which
    keeps its graph. A gradient of a graph of this block must also be built in it.
    """
    bases = {cls: cls.__bases__ for cls in _subclasses(tf.keras.layers.Layer)}
    gradients = ops.gradient_registry._registry
    before = set(gradients)
    try:
        yield
    finally:
        for cls, own in bases.items():
            if cls.__bases__ != own:
                cls.__bases__ = own
        for name in gradients.keys() - before:
            # Others are of operations, in modules that were imported meanwhile.
            if name.startswith("CustomGradient-"):
                gradients.pop(name, None)


def _subclasses(cls: type) -> set[type]:
    """Returns all subclasses, also indirect ones."""
    direct = set(cls.__subclasses__())
    return direct.union(*map(_subclasses, direct))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides TensorFlow's warning of a function used by Keras's BatchNorm in graphs."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
