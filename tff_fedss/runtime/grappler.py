"""TensorFlow's graph optimizer, Grappler: once for a graph, not once more on each run.

TFF's compiler optimizes every graph when it compiles, and TensorFlow every function
when it first runs. The second time nothing is left to do, and for a MobileNetV3 it
takes seconds, in every thread that runs the function first.
"""

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.grappler import tf_optimizer

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
