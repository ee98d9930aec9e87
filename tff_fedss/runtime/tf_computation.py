"""TensorFlow computations of a TFF program as functions of this process.

TFF stores each TensorFlow computation as a GraphDef that was made for a session of its
own. Here it becomes a function of TensorFlow's eager runtime, which all computations
and all concurrent clients share. What a session kept apart must be kept apart here:

- The functions of its library get names that no other graph has.
- Its variables become arguments. Each concurrent call borrows a set of its own, and
  initializes it as TFF's sessions do: by the initialize_op, before anything else.
- Tables, queues and other resources get names that no concurrent call uses, in a copy
  of the graph that a call borrows, too. They are destroyed after the call.
- What kernels keep, such as how far a seeded random operation has got, starts again: a
  graph with such an operation is copied for each call. That costs as much as the first
  call does; `tf.random.stateless_uniform` and the like need no such care.

`resources` says which operations these are, and refuses those that cannot be had.
"""

import hashlib
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import handle_data_util

from tff_fedss.runtime import gpus, graphs, grappler, resources
from tff_fedss.runtime.values import SequenceValue, flatten

_CPU = "/device:CPU:0"


# In graphs with these operations, tf.vectorized_map computes something else, silently.
_NOT_VECTORIZABLE = frozenset(
    {"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"}
)


class NotTraceableError(Exception):
    """A computation that keeps something cannot become a part of another's graph."""


class NotVectorizableError(Exception):
    """A computation with branches or loops cannot become a part of a vectorized map."""


class Tracing:
    """Stands for the device of a computation that becomes a part of a graph."""

    name = None

    @staticmethod
    def put(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns the tensors: they are in the graph already."""
        return tensors


TRACING = Tracing()
VECTORIZING = Tracing()


class TFComputation:
    """A TensorFlow computation of a TFF program, callable on any device.

    Attributes:
        is_closed: It depends on nothing but its argument.
        is_stateless: Whether it may be called inside of another function: its graph
            keeps nothing that a call would have to have for itself.
        reads_sequences: Whether it reads a sequence of its argument.
        trains_on_host: Whether it computes gradients in a function of tf.data, which
            TensorFlow runs on the CPU wherever the computation is.
    """

    is_closed = True

    def __init__(self, tensorflow_proto: Any):
        """Imports the graph.

        Args:
            tensorflow_proto: The `tensorflow` field of a TFF computation's proto.

        Raises:
            NotImplementedError: If the graph has an operation whose resource calls
                would share. The message names it.
        """
        key = content_key(tensorflow_proto)
        self._feeds = (
            _tensor_names(tensorflow_proto.parameter)
            if tensorflow_proto.HasField("parameter")
            else []
        )
        fetches = _tensor_names(tensorflow_proto.result)
        graph_def = grappler.optimize(
            tf.compat.v1.GraphDef.FromString(tensorflow_proto.graph_def.value),
            self._feeds,
            fetches,
            tensorflow_proto.initialize_op,
        )
        self._result = tensorflow_proto.result
        self._gives_sequences = _has_sequences(self._result)
        init_op = tensorflow_proto.initialize_op
        token = tensorflow_proto.session_token_tensor_name
        roots = {graphs.node_name(t) for t in fetches} | ({init_op} - {""})
        nodes = {node.name: node for node in graph_def.node}
        specs = [_spec_of(nodes[graphs.node_name(name)]) for name in self._feeds]
        plan = resources.plan(graphs.sub_graph(graph_def, roots), init_op)
        self._plan = plan
        self._is_vectorizable = not plan.makes_resources and not any(
            node.op in _NOT_VECTORIZABLE
            for part in (
                plan.graph_def.node,
                *(f.node_def for f in plan.graph_def.library.function),
            )
            for node in part
        )
        feeds = [f"{node.name}:0" for node in plan.variables] + self._feeds
        specs = [tf.TensorSpec([], tf.resource) for _ in plan.variables] + specs
        prototypes = [_new_variable(node, _CPU) for node in plan.variables]
        if plan.is_for_one_call:
            logging.warning(
                "A computation has operations that keep something, such as seeded "
                "random ones. It is prepared for each call, which takes its time."
            )

        def copy(suffix: str) -> _GraphCopy:
            return _GraphCopy(
                plan, suffix, feeds, specs, token, prototypes, fetches, init_op
            )

        reached = {node.name for node in plan.graph_def.node}
        self.reads_sequences = any(
            graphs.node_name(name) in reached and spec.dtype == tf.variant
            for name, spec in zip(self._feeds, specs[-len(self._feeds) :], strict=False)
        )
        self.trains_on_host = graphs.has_gradients_in_data_sets(plan.graph_def)
        self._has_results = bool(fetches)
        self.is_stateless = not init_op and not plan.variables and plan.is_shared
        # What no call has at the moment, for each device.
        self._pools: dict[str, list[_CallState]] = {}
        if plan.is_shared:
            self._copy = copy(f"_{key}") if fetches else None
            self._new_copy = lambda: self._copy
        else:
            self._copy = None
            self._new_copy = lambda: copy(f"_{key}_{next(_copy_numbers)}")

    def __call__(self, arg: Any, device: Any) -> Any:
        """Runs the computation.

        Args:
            arg: Nested tuples of tensors and `SequenceValue`s, or None.
            device: Where to run: has a `name`, a method `put` that copies tensors to
                it, and `note_training_on_host`, which is called if it does so.

        Returns:
            The result, as nested tuples.
        """
        if not self._has_results:
            return _unflatten(self._result, iter(()), None)
        flat = [] if arg is None or not self._feeds else flatten(arg)
        owners = [value for value in flat if isinstance(value, SequenceValue)] or None
        inputs = device.put(
            [v.variant if isinstance(v, SequenceValue) else v for v in flat]
        )
        if isinstance(device, Tracing):
            if not self.is_stateless:
                raise NotTraceableError()
            if device is VECTORIZING and not self._is_vectorizable:
                raise NotVectorizableError()
            return _unflatten(self._result, iter(self._copy.run(*inputs)), owners)
        if self.trains_on_host:
            device.note_training_on_host()
        with grappler.not_again(device.name):
            return self._run(inputs, owners, device)

    def _run(
        self,
        inputs: Sequence[tf.Tensor],
        owners: Sequence[SequenceValue] | None,
        device: Any,
    ) -> Any:
        if self.is_stateless:
            with tf.device(device.name):
                outputs = self._copy.run(*inputs)
            if self._gives_sequences:
                owners = (self._copy, owners)
            return _unflatten(self._result, iter(outputs), owners)
        state, lease = self._borrow(device.name)
        with tf.device(device.name):
            outputs = state.call(inputs)
        if self._gives_sequences:
            # The elements are made when they are asked for. What they are made with
            # must be there still, and nobody else's.
            owners = (lease, owners)
        else:
            state.clear()
            lease.end()
        return _unflatten(self._result, iter(outputs), owners)

    def _borrow(self, device: str) -> tuple["_CallState", "_Lease"]:
        """Returns what no other call has, and the lease of it."""
        # Taking something out and putting it back are atomic without a lock, which the
        # garbage collector, who may put something back at any time, could not wait for.
        pool = self._pools.setdefault(device, [])
        try:
            state = pool.pop()
        except IndexError:
            variables = [_new_variable(node, device) for node in self._plan.variables]
            state = _CallState(self._new_copy(), variables)
        return state, _Lease(state, [] if self._plan.is_for_one_call else pool)


def content_key(tensorflow_proto: Any) -> str:
    """Returns a name for the content of a TensorFlow computation."""
    key = hashlib.blake2b(digest_size=12)
    key.update(tensorflow_proto.graph_def.value)
    for part in (tensorflow_proto.parameter, tensorflow_proto.result):
        key.update(b"|" + part.SerializeToString(deterministic=True))
    key.update(b"|" + tensorflow_proto.initialize_op.encode())
    return key.hexdigest()


# So that no two copies of graphs, of whatever context, have the same names.
_copy_numbers = itertools.count()
_copying = threading.Lock()


class _GraphCopy:
    """A graph among TensorFlow's functions, under names of its own.

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
        prototypes: Sequence["_Variable"],
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

        # The caller may be a client at work on some device.
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


class _CallState:
    """What a call must have for itself: variables, and a copy of the graph."""

    def __init__(self, copy: _GraphCopy, variables: Sequence["_Variable"]):
        self._copy = copy
        self._variables = variables
        self._handles = [variable.handle for variable in variables]
        self._device = ""  # Of the resources that are to be destroyed.

    def call(self, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Initializes the graph and runs it, on the current device."""
        self.clear()
        if self._copy.destroy is not None:
            self._device = eager_context.context().device_name
        if self._copy.initialize is not None:
            self._copy.initialize(*self._handles, *inputs)
        return self._copy.run(*self._handles, *inputs)

    def clear(self) -> None:
        """Destroys the graph's own resources, if there are any left."""
        if self._device:
            with eager_context.eager_mode(), tf.device(self._device):
                self._copy.destroy()
            self._device = ""

    def __del__(self):
        try:  # noqa: SIM105 - as in `_Variable`
            self.clear()
        except Exception:
            pass


class _Lease:
    """Holds state until it ends, or until nobody holds it any more.

    Attributes:
        end: Puts the state into the pool; a no-argument function.
    """

    def __init__(self, state: _CallState, pool: list[_CallState]):
        # Not in `__del__`: when the garbage collector calls that, it does so for the
        # state and their functions as well, which then are of no use.
        self.end = weakref.finalize(self, pool.append, state)
        self.end.atexit = False


class _Importer:
    """Puts a graph, or a part of it, into the graph that is being built."""

    def __init__(
        self,
        graph_def: tf.compat.v1.GraphDef,
        feeds: Sequence[str],
        token: str,
        prototypes: Sequence["_Variable"],
    ):
        self._graph_def = graph_def
        self._feeds = feeds
        self._token = token
        self._prototypes = prototypes

    def __call__(
        self, args: Sequence[tf.Tensor], fetches: Sequence[str]
    ) -> list[tf.Tensor | tf.Operation]:
        for arg, prototype in zip(args, self._prototypes, strict=False):
            # Without the variable's shape the optimizer would know no shape at all.
            handle_data_util.copy_handle_data(prototype.handle, arg)
        values = dict(zip(self._feeds, args, strict=True))
        if self._token:  # Only deprecated operations read it.
            values[self._token] = tf.constant("")
        part = graphs.sub_graph(
            self._graph_def, {graphs.node_name(name) for name in fetches}
        )
        fed = {graphs.node_name(name) for name in values}
        kept = [node for node in part.node if node.name not in fed]
        for node in kept:  # An argument is there already: nothing has to wait for it.
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


class _Variable:
    """A resource handle that destroys its variable when it goes."""

    def __init__(self, handle: tf.Tensor):
        self.handle = handle

    def __del__(self):
        # The garbage collector may call this in the middle of the tracing of a graph,
        # which this operation must not become a part of. Or the interpreter ends, and
        # modules are gone: `contextlib` would be, too.
        try:
            with eager_context.eager_mode(), tf.device(self.handle.device):
                tf.raw_ops.DestroyResourceOp(
                    resource=self.handle, ignore_lookup_error=True
                )
        except Exception:
            pass


def _new_variable(node: Any, device: str) -> _Variable:
    device = gpus.variable_device(tf.as_dtype(node.attr["dtype"].type), device)
    with eager_context.eager_mode(), tf.device(device):
        return _Variable(
            tf.raw_ops.VarHandleOp(
                dtype=tf.as_dtype(node.attr["dtype"].type),
                shape=tf.TensorShape(node.attr["shape"].shape),
                shared_name=graphs.ANONYMOUS,
            )
        )


def _spec_of(placeholder: Any) -> tf.TensorSpec:
    attributes = placeholder.attr
    shape = tf.TensorShape(attributes["shape"].shape if "shape" in attributes else None)
    return tf.TensorSpec(shape, tf.as_dtype(attributes["dtype"].type))


def _tensor_names(binding: Any) -> list[str]:
    """Returns the names of the tensors of a TFF binding, in order."""
    kind = binding.WhichOneof("binding")
    if kind == "tensor":
        return [binding.tensor.tensor_name]
    if kind == "sequence":
        if binding.sequence.WhichOneof("binding") != "variant_tensor_name":
            raise NotImplementedError(
                "The in-process runtime passes sequences as variant tensors only."
            )
        return [binding.sequence.variant_tensor_name]
    if kind == "struct":
        return [n for part in binding.struct.element for n in _tensor_names(part)]
    return []


def _unflatten(binding: Any, tensors: Iterator[tf.Tensor], owners: Any) -> Any:
    kind = binding.WhichOneof("binding")
    if kind == "tensor":
        return next(tensors)
    if kind == "sequence":
        return SequenceValue(next(tensors), owners)
    return tuple(_unflatten(part, tensors, owners) for part in binding.struct.element)


def _has_sequences(binding: Any) -> bool:
    kind = binding.WhichOneof("binding")
    if kind == "struct":
        return any(map(_has_sequences, binding.struct.element))
    return kind == "sequence"
