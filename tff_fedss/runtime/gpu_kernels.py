"""What a GPU would do with a graph, read from TensorFlow's registry of kernels.

The kernels for GPUs are registered wherever TensorFlow is installed, whether the
machine has a GPU or not, with the types that they take and the arguments that they want
in the host's memory. So three questions about the mini-batch loop, which is run
thousands of times, have answers without a GPU:

- which operations have no kernel there, and so run on the CPU;
- which tensors have to be copied between the two memories for it, at each step;
- how many kernels a step launches, the price of a step on a fast GPU.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.protobuf import device_properties_pb2, meta_graph_pb2
from tensorflow.python.framework import kernels, op_def_registry
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item
from tensorflow.python.grappler import tf_optimizer
from tensorflow_federated.python.core.impl.compiler import (
    building_blocks,
    tree_analysis,
)

from tff_fedss.runtime import graphs

# What passes a tensor on, or only looks at its shape, and has no work for the GPU.
_NO_LAUNCH = frozenset(
    "Const ControlTrigger Enter Exit ExpandDims HostConst Identity IdentityN LoopCond "
    "Merge NextIteration NoOp Placeholder PlaceholderWithDefault PreventGradient "
    "ReadVariableOp Reshape Shape ShapeN Size Rank Squeeze StopGradient Switch "
    "VarHandleOp _Arg _Retval _SwitchN".split()
)
# An assigned tensor that nobody else holds becomes the variable's memory.
_NO_LAUNCH |= {"AssignVariableOp"}
_ARGUMENTS = frozenset({"Placeholder", "_Arg", "_Retval"})
_KINDS = {
    "convolutions": "Conv2D Conv2DBackpropFilter Conv2DBackpropInput _FusedConv2D",
    "depthwise convolutions": "DepthwiseConv2dNative "
    "DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput",
    "matrix products": "BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul _FusedMatMul",
    "sums and means": "BiasAddGrad EuclideanNorm Max Mean Min Prod Sum ArgMax ArgMin "
    "All Any",
    "transposes": "Transpose",
    "copies": "BroadcastTo ConcatV2 Fill Gather GatherNd GatherV2 OnesLike Pack Pad "
    "PadV2 ScatterNd Slice Split SplitV StridedSlice StridedSliceGrad Tile Unpack "
    "ZerosLike TensorScatterAdd",
    "pooling": "AvgPool AvgPoolGrad MaxPool MaxPoolGrad",
    "batch norm": "FusedBatchNormV3 FusedBatchNormGradV3",
}
_KIND_OF = {op: kind for kind, ops in _KINDS.items() for op in ops.split()}


class Crossing(NamedTuple):
    """A tensor that has to be copied between the host and the GPU.

    Attributes:
        tensor: Its name.
        reader: The operation that wants it in the other memory, with its type.
        to_host: Which way.
        num_bytes: Its size.
    """

    tensor: str
    reader: str
    to_host: bool
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Step:
    """What a GPU would do with a step.

    Attributes:
        without_kernel: The operations that the GPU has no kernel for: their types, by
            their names.
        crossings: The tensors that are copied between the memories.
        launches: How many kernels are launched, by the type of the operation. One that
            launches several, as some reductions and convolutions do, counts as one.
    """

    without_kernel: Mapping[str, str]
    crossings: Sequence[Crossing]
    launches: Mapping[str, int]

    def by_kind(self) -> dict[str, int]:
        """Returns the launches by what they do, the most frequent kind first."""
        kinds: collections.Counter[str] = collections.Counter()
        for op, number in self.launches.items():
            kinds[_KIND_OF.get(op, "elementwise")] += number
        return dict(kinds.most_common())


def of_client(computation: tff.Computation) -> Step:
    """Looks at the mini-batch loop of a computation's clients.

    Args:
        computation: Such as the `next` of a learning process. Of its parts in
            TensorFlow, as TFF's compiler leaves them, the one with the largest loop
            counts.
    """
    compiled = tff.backends.native.desugar_and_transform_to_native(computation)
    graph_defs = []

    def collect(block):
        if isinstance(block, building_blocks.CompiledComputation):
            proto = block.proto.tensorflow
            graph_def = tf.compat.v1.GraphDef.FromString(proto.graph_def.value)
            if any(node.op == "Enter" for node in graph_def.node):
                graph_defs.append(graph_def)

    tree_analysis.visit_postorder(compiled.to_building_block(), collect)
    return inspect(max(graph_defs, key=lambda graph_def: len(graph_def.node)))


def of_function(function: Any) -> Step:
    """Looks at a function that does a step.

    Args:
        function: What `get_concrete_function` of a `tf.function` returns.
    """
    graph = function.graph
    names = [tensor.name for tensor in graph.outputs]
    names += [operation.name for operation in graph.control_outputs]
    by_handle = {id(variable.handle): variable for variable in graph.variables}
    variables = {
        placeholder.op.name: by_handle[id(handle)]
        for handle, placeholder in graph.captures
        if id(handle) in by_handle
    }
    graph_def = optimize(graph.as_graph_def(), names)
    return inspect(graph_def, in_loop=False, variables=variables)


def inspect(
    graph_def: tf.compat.v1.GraphDef,
    *,
    unknown_size: int = 32,
    in_loop: bool = True,
    variables: Mapping[str, tf.Variable] | None = None,
) -> Step:
    """Looks at the operations of a step.

    Args:
        graph_def: Without functions, such as `optimize` returns it.
        unknown_size: What a dimension counts as that is not known before the graph
            runs: the number of examples in a mini-batch.
        in_loop: Whether the step is the innermost loop with the most operations; if
            not, the graph is the step.
        variables: What the placeholders of resources stand for, by their names.

    Raises:
        ValueError: If there is no loop, or the graph still calls functions.
    """
    called = graphs.reached_functions(graph_def)
    if called:
        raise ValueError(f"The graph calls functions: {sorted(called)[:3]}.")
    nodes = {node.name: node for node in graph_def.node}
    step = _innermost(graph_def) if in_loop else list(nodes.values())
    shapes = _Shapes(graph_def, unknown_size, variables or {})
    found = {node.name: _kernel(node) for node in graph_def.node}
    without = {
        node.name: node.op
        for node in step
        if found[node.name] is None and node.op not in _ARGUMENTS
    }
    crossings = {}
    launches: collections.Counter[str] = collections.Counter()
    for node in step:
        reader = _Memory(node, found[node.name])
        if node.op == "Enter":
            continue  # Once for all steps.
        for k, name in enumerate(i for i in node.input if not i.startswith("^")):
            producer = nodes[graphs.node_name(name)]
            if producer.op in _ARGUMENTS:
                continue  # Where arguments are is the caller's affair.
            output = int(graphs.tensor_name(name).rpartition(":")[2])
            in_host = _Memory(producer, found[producer.name]).output_in_host(output)
            to_host = reader.input_in_host(k)
            if in_host != to_host:
                tensor = graphs.tensor_name(name)
                crossings[tensor, to_host] = Crossing(
                    tensor, f"{node.name} ({node.op})", to_host, shapes.num_bytes(name)
                )
        if reader.launches():
            launches[node.op] += 1
    largest = sorted(crossings.values(), key=lambda c: -c.num_bytes)
    return Step(without, largest, launches)


def optimize(
    graph_def: tf.compat.v1.GraphDef,
    fetches: Sequence[str],
    *,
    layout_optimizer: bool = False,
) -> tf.compat.v1.GraphDef:
    """Does what TensorFlow does to a graph before it runs on an H100.

    Functions become a part of the graph, loops are written out, and what is computed
    twice, or is known beforehand, goes.

    Args:
        graph_def: The graph.
        fetches: Names of the tensors that are wanted.
        layout_optimizer: Whether convolutions get the layout that TensorFlow thinks
            best, with transposes around them.
    """
    devices = [
        device_properties_pb2.NamedDevice(
            name=f"/job:localhost/replica:0/task:0/device:{kind}:0",
            properties=device_properties_pb2.DeviceProperties(
                type=kind,
                frequency=1_755,
                num_cores=132,
                environment={"architecture": "9.0", "cuda": "12020", "cudnn": "8907"},
            ),
        )
        for kind in ("CPU", "GPU")
    ]
    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    for name in fetches:
        meta_graph.collection_def["train_op"].node_list.value.append(
            graphs.node_name(name)
        )
    for node in meta_graph.graph_def.node:
        node.device = devices[-1].name
    config = tf.compat.v1.ConfigProto()
    rewrite = config.graph_options.rewrite_options
    rewrite.meta_optimizer_timeout_ms = -1  # No graph is too large for it,
    rewrite.min_graph_nodes = -1  # or too small.
    # As TFF's compiler asks for it.
    rewrite.memory_optimization = rewrite.AGGRESSIVE
    rewrite.constant_folding = rewrite.AGGRESSIVE
    rewrite.arithmetic_optimization = rewrite.AGGRESSIVE
    rewrite.loop_optimization = rewrite.AGGRESSIVE
    rewrite.function_optimization = rewrite.AGGRESSIVE
    if not layout_optimizer:
        rewrite.layout_optimizer = rewrite.OFF
    return tf_optimizer.OptimizeGraph(
        config, meta_graph, cluster=grappler_cluster.Cluster(devices=devices)
    )


def _innermost(graph_def: tf.compat.v1.GraphDef) -> list[Any]:
    """Returns the nodes of the innermost loop with the most of them."""
    frames = _frames(graph_def)
    sizes = collections.Counter(frames.values())
    outer = {frame[:-1] for frame in sizes if frame}
    innermost = [frame for frame in sizes if frame and frame not in outer]
    if not innermost:
        raise ValueError("The graph has no loop.")
    chosen = max(innermost, key=sizes.__getitem__)
    return [node for node in graph_def.node if frames[node.name] == chosen]


def _frames(graph_def: tf.compat.v1.GraphDef) -> dict[str, tuple[str, ...]]:
    """Returns the names of the loops that each node is in, from the outermost."""
    readers = collections.defaultdict(list)
    nodes = {node.name: node for node in graph_def.node}
    for node in graph_def.node:
        for name in node.input:
            readers[graphs.node_name(name)].append(node)
    frames: dict[str, tuple[str, ...]] = {}
    waiting = [(node, ()) for node in graph_def.node if not node.input]
    while waiting:
        node, frame = waiting.pop()
        if node.op == "Enter":
            frame = (*frame, node.attr["frame_name"].s.decode())
        if len(frames.get(node.name, ())) >= len(frame) and node.name in frames:
            continue
        frames[node.name] = frame
        beyond = frame[:-1] if node.op == "Exit" else frame
        waiting += [(reader, beyond) for reader in readers[node.name]]
    return {name: frames.get(name, ()) for name in nodes}


class _Memory:
    """In which memory the tensors of a node are."""

    def __init__(self, node: Any, kernel: Any):
        self._node, self._kernel = node, kernel
        definition = op_def_registry.get(node.op)
        self._inputs = list(_expanded(definition.input_arg, node)) if definition else []
        self._outputs = (
            list(_expanded(definition.output_arg, node)) if definition else []
        )

    def _in_host(self, names: list[str], k: int) -> bool:
        if self._kernel is None:
            return True
        return k < len(names) and names[k] in self._kernel.host_memory_arg

    def input_in_host(self, k: int) -> bool:
        return self._in_host(self._inputs, k)

    def output_in_host(self, k: int) -> bool:
        return self._in_host(self._outputs, k)

    def launches(self) -> bool:
        """Whether the GPU has something to do."""
        if self._kernel is None or self._node.op in _NO_LAUNCH:
            return False
        return not self._outputs or not all(
            self.output_in_host(k) for k in range(len(self._outputs))
        )


def _expanded(arguments: Any, node: Any) -> Iterator[str]:
    """Yields the name of the argument that each tensor belongs to."""
    for argument in arguments:
        number = 1
        if argument.number_attr:
            number = node.attr[argument.number_attr].i
        elif argument.type_list_attr:
            number = len(node.attr[argument.type_list_attr].list.type)
        yield from itertools.repeat(argument.name, number)


def _kernel(node: Any) -> Any:
    """Returns the KernelDef that a GPU would run a node with, or None."""
    definition = op_def_registry.get(node.op)
    defaults = {a.name: a.default_value for a in definition.attr} if definition else {}
    for kernel in kernels.get_registered_kernels_for_op(node.op).kernel:
        if kernel.device_type not in ("GPU", "DEFAULT") or kernel.label:
            continue
        for constraint in kernel.constraint:
            value = node.attr.get(constraint.name) or defaults[constraint.name]
            types = set(value.list.type) or {value.type}
            if not types <= set(constraint.allowed_values.list.type):
                break
        else:
            return kernel
    return None


class _Shapes:
    """The sizes of a graph's tensors."""

    def __init__(
        self,
        graph_def: tf.compat.v1.GraphDef,
        unknown_size: int,
        variables: Mapping[str, tf.Variable],
    ):
        self._unknown = unknown_size
        meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
        for node in meta_graph.graph_def.node:
            # Grappler knows nothing of what is fed, whatever its shape says.
            if node.name in variables:
                variable = variables[node.name]
                node.op = "VarHandleOp"
                node.attr["dtype"].type = variable.dtype.as_datatype_enum
                node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            elif node.op == "Placeholder":
                node.op = "ImmutableConst"
                node.attr["memory_region_name"].s = b"unknown"
        # Grappler asks for something to compute.
        meta_graph.collection_def["train_op"].node_list.value.append(
            graph_def.node[-1].name
        )
        # It follows the shapes round the loops, which an import does not.
        item = grappler_item.Item(meta_graph, ignore_user_placement=False)
        self._properties = item.GetOpProperties()

    def num_bytes(self, name: str) -> int:
        """Returns the size of a tensor; more than any memory if its rank is unknown."""
        node, _, output = graphs.tensor_name(name).rpartition(":")
        tensor = self._properties[node][int(output)]
        dtype = tf.as_dtype(tensor.dtype)
        if dtype in (tf.resource, tf.variant, tf.string):
            return 0
        if tensor.shape.unknown_rank:
            return 2**63
        sizes = [self._unknown if d.size < 0 else d.size for d in tensor.shape.dim]
        return dtype.size * math.prod(sizes)
