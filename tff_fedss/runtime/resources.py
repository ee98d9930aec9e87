"""State that a graph keeps between two runs: resources, and state of kernels.

A session of TFF's runtime begins a call without variables, tables and queues.
TensorFlow's eager runtime, where our graphs run, keeps them under names that every
graph can see, as long as the process lives. This module tells for each of TensorFlow's
operations what it keeps, and for a graph how to isolate its calls.

`kind_of` knows every operation that makes a resource, by its name or its definition.
Unknown operations that make one are refused, so that an operation of another version of
TensorFlow cannot share its state unnoticed.
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
    """The state that an operation keeps for its next execution."""

    # Nothing.
    NOTHING = enum.auto()
    # A new resource at each execution, freed with its handle. (TensorFlow's eager
    # runtime never frees the contents of arrays and stacks of TensorFlow 1.)
    NEW_EACH_TIME = enum.auto()
    # A named resource. Its kernel makes it again if it is gone.
    NAMED = enum.auto()
    # A named resource. Its kernel is unusable once it is gone.
    NAMED_ONCE = enum.auto()
    # State in its kernel, such as the position in a random stream.
    KERNEL = enum.auto()
    # Unknown state; state that cannot be cleared; or threads (of readers, multi-device
    # iterators) that outlive their resource and then end the process.
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
    # They return a handle but make no resource.
    Kind.NOTHING: """
        DummyMemoryCache DummySeedGenerator
    """,
    # They keep state, without a name or a handle.
    Kind.REFUSED: """
        RecordInput Skipgram
    """,
}
_BY_NAME = {op: kind for kind, ops in _KINDS.items() for op in ops.split()}

# For an operation with inputs, one without inputs that finds the same resource.
_FINDS = {"MutableDenseHashTableV2": "HashTableV2"}


@functools.cache
def kind_of(op: str) -> Kind:
    """Returns what an operation keeps if its seeds, if any, are not set."""
    if op in _BY_NAME:
        return _BY_NAME[op]
    op_def = op_def_registry.get(op)
    if op_def is None or not makes_resource(op_def):
        return Kind.NOTHING
    return Kind.REFUSED


def makes_resource(op_def: op_def_pb2.OpDef) -> bool:
    """Returns whether an operation may make a resource, by its definition.

    It has a name for one, or an output handle without an input handle.
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
    # Without a seed a kernel takes a random one: no two draws are equal.
    is_seeded = _has_seeds(node.op) and any(
        name in node.attr and node.attr[name].i for name in ("seed", "seed2")
    )
    return Kind.KERNEL if is_seeded and kind is Kind.NOTHING else kind


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan for isolating a graph's calls, as separate sessions would.

    Attributes:
        variables: The NodeDefs of the variables that can be arguments of the graph,
            since its initialization sets them.
        owned: The NodeDefs of all other named resources. Concurrent calls need copies
            of the graph with other names, and must destroy these resources.
        is_for_one_call: Whether kernels of the graph keep state, so that each call
            needs its own copy.
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
    """Plans the isolation of a graph, which may be changed, initialized by `init_op`.

    Raises NotImplementedError if calls would share an operation's resource; the
    message names the operation.
    """
    nested = _nested(graph_def)
    kinds: dict[Kind, str] = {}
    for node in itertools.chain(graph_def.node, nested):
        kinds.setdefault(_keeps(node), node.op)
    if Kind.REFUSED in kinds:
        raise NotImplementedError(
            f"The in-process runtime does not run {kinds[Kind.REFUSED]} operations: "
            "calls and clients would share their state. TFF's native runtime may "
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

    If the resource is gone, it or another one is made, which can be destroyed as well.
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
