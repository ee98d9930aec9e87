"""TFF's compiler as this project's runtimes use it, and TensorFlow's graph optimizer.

`tff.backends.native.desugar_and_transform_to_native` does the same and has Grappler
optimize each TensorFlow computation, importing its graph into Python for that. Here a
`TFComputation` does so itself, by `optimize`. TensorFlow would optimize every function
once more when it first runs, in every thread: nothing is left to do then, and for a
MobileNetV3 it takes seconds (`not_again`).
"""

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from absl import logging
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.grappler import tf_optimizer

# How many compiled computations are kept: a training needs a handful.
_MAX_COMPILED = 128


class Cache:
    """The computations that were compiled last, found by their identity.

    To hash one would mean to serialize it.
    """

    def __init__(self, function: Callable[[tff.framework.ConcreteComputation], Any]):
        self._function = function
        self._compiled: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.RLock()

    def __call__(self, comp: tff.framework.ConcreteComputation) -> Any:
        """Returns what the function gives for a computation, now or then."""
        with self._lock:
            found = self._compiled.get(id(comp))
            if found is None:
                # The computation is kept, too, so that its id stays its own.
                found = self._compiled[id(comp)] = comp, self._function(comp)
                if len(self._compiled) > _MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(id(comp))
        return found[1]


def without_secure_sums(
    comp: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
    """Makes sums of secure sums: the same result, without the protocol.

    TFF's own tests do so, too. Without secure sums this is the computation itself: the
    search alone is quick.
    """
    found = False

    def visit(block):
        nonlocal found
        if isinstance(block, tff.framework.Intrinsic):
            found = found or "secure" in block.uri
        return block, False

    tff.framework.transform_postorder(comp.to_building_block(), visit)
    if not found:
        return comp
    return tff.backends.test.replace_secure_intrinsics_with_bodies(comp)


def compile_to_calls(
    comp: tff.framework.ConcreteComputation,
) -> tff.framework.ComputationBuildingBlock:
    """Compiles a computation without secure sums to calls."""
    block, changed = tff.tensorflow.replace_intrinsics_with_bodies(
        comp.to_building_block()
    )
    if changed:
        comp = tff.framework.ConcreteComputation.from_building_block(block)
    return tff.backends.native.transform_to_native_form(comp).to_building_block()


_Rewrites = rewriter_config_pb2.RewriterConfig


def _aggressive() -> config_pb2.ConfigProto:
    """What TFF's compiler asks for. A data set must not cross to a function's body."""
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.memory_optimization = _Rewrites.AGGRESSIVE
    rewrites.constant_folding = _Rewrites.AGGRESSIVE
    rewrites.arithmetic_optimization = _Rewrites.AGGRESSIVE
    rewrites.loop_optimization = _Rewrites.AGGRESSIVE
    rewrites.function_optimization = _Rewrites.AGGRESSIVE
    return config


def optimize(
    graph_def: tf.compat.v1.GraphDef,
    feeds: Sequence[str],
    fetches: Sequence[str],
    init_op: str = "",
) -> tf.compat.v1.GraphDef:
    """Optimizes a graph as TFF's compiler does.

    Args:
        graph_def: The graph.
        feeds: The names of the tensors that it is given, all of placeholders.
        fetches: The names of the tensors that are asked for.
        init_op: An operation that runs before, or "".

    Returns:
        The optimized graph; or the same, where Grappler cannot say what it is for, as
        without any result.
    """
    dtypes = {
        f"{node.name}:0": node.attr["dtype"].type
        for node in graph_def.node
        if "dtype" in node.attr
    }
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    if init_op:
        collection = meta_graph.collection_def[tf.compat.v1.GraphKeys.INIT_OP]
        collection.node_list.value.append(init_op)
    signature = meta_graph.signature_def["call"]
    for index, name in enumerate(feeds):
        signature.inputs[str(index)].name = name
        signature.inputs[str(index)].dtype = dtypes[name]
    for index, name in enumerate(fetches):
        signature.outputs[str(index)].name = name
    try:
        return tf_optimizer.OptimizeGraph(_aggressive(), meta_graph)
    except ValueError as error:
        logging.debug("Grappler leaves a graph as it is: %s", error)
        return graph_def


_OFF = config_pb2.ConfigProto()
_OFF.graph_options.rewrite_options.disable_meta_optimizer = True
_OFF_OPTIONS = eager_context.FunctionCallOptions(config_proto=_OFF)


@contextlib.contextmanager
def not_again(device: str) -> Iterator[None]:
    """Keeps TensorFlow from optimizing functions in a `with` block on a device again.

    On a GPU it may: what is best there Grappler only knows when it knows the device.
    """
    context = eager_context.context()
    before = context.function_call_options
    if "CPU" in device:
        context.function_call_options = _OFF_OPTIONS
    try:
        yield
    finally:
        context.function_call_options = before
