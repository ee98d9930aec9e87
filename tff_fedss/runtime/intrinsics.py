"""TFF's intrinsics over the runtime's values (see `values`), in this process.

Each one is a function (argument, device) -> value. The server's work runs on that
device; the clients' work goes through `device.for_each_client`.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import tensors
from tff_fedss.runtime import parts, values
from tff_fedss.runtime.errors import ClientError
from tff_fedss.runtime.tf_computation import (
    TRACING,
    VECTORIZING,
    NotTraceableError,
    Tracing,
)

Intrinsic = Callable[[Any, Any], Any]


def find(block: tff.framework.Intrinsic) -> Intrinsic:
    """Returns an intrinsic's implementation: a function (argument, device) -> value.

    Raises:
        NotImplementedError: If there is none; the message names the intrinsic.
    """
    if block.uri in _BY_URI:
        return _BY_URI[block.uri]
    if block.uri in _BY_TYPE:
        return _BY_TYPE[block.uri](block.type_signature)
    raise NotImplementedError(
        f"The in-process runtime does not have the intrinsic '{block.uri}' of type "
        f"{block.type_signature.compact_representation()[:500]}. TFF's native runtime "
        "may have it."
    )


def _value_at_server(value, device):
    return value


def _value_at_clients(value, device):
    return [_put(value, device)] * device.num_clients


def _put(value, device):
    if isinstance(value, tuple):
        return tuple(_put(part, device) for part in value)
    return device.put([value])[0] if isinstance(value, tf.Tensor) else value


def _eval_at_server(function, device):
    return function(None, device)


def _eval_at_clients(function, device):
    return device.for_each_client(lambda k, client: function(None, client))


def _map(type_signature: tff.FunctionType) -> Intrinsic:
    member_type = type_signature.parameter[1].member

    def mapped(argument, device):
        function, value = argument
        if not isinstance(value, list):
            return function(value, device)
        if not getattr(function, "reads_sequences", False):
            return device.for_each_client(lambda k, client: function(value[k], client))
        value = list(value)

        def read(k):
            value[k] = _read(value[k], member_type)

        def call(k, client):
            own, value[k] = value[k], None  # Released when it is done.
            return function(own, client)

        return device.for_each_client(call, read)

    return mapped


def _read(value: Any, type_spec: tff.Type) -> Any:
    """Returns a value whose sequences are in memory, if they can be stacked."""
    if isinstance(type_spec, tff.SequenceType):
        dataset = value.owners
        if value.columns is not None or tensors.is_in_memory(dataset):
            return value
        if not isinstance(dataset, tf.data.Dataset):
            dataset = _dataset(value, type_spec.element)
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            return value
        columns = tensors.columns(dataset)
        return value if columns is None else values.SequenceValue(columns=columns)
    if not isinstance(type_spec, tff.StructType):
        return value
    return tuple(
        _read(part, part_type)
        for part, (_, part_type) in zip(
            value, tff.structure.iter_elements(type_spec), strict=True
        )
    )


def _map_all_equal(argument, device):
    function, value = argument
    return [function(value[0], device)] * len(value) if value else []


def _zip_at_clients(value, device):
    if isinstance(value, list):
        return value
    parts = [_zip_at_clients(part, device) for part in value]
    if not parts:
        return [()] * device.num_clients
    return list(zip(*parts, strict=True))


def _aggregate(argument, device):
    value, zero, accumulate, merge, report = argument
    # In the order of the clients, not of completion, and as in a cluster, since the sum
    # of floats depends on the order.
    slices = parts.parts_of(len(value))
    if not slices:
        return report(zero, device)
    sums = parts.Sum(len(slices), lambda a, b: merge((a, b), device))
    for index, part in enumerate(slices):
        total = zero
        for k in range(part.start, part.stop):
            try:
                total = accumulate((total, value[k]), device)
            except tf.errors.InvalidArgumentError as error:
                # Such as of a secure sum, if the client's value is out of its range.
                raise ClientError(k, len(value), error) from error
        sums.add(index, total)
    return report(sums.result(), device)


class _Select:
    """federated_select: the rows of a client in one call of one graph.

    TFF's runtime calls the select function once per key. Here TensorFlow maps it over
    all keys of a client at once, so that selecting rows costs the same as gathering
    them from a copy of the whole. A function with state, branches or loops, or rows
    of unknown shape, is called once per key here as well.
    """

    def __init__(self, type_signature: tff.FunctionType):
        # Takes <{int32[N]}@CLIENTS, int32@SERVER, T@SERVER, (<T, int32> -> U)>.
        self._row_type = type_signature.parameter[3].result
        _check_names_are_sorted(self._row_type)
        self._rows_fn: Callable[..., tf.Tensor] | None = None
        self._select_fn: Any = None

    def __call__(self, argument, device):
        keys, max_key, server_value, select_fn = argument
        if not keys:
            return []
        max_key = int(max_key)
        for k, client_keys in enumerate(keys):
            _check_keys(client_keys.numpy(), max_key, k)
        can_map = (
            getattr(select_fn, "is_closed", False)
            and _is_static(self._row_type)
            and all(map(tf.is_tensor, values.flatten(server_value)))
        )
        if can_map and self._select_fn is not select_fn:
            self._select_fn = select_fn
            self._rows_fn = self._trace_rows(select_fn, server_value)
        if can_map and self._rows_fn is not None:
            try:
                flat = device.put(values.flatten(server_value))
                with tf.device(device.name):
                    rows = [
                        tensors.without_dict(self._rows_fn(client_keys, *flat))
                        for client_keys in device.put(keys)
                    ]
                return [values.SequenceValue(columns=columns) for columns in rows]
            except (NotTraceableError, ValueError, NotImplementedError):
                self._rows_fn = None
        return [
            self._rows_one_by_one(client_keys, server_value, select_fn, device)
            for client_keys in keys
        ]

    def _trace_rows(self, select_fn, server_value):
        """Returns a function (keys, *server values) -> rows, a tensor per column."""
        template = tf.nest.map_structure(lambda _: None, server_value)

        @tf.function(autograph=False)
        def rows(keys, *flat):
            value = tf.nest.pack_sequence_as(template, flat)

            def row(key):
                result = select_fn((value, key), VECTORIZING)
                return tf.nest.flatten(values.pack_element(result, self._row_type))

            return tf.vectorized_map(row, keys) if keys.shape[0] else self._no_rows()

        return rows

    def _rows_one_by_one(self, keys, server_value, select_fn, device):
        rows = [
            tf.nest.flatten(
                values.pack_element(
                    select_fn((server_value, key), device), self._row_type
                )
            )
            for key in tf.unstack(keys)
        ]
        stacked = [tf.stack(column) for column in zip(*rows, strict=True)]
        return values.SequenceValue(columns=stacked if rows else self._no_rows())

    def _no_rows(self):
        specs = tf.nest.flatten(values.element_structure(self._row_type))
        return [tf.zeros([0, *(d or 0 for d in s.shape)], s.dtype) for s in specs]


def _check_keys(keys, max_key, k):
    if keys.size and (keys.min() < 0 or keys.max() > max_key):
        bad = keys[(keys < 0) | (keys > max_key)]
        raise ValueError(
            f"federated_select: client {k} asked for key {bad[0]}, which is not in "
            f"0..max_key = 0..{max_key} ({bad.size} of its {keys.size} keys are not)."
        )


def _check_names_are_sorted(type_spec: tff.Type) -> None:
    """Checks names: TensorFlow sorts those of mappings, but not of named tuples.

    A compiled computation does not tell which of the two its rows are, so that unsorted
    names could confuse the columns of the rows.
    """
    if isinstance(type_spec, tff.StructType):
        names = tff.structure.name_list(type_spec)
        if names != sorted(names):
            raise NotImplementedError(
                "The in-process runtime needs the rows of federated_select to have "
                f"their names in alphabetical order: found {names}."
            )
        for _, element in tff.structure.iter_elements(type_spec):
            _check_names_are_sorted(element)


def _is_static(type_spec: tff.Type) -> bool:
    """Returns whether all tensors of the type have one shape and can be stacked."""
    return all(
        s.shape.is_fully_defined()
        for s in tf.nest.flatten(values.element_structure(type_spec))
    )


def _dataset(sequence: values.SequenceValue, element_type: tff.Type) -> tf.data.Dataset:
    return tf.data.experimental.from_variant(
        sequence.variant, values.element_structure(element_type)
    )


def _sequence_reduce(type_signature: tff.FunctionType) -> Intrinsic:
    element_type = type_signature.parameter[0].element

    def reduce(argument, device):
        sequence, total, function = argument
        for element in _dataset(sequence, element_type):
            total = function(
                (total, values.unpack_element(element, element_type)), device
            )
        return total

    return reduce


def _sequence_sum(type_signature: tff.FunctionType) -> Intrinsic:
    element_type = type_signature.parameter.element

    def total(sequence, device):
        sums = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype),
            values.element_structure(element_type),
        )
        for element in _dataset(sequence, element_type):
            sums = tf.nest.map_structure(tf.add, sums, element)
        return values.unpack_element(sums, element_type)

    return total


def _sequence_map(type_signature: tff.FunctionType) -> Intrinsic:
    element_type = type_signature.parameter[1].element
    result_type = type_signature.result.element
    structure = values.element_structure(element_type)

    def mapped(argument, device):
        function, sequence = argument

        def of_element(*element):
            # tf.data gives the parts of a tuple as arguments.
            if not isinstance(structure, tuple):
                (element,) = element
            result = function(values.unpack_element(element, element_type), TRACING)
            return values.pack_element(result, result_type)

        dataset = _dataset(sequence, element_type)
        try:
            dataset = dataset.map(of_element)
        except NotTraceableError:
            if isinstance(device, Tracing):
                raise
            # One by one: each call has its own variables and resources.
            results = [
                values.pack_element(
                    function(values.unpack_element(element, element_type), device),
                    result_type,
                )
                for element in dataset
            ]
            dataset = values.dataset_of(
                tf.nest.map_structure(lambda tensor: tensor.numpy(), results),
                result_type,
            )
        return values.SequenceValue(
            tf.data.experimental.to_variant(dataset), (dataset, sequence.owners)
        )

    return mapped


_BY_URI: dict[str, Intrinsic] = {
    "federated_aggregate": _aggregate,
    "federated_broadcast": _value_at_clients,
    "federated_eval_at_clients": _eval_at_clients,
    "federated_eval_at_server": _eval_at_server,
    "federated_map_all_equal": _map_all_equal,
    "federated_value_at_clients": _value_at_clients,
    "federated_value_at_server": _value_at_server,
    "federated_zip_at_clients": _zip_at_clients,
    "federated_zip_at_server": _value_at_server,
}
_BY_TYPE: dict[str, Callable[[tff.FunctionType], Intrinsic]] = {
    "federated_apply": _map,
    "federated_map": _map,
    "federated_select": _Select,
    "sequence_map": _sequence_map,
    "sequence_reduce": _sequence_reduce,
    "sequence_sum": _sequence_sum,
}
