"""Conversion of values for the in-process runtime.

Inside, a struct is a tuple, a tensor is an eager tensor, a sequence is a
`SequenceValue`, a value at the server is that value, and a value at the clients is
a list with one value per client. Names and Python containers live in the types only.
"""

import collections
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import array
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

from tff_fedss import tensors

# Smaller arrays are not remembered.
_REMEMBERED_BYTES = 1 << 16
# Types that become tensors, besides lists and tensors themselves.
_ARRAYS = np.ndarray | np.generic | bool | int | float | complex | str | bytes
# The kinds of arrays that can share a tensor's memory.
_VIEWABLE = frozenset("biuf")


class SequenceValue:
    """A `tf.data.Dataset` as an argument or a result of functions.

    Attributes:
        owners: Objects that must live as long as the variant, such as a dataset's
            Python functions.
        columns: The elements' parts, stacked, in the order of `tf.nest.flatten`; None
            if they are not in memory.
    """

    __slots__ = ("_variant", "columns", "owners")

    def __init__(
        self,
        variant: tf.Tensor | None = None,
        owners: Any = None,
        columns: Sequence[tf.Tensor] | None = None,
    ):
        """Takes the variant, or the columns to make it of when it is needed."""
        self._variant = variant
        self.owners = owners
        self.columns = columns

    @property
    def variant(self) -> tf.Tensor:
        """The dataset as a scalar variant tensor on the CPU."""
        if self._variant is None:
            self._variant = tensors.slices_variant(self.columns)
        return self._variant


def flatten(value: Any) -> list[Any]:
    """Returns the tensors and sequences of nested tuples, in order."""
    if not isinstance(value, tuple):
        return [value]
    return [part for element in value for part in flatten(element)]


class Converter:
    """Converts between Python's values and the runtime's.

    An array that it returned and gets back unchanged, such as the state between two
    rounds, becomes the same tensor without a copy.
    """

    def __init__(self):
        self._given: dict[int, tuple[weakref.ref, tf.Tensor]] = {}

    def from_python(self, value: Any, type_spec: tff.Type, num_clients: int) -> Any:
        """Converts an argument given by TFF; TypeError if it does not fit its type."""
        if isinstance(type_spec, tff.FederatedType):
            if type_spec.placement is not tff.CLIENTS:
                return self.from_python(value, type_spec.member, num_clients)
            if type_spec.all_equal:
                return [
                    self.from_python(value, type_spec.member, num_clients)
                ] * num_clients
            return [
                self._part(
                    f"client {k} of {len(value)}", v, type_spec.member, len(value)
                )
                for k, v in enumerate(value)
            ]
        if isinstance(type_spec, tff.StructType):
            return tuple(
                self._part(name, element, element_type, num_clients)
                for name, element, element_type in elements(value, type_spec)
            )
        if isinstance(type_spec, tff.SequenceType):
            return _sequence_from_python(value, type_spec)
        return self._tensor_from_python(value, type_spec)

    def _part(self, name: str | None, *argument: Any) -> Any:
        """Converts a part of an argument; errors begin with its name."""
        try:
            return self.from_python(*argument)
        except TypeError as error:
            raise TypeError(f"{name}: {error}" if name else str(error)) from None

    def _tensor_from_python(self, value: Any, type_spec: tff.TensorType) -> tf.Tensor:
        dtype = type_spec.dtype.type
        given = self._given.get(id(value))
        if given is not None and given[0]() is value:
            value = given[1]
        if isinstance(value, tf.Variable):
            value = value.read_value()
        if isinstance(value, tf.Tensor):
            shape, found = value.shape, value.dtype.as_numpy_dtype
            if value.dtype == tf.string:
                found = np.str_
            fits = tf.TensorShape(type_spec.shape).is_compatible_with(shape)
            check_type(fits, "shape", type_spec.shape, shape)
            check_type(found is dtype, "dtype", dtype, found)
            return value
        if isinstance(value, list | tuple):
            flat = tf.nest.flatten(value)
            fits = all(array.is_compatible_dtype(v, dtype) for v in flat)
            check_type(fits, "dtype", dtype, [*map(type, flat)])
            value = np.asarray(value, None if dtype is np.str_ else dtype)
        check_type(isinstance(value, _ARRAYS), "type", type_spec, type(value))
        fits = array.is_compatible_shape(value, type_spec.shape)
        check_type(fits, "shape", type_spec.shape, np.shape(value))
        found = getattr(getattr(value, "dtype", None), "type", type(value))
        fits = array.is_compatible_dtype(value, dtype)
        check_type(fits, "dtype", dtype, found)
        # Copied, since the caller may change the array later.
        with tf.device("/device:CPU:0"):
            tensor = tf.constant(value, tf.string if dtype is np.str_ else dtype)
        tensors.without_dict([tensor])
        return tensor

    def to_python(self, value: Any, type_spec: tff.Type) -> Any:
        """Converts a result of a computation to the types of TFF's own runtime.

        These are NumPy arrays (read-only), data sets, and lists of clients' values in
        the containers of the type.
        """
        if isinstance(type_spec, tff.FederatedType):
            if type_spec.placement is not tff.CLIENTS:
                return self.to_python(value, type_spec.member)
            if not type_spec.all_equal:
                return [self.to_python(v, type_spec.member) for v in value]
            if not value:
                raise ValueError(
                    "A value that is equal at all clients is unknown without "
                    "clients: give the computation an argument with a list of "
                    "client values, or the context how many clients there are "
                    "(default_num_clients)."
                )
            return self.to_python(value[0], type_spec.member)
        if isinstance(type_spec, tff.StructType):
            return pack(
                [
                    (name, self.to_python(element, element_type))
                    for element, (name, element_type) in zip(
                        value, tff.structure.iter_elements(type_spec), strict=False
                    )
                ],
                type_spec.python_container,
            )
        if isinstance(type_spec, tff.SequenceType):
            return sequence_to_python(value, type_spec)
        return self._tensor_to_python(value)

    def _tensor_to_python(self, tensor: Any) -> Any:
        if not isinstance(tensor, tf.Tensor):
            return tensor
        if not tensor.shape.rank or tensor.dtype.as_numpy_dtype is object:
            return tensor.numpy()
        if np.dtype(tensor.dtype.as_numpy_dtype).kind in _VIEWABLE and _on_cpu(tensor):
            result = np.asarray(memoryview(tensor))  # No copy.
        else:
            result = tensor.numpy()
        result.flags.writeable = False
        if result.nbytes >= _REMEMBERED_BYTES:
            key, given = id(result), self._given
            forget = weakref.ref(result, lambda _: given.pop(key, None))
            given[key] = forget, tensor
        return result


def _on_cpu(tensor: tf.Tensor) -> bool:
    return "CPU" in tensor.backing_device


def check_type(fits: bool, what: str, expected: Any, found: Any) -> None:
    """Raises TypeError, such as for the "dtype", unless a value fits."""
    if not fits:  # Only now, since writing a type as text is slow.
        raise TypeError(f"Expected a value of {what} {expected}, found {found}.")


def elements(
    value: Any, type_spec: tff.StructType
) -> list[tuple[str | None, Any, tff.Type]]:
    """Returns (name, element, its type) of a container, in the order of its type.

    Raises TypeError if it has other elements.
    """
    if not isinstance(value, tff.structure.Struct):
        try:
            value = tff.structure.from_container(value)
        except TypeError:
            check_type(False, "type", type_spec, type(value))
    found = tff.structure.to_elements(value)
    fits = len(found) == len(type_spec)
    names = [name or "a value" for name, _ in found]
    check_type(fits, "type", type_spec, names)
    result = []
    for (name, element), (expected, element_type) in zip(
        found, tff.structure.iter_elements(type_spec), strict=True
    ):
        fits = name is None or expected is None or name == expected
        check_type(fits, f"name '{expected}' in", type_spec, f"'{name}'")
        result.append((expected, element, element_type))
    return result


def pack(
    elements: list[tuple[str | None, Any]], container: type[Any] | None = None
) -> Any:
    """Puts (name, element) pairs into a Python container.

    Args:
        elements: The pairs; all names or none are None.
        container: Its type; by default an OrderedDict or a tuple.
    """
    names = [name for name, _ in elements]
    named = bool(elements) and names[0] is not None
    if len({name is None for name in names}) > 1:
        raise ValueError(f"No Python container has some elements without name: {names}")
    if container is None:
        container = collections.OrderedDict if named else tuple
    if hasattr(container, "_fields") or attrs.has(container):
        return container(**dict(elements))
    if issubclass(container, Mapping) or named:
        return container(elements)
    return container(element for _, element in elements)


def _sequence_from_python(value: Any, type_spec: tff.SequenceType) -> SequenceValue:
    if isinstance(value, list):
        value = dataset_of(value, type_spec.element)
    is_data_set = isinstance(value, tf.data.Dataset)
    check_type(is_data_set, "type", type_spec, type(value))
    found = tff.types.tensorflow_to_type(tf.data.DatasetSpec.from_value(value))
    check_type(type_spec.is_assignable_from(found), "type", type_spec, found)
    variant = tf.data.experimental.to_variant(value)
    tensors.without_dict([variant])
    return SequenceValue(variant, value)


def dataset_of(elements: list[Any], element_type: tff.Type) -> tf.data.Dataset:
    """Makes a data set of elements, whose shapes may differ."""
    try:
        return tensorflow_utils.make_data_set_from_elements(
            None, elements, element_type
        )
    except tf.errors.InvalidArgumentError:  # TFF expects another error of TensorFlow.
        half = len(elements) // 2
        if not half:
            raise
        first, second = elements[:half], elements[half:]
        return dataset_of(first, element_type).concatenate(
            dataset_of(second, element_type)
        )


def sequence_to_python(
    value: SequenceValue, type_spec: tff.SequenceType
) -> tf.data.Dataset:
    """Converts a sequence to a data set of the type's elements."""
    dataset = tf.data.experimental.from_variant(
        value.variant, element_structure(type_spec.element)
    )
    dataset._tff_fedss_owners = value.owners  # The owners live as long as the dataset.
    return tensorflow_utils.coerce_dataset_elements_to_tff_type_spec(
        dataset, _without_containers(type_spec.element)
    )


def _without_containers(type_spec: tff.Type) -> tff.Type:
    """Returns a type with plain containers, as in sequences of TFF's own runtime."""
    if not isinstance(type_spec, tff.StructType):
        return type_spec
    return tff.StructType(
        [
            _without_containers(element)
            if name is None
            else (name, _without_containers(element))
            for name, element in tff.structure.iter_elements(type_spec)
        ]
    )


def element_structure(type_spec: tff.Type) -> Any:
    """Returns the `tf.TensorSpec`s of a sequence's elements in plain containers."""
    if isinstance(type_spec, tff.TensorType):
        dtype = tf.string if type_spec.dtype.type is np.str_ else type_spec.dtype
        return tf.TensorSpec(type_spec.shape, dtype)
    return pack(
        [
            (name, element_structure(element))
            for name, element in tff.structure.iter_elements(type_spec)
        ]
    )


def pack_element(value: Any, type_spec: tff.Type) -> Any:
    """Packs the runtime's value into the containers of a sequence's elements."""
    if not isinstance(type_spec, tff.StructType):
        return value
    return pack(
        [
            (name, pack_element(element, element_type))
            for element, (name, element_type) in zip(
                value, tff.structure.iter_elements(type_spec), strict=True
            )
        ]
    )


def unpack_element(element: Any, type_spec: tff.Type) -> Any:
    """Returns the runtime's value of an element; undoes `pack_element`."""
    if not isinstance(type_spec, tff.StructType):
        return element
    return tuple(
        unpack_element(part, part_type)
        for (_, part), (_, part_type) in zip(
            tff.structure.iter_elements(tff.structure.from_container(element)),
            tff.structure.iter_elements(type_spec),
            strict=True,
        )
    )
