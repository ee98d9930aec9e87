"""Arguments of federated computations: the server's and the clients' parts."""

from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from tff_fedss.runtime import values


def count_clients(value: Any, type_spec: tff.Type | None) -> int | None:
    """Returns the number of clients in an argument, or None.

    Raises:
        TypeError: If a value at the clients is no list.
        ValueError: If its lists of client values have several lengths.
    """
    lengths = set()

    def look(part, part_type):
        if part_type.placement is tff.CLIENTS and not part_type.all_equal:
            what = "type list with one value per client,"
            values.check_type(
                isinstance(part, list | tuple), what, part_type, type(part)
            )
            lengths.add(len(part))

    _mapped(value, type_spec, look)
    if len(lengths) > 1:
        raise ValueError(
            "Conflicting cardinalities for CLIENTS: the argument holds lists of "
            f"{sorted(lengths)} client values."
        )
    return lengths.pop() if lengths else None


def has_clients(type_spec: tff.Type) -> bool:
    """Returns whether a part of a value of this type is at the clients."""
    if isinstance(type_spec, tff.StructType):
        return any(has_clients(e) for _, e in tff.structure.iter_elements(type_spec))
    return (
        isinstance(type_spec, tff.FederatedType) and type_spec.placement is tff.CLIENTS
    )


def type_without(placement: Any, type_spec: tff.Type) -> tff.Type:
    """Returns a type of arguments with empty tuples for the parts at a placement."""
    if isinstance(type_spec, tff.StructType):
        return tff.StructType(
            [
                (name, type_without(placement, element))
                for name, element in tff.structure.iter_elements(type_spec)
            ]
        )
    if getattr(type_spec, "placement", None) is placement:
        return tff.StructType([])
    return type_spec


def of_server(value: Any, type_spec: tff.Type) -> Any:
    """Returns an argument with empty tuples for the clients' parts."""
    return _mapped(
        value, type_spec, lambda v, t: v if t.placement is tff.SERVER else ()
    )


def of_clients(value: Any, type_spec: tff.Type, clients: slice) -> Any:
    """Returns an argument of some clients, with empty tuples for the server's parts."""
    return _mapped(
        value,
        type_spec,
        lambda v, t: (
            () if t.placement is tff.SERVER else v if t.all_equal else list(v[clients])
        ),
    )


def without_clients(value: Any, type_spec: tff.Type) -> Any:
    """Returns an argument of the same type without clients."""
    return _mapped(
        value,
        type_spec,
        lambda v, t: [] if t.placement is tff.CLIENTS and not t.all_equal else v,
    )


def with_clients(
    value: Any, type_spec: tff.Type, function: Callable[[Any], Any]
) -> Any:
    """Returns an argument with each client's value replaced by a function of it."""
    return _mapped(
        value,
        type_spec,
        lambda v, t: (
            list(map(function, v))
            if t.placement is tff.CLIENTS and not t.all_equal
            else v
        ),
    )


def _mapped(
    value: Any, type_spec: tff.Type, function: Callable[[Any, tff.FederatedType], Any]
) -> Any:
    """Applies a function to the federated parts of an argument."""
    if isinstance(type_spec, tff.FederatedType):
        return function(value, type_spec)
    if isinstance(type_spec, tff.StructType):
        return tff.structure.Struct(
            (name, _mapped(element, element_type, function))
            for name, element, element_type in values.elements(value, type_spec)
        )
    return value
