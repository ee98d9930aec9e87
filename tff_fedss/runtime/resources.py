"""State that a graph keeps between two of its runs: resources, and that of kernels.

A session of TFF's runtime begins a call with nothing: no variables, no tables, no
queues. TensorFlow's eager runtime, where our graphs run, keeps all of these under names
that every graph can see, for as long as the process lives. This module says of each of
TensorFlow's operations what it keeps, and of a graph what has to be done about that.

`kind_of` knows every operation that makes a resource: by its name, or else by its
definition. What makes one and is not known here is refused, so that an operation of
another version of TensorFlow cannot share its state without a word.
"""

import collections
import dataclasses
import enum
import functools
import itertools
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.python.framework import op_def_registry

from tff_fedss.runtime import graphs


class Kind(enum.Enum):
    """What an operation keeps for its next execution."""

    # Nothing.
    NOTHING = enum.auto()
    # A new resource at each execution, which goes with its handle. (TensorFlow's eager
    # runtime never frees what arrays and stacks of TensorFlow 1 hold.)
    NEW_EACH_TIME = enum.auto()
    # A resource under a name. Its kernel makes it again if it is gone.
    NAMED = enum.auto()
    # A resource under a name. Its kernel is of no use once it is gone.
    NAMED_ONCE = enum.auto()
    # Something in its kernel, such as where it is in a stream of random numbers.
    KERNEL = enum.auto()
    # It is not known; or nothing empties it; or its threads outlive it, which ends the
    # process, such as those of readers and of multi-device iterators.
    REFUSED = enum.auto()


_KINDS = {
    Kind.NEW_EACH_TIME: """
        AnonymousHashTable AnonymousIterator AnonymousIteratorV2 AnonymousIteratorV3
        AnonymousMemoryCache AnonymousMutableDenseHashTable AnonymousMutableHashTable
        AnonymousMutableHashTableOfTensors AnonymousSeedGenerator StackV2 TensorArrayV3
    """,
    Kind.NAMED: """
        FIFOQueueV2 HashTableV2 MutableDenseHashTableV2 MutableHashTableOfTensorsV2
        MutableHashTableV2 MutexV2 PaddingFIFOQueueV2 PriorityQueueV2
        RandomShuffleQueueV2 SummaryWriter VarHandleOp
    """,
    Kind.NAMED_ONCE: """
        Iterator IteratorV2 ResourceConditionalAccumulator
    """,
    Kind.KERNEL: """
        LearnedUnigramCandidateSampler ThreadUnsafeUnigramCandidateSampler
    """,
    # They make no resource, though a handle comes out of them.
    Kind.NOTHING: """
        DummyMemoryCache DummySeedGenerator
    """,
    # They keep something, though neither names nor handles say so.
    Kind.REFUSED: """
        RecordInput Skipgram
    """,
}
_BY_NAME = {op: kind for kind, ops in _KINDS.items() for op in ops.split()}

# Which operation finds the resource that another one has made, without its inputs.
_FINDS = {"MutableDenseHashTableV2": "HashTableV2"}


@functools.cache
def kind_of(op: str) -> Kind:
    """Returns what an operation keeps, if its seeds, where it has any, are not set."""
    if op in _BY_NAME:
        return _BY_NAME[op]
    op_def = op_def_registry.get(op)
    if op_def is None or not makes_resource(op_def):
        return Kind.NOTHING
    return Kind.REFUSED


def makes_resource(op_def: op_def_pb2.OpDef) -> bool:
    """Whether an operation may make a resource, as far as its definition tells.

    It has a name for one, or a handle comes out of it and none goes in.
    """
    if {attribute.name for attribute in op_def.attr} & {"shared_name", "container"}:
        return True
    return any(map(_is_handle, op_def.output_arg)) and not any(
        map(_is_handle, op_def.input_arg)
    )


def _is_handle(arg: op_def_pb2.OpDef.ArgDef) -> bool:
    return arg.is_ref or arg.type == types_pb2.DT_RESOURCE


@functools.cache
def _has_seeds(op: str) -> bool:
    op_def = op_def_registry.get(op)
    return (
        op_def is not None
        and op_def.is_stateful
        and "seed" in {attribute.name for attribute in op_def.attr}
    )


def _keeps(node: Any) -> Kind:
    """Returns what a NodeDef keeps."""
    kind = kind_of(node.op)
    # Without a seed a kernel takes one of its own: no two draws are alike.
    is_seeded = _has_seeds(node.op) and any(
        name in node.attr and node.attr[name].i for name in ("seed", "seed2")
    )
    return Kind.KERNEL if is_seeded and kind is Kind.NOTHING else kind


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a graph gets what a session of its own would give it.

    Attributes:
        graph_def: The graph.
        variables: The NodeDefs of the variables that the graph can get as arguments:
            those that its initialization sets, so that they need not be new.
        owned: The NodeDefs of all other named resources. Concurrent calls need copies
            of the graph, with other names, and must leave none of them behind.
        is_for_one_call: Whether kernels of the graph keep something, so that each call
            needs a copy of its own.
        makes_resources: Whether some operation makes a new resource at each execution.
    """

    graph_def: tf.compat.v1.GraphDef
    variables: tuple[Any, ...] = ()
    owned: tuple[Any, ...] = ()
    is_for_one_call: bool = False
    makes_resources: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether concurrent calls may run the same graph."""
        return not self.owned and not self.is_for_one_call


def plan(graph_def: tf.compat.v1.GraphDef, init_op: str) -> Plan:
    """Finds out what has to be done for a graph, which may be changed.

    Args:
        graph_def: The graph.
        init_op: The node that initializes it, or "".

    Raises:
        NotImplementedError: If there is an operation whose resource calls would share.
            The message names it.
    """
    nested = _nested(graph_def)
    kinds: dict[Kind, str] = {}
    for node in itertools.chain(graph_def.node, nested):
        kinds.setdefault(_keeps(node), node.op)
    if Kind.REFUSED in kinds:
        raise NotImplementedError(
            f"The in-process runtime does not run {kinds[Kind.REFUSED]} operations: "
            "calls and clients would share what they keep. TFF's native runtime may "
            "run them."
        )
    variables, owned = [], []
    if Kind.NAMED in kinds or Kind.NAMED_ONCE in kinds:
        if any(map(_is_named, nested)):
            graphs.separate_call_sites(graph_def, _is_named)
        can_be_arguments = _set_by(graph_def, init_op)
        named = _named(graph_def)
        uses = collections.Counter(name for *_, name in named)
        for place, node, name in named:
            if not place and node.name in can_be_arguments and uses[name] == 1:
                variables.append(node)
            else:
                node.attr["shared_name"].s = (graphs.OWNED + name).encode()
                node.attr["container"].s = b""
                owned.append(node)
    return Plan(
        graph_def,
        tuple(variables),
        tuple(owned),
        is_for_one_call=Kind.KERNEL in kinds or Kind.NAMED_ONCE in kinds,
        makes_resources=Kind.NEW_EACH_TIME in kinds,
    )


def finder(node: Any) -> Any:
    """Returns a NodeDef without inputs whose output is the handle of a node's resource.

    If that is gone by now, it is made then, or another one that can be destroyed as
    well.
    """
    op = _FINDS.get(node.op, node.op)
    found = tf.compat.v1.NodeDef(name="resource", op=op)
    for attribute in op_def_registry.get(op).attr:
        if attribute.name in node.attr:
            found.attr[attribute.name].CopyFrom(node.attr[attribute.name])
    return found


def _is_named(node: Any) -> bool:
    return kind_of(node.op) in (Kind.NAMED, Kind.NAMED_ONCE)


def _nested(graph_def: tf.compat.v1.GraphDef) -> list[Any]:
    """Returns the NodeDefs of all functions that the graph calls."""
    reached = graphs.reached_functions(graph_def)
    return [
        node
        for function in graph_def.library.function
        if function.signature.name in reached
        for node in function.node_def
    ]


def _named(graph_def: tf.compat.v1.GraphDef) -> list[tuple[str, Any, str]]:
    """Returns (function or "", NodeDef, name of the resource) of named resources."""
    places = [("", node) for node in graph_def.node]
    reached = graphs.reached_functions(graph_def)
    for function in graph_def.library.function:
        name = function.signature.name
        if name in reached:
            places += [(name + "/", node) for node in function.node_def]
    return [
        (
            place,
            node,
            f"{_text(node, 'container')}/"
            f"{_text(node, 'shared_name') or place + node.name}",
        )
        for place, node in places
        if _is_named(node)
    ]


def _text(node: Any, attribute: str) -> str:
    return node.attr[attribute].s.decode() if attribute in node.attr else ""


def _set_by(graph_def: tf.compat.v1.GraphDef, init_op: str) -> set[str]:
    """Returns the nodes of the variables that the initialization always sets."""
    if not init_op:
        return set()
    nodes = graphs.sub_graph(graph_def, {init_op}).node
    if any(node.op == "Switch" for node in nodes):
        return set()
    return {
        graphs.node_name(node.input[0])
        for node in nodes
        if node.op == "AssignVariableOp"
    }
