"""Eager tensors that leave nothing in memory, and data sets of their rows.

TensorFlow 2.15's tensors do not free their `__dict__` on Python 3.11 (tensorflow issue
62551): each tensor that Python has seen leaves 16 to 32 bytes. Over many rounds of many
clients that is most of what a client leaves.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, from_tensor_slices_op

_CPU = "/device:CPU:0"
_Tensors = TypeVar("_Tensors", bound=Iterable[Any])


def without_dict(tensors: _Tensors) -> _Tensors:
    """Frees the `__dict__` of those that are eager tensors, and returns them all."""
    for tensor in tensors:
        if isinstance(tensor, tf.__internal__.EagerTensor):
            del tensor.__dict__
    return tensors


class _Slices(dataset_ops._VariantDataset):
    """A data set made by `slices_variant`."""


def slices(element: Any) -> tf.data.Dataset:
    """Returns `tf.data.Dataset.from_tensor_slices(element)`, fast and without leaks."""
    with tf.device(_CPU):
        element = tf.nest.map_structure(tf.convert_to_tensor, element)
    if not tf.executing_eagerly():
        return tf.data.Dataset.from_tensor_slices(element)
    columns = without_dict(tf.nest.flatten(element))
    spec = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape[1:], t.dtype), element)
    return _Slices(slices_variant(columns), spec)


def slices_variant(columns: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the variant tensor of a data set of the rows of eager tensors.

    TensorFlow prepares an operation that makes a data set anew at each eager call,
    which takes several times as long as a call of a function that has the operation.
    """
    specs = tuple(tf.TensorSpec([None, *c.shape[1:]], c.dtype) for c in columns)
    with tf.device(_CPU):
        variant = _slicer(specs)(*columns)
    return without_dict([variant])[0]


@functools.lru_cache
def _slicer(specs: tuple[tf.TensorSpec, ...]) -> Callable[..., tf.Tensor]:
    @tf.function(input_signature=specs, autograph=False)
    def slicer(*columns):
        return tf.raw_ops.TensorSliceDataset(
            components=columns, output_shapes=[spec.shape[1:] for spec in specs]
        )

    return slicer.get_concrete_function()


def is_in_memory(dataset: Any) -> bool:
    """Returns whether it is a data set of the rows of tensors."""
    return isinstance(dataset, _Slices | from_tensor_slices_op._TensorSliceDataset)


def stacked(dataset: tf.data.Dataset) -> Any:
    """Reads a whole data set into tensors, in one pass and in a graph.

    Slicing these is several times as fast as iterating over the data set in a graph.
    """
    # An empty data set has no batch; a dummy element makes one.
    zeros = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), dataset.element_spec
    )
    dummy = tf.data.Dataset.from_tensors(zeros)
    everything = dataset.concatenate(dummy).batch(tf.int32.max).get_single_element()
    return tf.nest.map_structure(lambda column: column[:-1], everything)


def columns(dataset: tf.data.Dataset) -> list[tf.Tensor] | None:
    """Reads a whole data set into tensors, in one pass and eagerly.

    Returns:
        A tensor for each part of an element, in the order of `tf.nest.flatten`, with a
        row for each element; None if the elements may differ in shape.
    """
    specs = tuple(tf.nest.flatten(dataset.element_spec))
    if not all(spec.shape.is_fully_defined() for spec in specs):
        return None
    with tf.device(_CPU):
        return without_dict(_reader(specs)(tf.data.experimental.to_variant(dataset)))


@functools.lru_cache
def _reader(specs: tuple[tf.TensorSpec, ...]) -> Callable[..., list[tf.Tensor]]:
    @tf.function(input_signature=[tf.TensorSpec([], tf.variant)], autograph=False)
    def reader(variant):
        return list(stacked(tf.data.experimental.from_variant(variant, specs)))

    return reader.get_concrete_function()
