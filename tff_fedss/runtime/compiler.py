"""TFF's compiler for this project's runtimes, and TensorFlow's graph optimizer.

`tff.backends.native.desugar_and_transform_to_native` does the same and lets Grappler
optimize each TensorFlow computation, for which it imports the graph into Python, and it
writes and reads the whole computation between its steps. Here a `TFComputation` is
optimized by `optimize`. TensorFlow would optimize every function again
when it first runs, in every thread, which has no effect but takes seconds for a
MobileNetV3 (`not_again`).
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

# Number of compiled computations that are kept; a training needs a few.
_MAX_COMPILED = 128


class Cache:
    """A cache of the last compiled computations, by identity.

    Hashing one would serialize it.
    """

    def __init__(self, function: Callable[[tff.framework.ConcreteComputation], Any]):
        self._function = function
        self._compiled: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.RLock()

    def __call__(self, comp: tff.framework.ConcreteComputation) -> Any:
        """Returns the function's result for a computation, cached or new."""
        with self._lock:
            found = self._compiled.get(id(comp))
            if found is None:
                # The computation is also kept, so that its id is not reused.
                found = self._compiled[id(comp)] = comp, self._function(comp)
                if len(self._compiled) > _MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(id(comp))
        return found[1]


def without_secure_sums(
    comp: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
    """Replaces secure sums by sums: the same result, without the protocol.

    TFF's own tests also do so. A computation without the word "secure" is returned as
    it is: a search of its building blocks takes a second for a MobileNetV3.
    """
    proto = tff.framework.ConcreteComputation.get_proto(comp)
    if b"secure" not in proto.SerializeToString():
        return comp
    return tff.backends.test.replace_secure_intrinsics_with_bodies(comp)


def compile_to_calls(
    comp: tff.framework.ConcreteComputation,
) -> tff.framework.ComputationBuildingBlock:
    """Compiles a computation without secure sums to calls."""
    block, _ = tff.tensorflow.replace_intrinsics_with_bodies(comp.to_building_block())
    return tff.framework.to_call_dominant(block)


_Rewrites = rewriter_config_pb2.RewriterConfig


def _aggressive() -> config_pb2.ConfigProto:
    """TFF's compiler options, but one pass: a second finds next to nothing.

    The pass that saves memory is off: it finds nothing either, and takes a quarter of
    the time. A data set must not be moved into a function's body.
    """
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.meta_optimizer_iterations = _Rewrites.ONE
    rewrites.memory_optimization = _Rewrites.NO_MEM_OPT
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
    """Optimizes a graph as TFF's compiler does; if Grappler fails, returns it as it is.

    Feeds are all of placeholders; `init_op` runs before, if it is not "".
    """
    if not fetches:  # Grappler would print an error.
        return graph_def
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
    """Keeps TensorFlow from optimizing functions again in a `with` block on a device.

    On a GPU it may, since Grappler's best choices there depend on the device.
    """
    context = eager_context.context()
    before = context.function_call_options
    if "CPU" in device:
        context.function_call_options = _OFF_OPTIONS
    try:
        yield
    finally:
        context.function_call_options = before
