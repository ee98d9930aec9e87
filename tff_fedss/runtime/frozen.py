"""Values in a form for other processes: arrays in tuples, without TensorFlow's types.

A struct becomes a tuple, a tensor an array, a data set a `Sequence`. Processes of a
machine share arrays without a copy, by pickle's protocol 5.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import tensors
from tff_fedss.runtime import values


class ClientRef(NamedTuple):
    """A reference to a client's value, which is made where the client trains.

    Attributes:
        arguments: The arguments of the function that makes it, such as the client's id
            and its seed in this round.
    """

    arguments: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Sequence:
    """The elements of a data set.

    Attributes:
        columns: An array for each part of an element, in the order of the type, with
            an entry for each element; None if their shapes differ.
        elements: A list of such parts for each element, if there are no columns.
    """

    columns: list[np.ndarray] | None
    elements: list[list[np.ndarray]] | None = None


def freeze(
    value: Any,
    type_spec: tff.Type,
    client_fn: Callable[..., Any] | None = None,
) -> Any:
    """Converts an argument or result of computations for sending.

    A `ClientRef` may replace a client's value. `client_fn` makes the value, so that
    it is sent; without it, the reference is sent.
    """
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is not tff.CLIENTS or type_spec.all_equal:
            return freeze(value, type_spec.member)
        return [freeze(v, type_spec.member, client_fn) for v in value]
    if isinstance(value, ClientRef):
        if client_fn is None:
            return value
        value = client_fn(*value.arguments)
    if isinstance(type_spec, tff.StructType):
        return tuple(
            freeze(element, element_type, client_fn)
            for _, element, element_type in values.elements(value, type_spec)
        )
    if isinstance(type_spec, tff.SequenceType):
        if isinstance(value, values.SequenceValue):
            if value.columns is not None:
                return Sequence([column.numpy() for column in value.columns])
            value = values.sequence_to_python(value, type_spec)
        return _freeze_sequence(value, type_spec.element)
    return value.numpy() if isinstance(value, tf.Tensor) else value


def thaw(
    value: Any,
    type_spec: tff.Type,
    client_fn: Callable[..., Any] | None = None,
) -> Any:
    """Converts a frozen value for computations; the inverse of `freeze`."""
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is not tff.CLIENTS or type_spec.all_equal:
            return thaw(value, type_spec.member)
        return [thaw(v, type_spec.member, client_fn) for v in value]
    if isinstance(value, ClientRef):
        return client_fn(*value.arguments)
    if isinstance(type_spec, tff.StructType):
        return tuple(
            thaw(element, element_type, client_fn)
            for element, (_, element_type) in zip(
                value, tff.structure.iter_elements(type_spec), strict=True
            )
        )
    if not isinstance(type_spec, tff.SequenceType):
        return value

    def packed(parts):
        nested = _nested(iter(parts), type_spec.element)
        return values.pack_element(nested, type_spec.element)

    if value.columns is not None:
        return tensors.slices(packed(value.columns))
    return [packed(parts) for parts in value.elements]


def num_bytes(value: Any) -> int:
    """Counts the bytes of the arrays of a value, frozen or in Python's containers."""
    if isinstance(value, Sequence):
        return num_bytes(value.columns or value.elements)
    if isinstance(value, np.ndarray | np.generic):
        return value.nbytes
    return sum(map(num_bytes, value)) if isinstance(value, list | tuple) else 0


def _freeze_sequence(value: Any, element: tff.Type) -> Sequence:
    if isinstance(value, list):  # TFF also accepts these.
        return Sequence(None, [_parts(example, element) for example in value])
    if value.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "An endless data set cannot be sent to a cluster: `take` some."
        )
    columns = tensors.columns(value)
    if columns is None:
        return Sequence(None, [_parts(e, element) for e in value.as_numpy_iterator()])
    columns = tf.nest.pack_sequence_as(value.element_spec, columns)
    return Sequence([column.numpy() for column in _parts(columns, element)])


def _parts(element: Any, type_spec: tff.Type) -> list[Any]:
    """Returns the parts of an element, in the order of its type."""
    return values.flatten(values.unpack_element(element, type_spec))


def _nested(parts: Iterator[Any], type_spec: tff.Type) -> Any:
    """Inverts `values.flatten`."""
    if not isinstance(type_spec, tff.StructType):
        return next(parts)
    return tuple(
        _nested(parts, element) for _, element in tff.structure.iter_elements(type_spec)
    )
