"""Transformations of data sets whose graphs all clients share."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class TracedOnce:
    """A transformation that is traced once for each kind of data, not for each client.

    Every client in every round makes a data set of its own, and where a graph reads one
    whose function is new, TensorFlow 2.15 keeps the function for good (0.75 MB of that
    which resizes and crops).
    """

    def __init__(self, transform: Callable[..., tf.data.Dataset]):
        """Takes what is to be traced.

        Args:
            transform: (data set, tensors...) -> data set. What it depends on besides
                must not change.
        """
        self._transform = transform
        self._graphs: dict[str, tuple[Callable[..., tf.Tensor], Any]] = {}

    def __call__(self, data: tf.data.Dataset, *tensors: tf.Tensor) -> tf.data.Dataset:
        """Transforms a data set; in a graph, as a part of it.

        Args:
            data: The data set.
            *tensors: Of shapes and dtypes that are always the same.
        """
        if not tf.executing_eagerly():
            return self._transform(data, *tensors)
        key = str(data.element_spec)
        if key not in self._graphs:
            self._graphs[key] = self._trace(data.element_spec, tensors)
        graph, result_spec = self._graphs[key]
        variant = graph(tf.data.experimental.to_variant(data), *tensors)
        return tf.data.experimental.from_variant(variant, result_spec)

    def _trace(self, element_spec: Any, tensors: tuple[tf.Tensor, ...]):
        result_spec = None

        @tf.function(
            input_signature=[
                tf.TensorSpec([], tf.variant),
                *(tf.TensorSpec(t.shape, t.dtype) for t in tensors),
            ]
        )
        def graph(variant, *tensors):
            nonlocal result_spec
            data = tf.data.experimental.from_variant(variant, element_spec)
            result = self._transform(data, *tensors)
            result_spec = result.element_spec
            return tf.data.experimental.to_variant(result)

        return graph.get_concrete_function(), result_spec
