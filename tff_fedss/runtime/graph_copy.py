"""Copies of a graph as TensorFlow functions, each with unique names."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import handle_data_util

from tff_fedss.runtime import gpus, graphs, resources

_copying = threading.Lock()


class GraphCopy:
    """A graph as TensorFlow functions with unique names.

    Attributes:
        initialize: A function of the variables and the arguments, or None.
        run: A function of the same; returns the fetches.
        destroy: A function that destroys the graph's own resources, or None.
    """

    def __init__(
        self,
        plan: resources.Plan,
        suffix: str,
        feeds: Sequence[str],
        specs: Sequence[tf.TensorSpec],
        token: str,
        prototypes: Sequence["Variable"],
        fetches: Sequence[str],
        init_op: str,
    ):
        graph_def = plan.graph_def
        if not plan.is_shared:
            graph_def = tf.compat.v1.GraphDef()
            graph_def.CopyFrom(plan.graph_def)
        graphs.make_names_unique(graph_def, suffix)
        importer = _Importer(graph_def, feeds, token, prototypes)

        def initialize(*args):
            (op,) = importer(args, [init_op])
            return _after([op])

        # The caller may be a client running on some device.
        with _copying, eager_context.eager_mode(), tf.device(None):
            self.run = tf.compat.v1.wrap_function(
                lambda *args: importer(args, fetches), specs
            )
            self.initialize = (
                tf.compat.v1.wrap_function(initialize, specs) if init_op else None
            )
            self.destroy = (
                tf.compat.v1.wrap_function(lambda: _destroy(plan.owned, suffix), [])
                if plan.owned
                else None
            )


def _destroy(nodes: Sequence[Any], suffix: str) -> list[tf.Tensor]:
    """Destroys the named resources of a copy of a graph."""
    part = tf.compat.v1.GraphDef(node=[resources.finder(node) for node in nodes])
    for k, node in enumerate(part.node):
        node.name += str(k)
    graphs.make_names_unique(part, suffix)
    handles = tf.graph_util.import_graph_def(
        part, return_elements=[f"{node.name}:0" for node in part.node], name=""
    )
    return _after(
        [
            tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
            for handle in handles
        ]
    )


def _after(operations: Sequence[tf.Operation]) -> list[tf.Tensor]:
    with tf.control_dependencies(operations):
        return [tf.constant(0)]


class _Importer(NamedTuple):
    """Imports a graph, or a part of it, into the graph that is being built."""

    graph_def: tf.compat.v1.GraphDef
    feeds: Sequence[str]
    token: str
    prototypes: Sequence["Variable"]

    def __call__(
        self, args: Sequence[tf.Tensor], fetches: Sequence[str]
    ) -> list[tf.Tensor | tf.Operation]:
        for arg, prototype in zip(args, self.prototypes, strict=False):
            # Without the variable's shape the optimizer would not know any shape.
            handle_data_util.copy_handle_data(prototype.handle, arg)
        values = dict(zip(self.feeds, args, strict=True))
        if self.token:  # Only deprecated operations read it.
            values[self.token] = tf.constant("")
        part = graphs.sub_graph(
            self.graph_def, {graphs.node_name(name) for name in fetches}
        )
        fed = {graphs.node_name(name) for name in values}
        kept = [node for node in part.node if node.name not in fed]
        for node in kept:  # An argument already exists: nothing has to wait for it.
            inputs = [i for i in node.input if not (i[0] == "^" and i[1:] in fed)]
            if len(inputs) < len(node.input):
                node.input[:] = inputs
        used = {name for node in kept for name in map(graphs.tensor_name, node.input)}
        del part.node[:]
        part.node.extend(kept)
        names = list(dict.fromkeys(name for name in fetches if name not in values))
        imported = tf.graph_util.import_graph_def(
            part,
            input_map={k: v for k, v in values.items() if k in used},
            return_elements=names,
            name="",
        )
        values.update(zip(names, imported, strict=True))
        return [values[name] for name in fetches]


class Variable:
    """A resource handle that destroys its variable when it is deleted."""

    def __init__(self, handle: tf.Tensor):
        self.handle = handle

    def __del__(self):
        # The garbage collector may call this while a graph is traced, and this
        # operation must not become a part of the graph. Or the interpreter ends, and
        # modules such as `contextlib` are gone.
        try:
            with eager_context.eager_mode(), tf.device(self.handle.device):
                tf.raw_ops.DestroyResourceOp(
                    resource=self.handle, ignore_lookup_error=True
                )
        except Exception:
            pass


def new_variable(node: Any, device: str) -> Variable:
    """Makes the variable of a NodeDef on a device, or on one that supports it."""
    device = gpus.variable_device(tf.as_dtype(node.attr["dtype"].type), device)
    with eager_context.eager_mode(), tf.device(device):
        return Variable(
            tf.raw_ops.VarHandleOp(
                dtype=tf.as_dtype(node.attr["dtype"].type),
                shape=tf.TensorShape(node.attr["shape"].shape),
                shared_name=graphs.ANONYMOUS,
            )
        )
