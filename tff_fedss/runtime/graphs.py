"""Surgery on GraphDefs: parts of a graph, names, and the functions that it calls."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

# With this shared name, a VarHandleOp makes a new variable at each execution.
ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


# Start of the shared names of resources that belong to one copy of a graph.
OWNED = "tff_fedss:"


def node_name(name: str) -> str:
    """Returns the node of a tensor's name, or of a node's input."""
    return name.lstrip("^").partition(":")[0]


def tensor_name(node_input: str) -> str:
    """Returns the full name of the tensor that an input of a node names."""
    if ":" in node_input or node_input.startswith("^"):
        return node_input
    return node_input + ":0"


def sub_graph(
    graph_def: tf.compat.v1.GraphDef, roots: set[str]
) -> tf.compat.v1.GraphDef:
    """Returns the part of a graph that its roots depend on, with all functions."""
    nodes = {node.name: node for node in graph_def.node}
    reached, waiting = set(roots), list(roots)
    while waiting:
        for node_input in nodes[waiting.pop()].input:
            name = node_name(node_input)
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return tf.compat.v1.GraphDef(
        node=[node for node in graph_def.node if node.name in reached],
        library=graph_def.library,
        versions=graph_def.versions,
    )


def reached_functions(
    graph_def: tf.compat.v1.GraphDef, nodes: Iterable[Any] | None = None
) -> set[str]:
    """Returns the names of the library's functions that nodes call, also indirectly.

    Without `nodes`, the graph's nodes outside of functions are used.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    reached: set[str] = set()
    waiting = [graph_def.node if nodes is None else nodes]
    while waiting:
        called = {f for node in waiting.pop() for f in _called(node, functions)}
        waiting += [functions[name].node_def for name in called - reached]
        reached |= called
    return reached


def has_gradients_in_data_sets(graph_def: tf.compat.v1.GraphDef) -> bool:
    """Returns whether a function called by a tf.data operation computes gradients."""
    functions = {f.signature.name: f for f in graph_def.library.function}
    everywhere = itertools.chain(
        graph_def.node, *(function.node_def for function in functions.values())
    )
    calling = [node for node in everywhere if "Dataset" in node.op]
    return any(
        "Grad" in node.op or "Backprop" in node.op
        for name in reached_functions(graph_def, calling)
        for node in functions[name].node_def
    )


def separate_call_sites(
    graph_def: tf.compat.v1.GraphDef, concerns: Callable[[Any], bool]
) -> None:
    """Gives each call of some functions its own copy of the function, in place.

    TensorFlow inlines functions, so that each call has its own kernel state. With a
    copy for each call, a node of a function is one kernel.

    Args:
        concerns: Whether functions with a given NodeDef, and their callers, are to be
            separated.

    Raises:
        NotImplementedError: If such a function calls itself.
    """
    library = graph_def.library.function
    functions = {f.signature.name: f for f in library}
    concerned = {
        name
        for name, function in functions.items()
        if any(map(concerns, function.node_def))
    }
    separate = {
        name
        for name in functions
        if name in concerned
        or concerned & reached_functions(graph_def, functions[name].node_def)
    }
    numbers = itertools.count()

    def copy(name: str, callers: tuple[str, ...]) -> str:
        if name not in separate:
            return name
        if name in callers:
            raise NotImplementedError(
                f"The in-process runtime does not support recursive functions: {name}."
            )
        own = type(functions[name])()
        own.CopyFrom(functions[name])
        own.signature.name = f"{name}_site{next(numbers)}"
        for node in own.node_def:
            _rename_calls(node, lambda called: copy(called, (*callers, name)))
        library.append(own)
        return own.signature.name

    for node in graph_def.node:
        _rename_calls(node, lambda called: copy(called, ()))


def make_names_unique(graph_def: tf.compat.v1.GraphDef, suffix: str) -> None:
    """Renames what TensorFlow looks up by name across graphs, in place."""
    functions = {function.signature.name for function in graph_def.library.function}

    def rename(name: str) -> str:
        return name + suffix if name in functions else name

    def visit(node: Any) -> None:
        _rename_calls(node, rename)
        # Colocation is only a hint, and its nodes may be gone.
        node.attr.pop("_class", None)
        if "shared_name" in node.attr:
            name = node.attr["shared_name"].s.decode() or node.name
            is_anonymous = node.op == "VarHandleOp" and not name.startswith(OWNED)
            node.attr["shared_name"].s = (
                ANONYMOUS if is_anonymous else name + suffix
            ).encode()

    for node in graph_def.node:
        visit(node)
    for function in graph_def.library.function:
        function.signature.name = rename(function.signature.name)
        _rename_in_attributes(function.attr, rename)
        for node in function.node_def:
            visit(node)
    for gradient in graph_def.library.gradient:
        gradient.function_name = rename(gradient.function_name)
        gradient.gradient_func = rename(gradient.gradient_func)


def _called(node: Any, functions: Mapping[str, Any]) -> Iterator[str]:
    """Yields the library's functions that a node names."""
    names: list[str] = []

    def collect(name: str) -> str:
        names.append(name)
        return name

    _rename_calls(node, collect)
    yield from (name for name in names if name in functions)


def _rename_calls(node: Any, rename: Callable[[str], str]) -> None:
    """Renames the functions that a NodeDef calls, in place.

    `rename` is also called for other names, which it must return unchanged.
    """
    _set_if_changed(node, "op", rename)
    _rename_in_attributes(node.attr, rename)


def _rename_in_attributes(attributes: Any, rename: Callable[[str], str]) -> None:
    for value in attributes.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            _rename_function(value.func, rename)
        elif kind == "list":
            for function in value.list.func:
                _rename_function(function, rename)
        elif kind == "s":
            name = value.s.decode(errors="replace")
            renamed = rename(name)
            if renamed != name:
                value.s = renamed.encode()


def _rename_function(function: Any, rename: Callable[[str], str]) -> None:
    _set_if_changed(function, "name", rename)
    _rename_in_attributes(function.attr, rename)


def _set_if_changed(message: Any, field: str, rename: Callable[[str], str]) -> None:
    name = getattr(message, field)
    renamed = rename(name)
    if renamed != name:
        setattr(message, field, renamed)
