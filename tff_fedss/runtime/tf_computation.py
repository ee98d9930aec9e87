"""TensorFlow computations of a TFF program as functions of this process.

TFF stores each TensorFlow computation as a GraphDef for a separate session. Here it
becomes a function of TensorFlow's eager runtime, which all computations and all
concurrent clients share. What sessions isolate must be isolated here:

- The functions of its library get unique names.
- Its variables become arguments. Each concurrent call borrows its own set, and
  initializes it like TFF's sessions: by the initialize_op, first of all.
- Tables, queues and other resources get unique names, in a copy of the graph that a
  call borrows. They are destroyed after the call.
- State of kernels, such as the position of a seeded random operation, is reset: a graph
  with such an operation is copied for each call. This costs as much as the first call;
  `tf.random.stateless_uniform` and others do not need it.

`resources` knows these operations, and refuses unsupported ones.
"""

import hashlib
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context as eager_context

from tff_fedss.runtime import compiler, graphs, resources
from tff_fedss.runtime.graph_copy import GraphCopy, Variable, new_variable
from tff_fedss.runtime.values import SequenceValue, flatten
from tff_fedss.tensors import without_dict

_CPU = "/device:CPU:0"


# In graphs with these operations, tf.vectorized_map silently gives wrong results.
_NOT_VECTORIZABLE = frozenset(
    {"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"}
)


class NotTraceableError(Exception):
    """A computation with state cannot become a part of another's graph.

    One with branches or loops cannot become a part of a vectorized map.
    """


class Tracing:
    """A placeholder for the device of a computation that becomes a part of a graph."""

    @staticmethod
    def put(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns the tensors, which already are in the graph."""
        return tensors


TRACING = Tracing()
VECTORIZING = Tracing()


class TFComputation:
    """A TensorFlow computation of a TFF program, callable on any device.

    Attributes:
        is_closed: Whether it depends on its argument only.
        is_stateless: Whether it may be called inside another function, since its graph
            keeps no state of a call.
        trains_on_host: Whether it computes gradients in a function of tf.data, which
            TensorFlow runs on the CPU wherever the computation is.
    """

    is_closed = True

    def __init__(self, tensorflow_proto: Any):
        key = content_key(tensorflow_proto)
        self._feeds = (
            _tensor_names(tensorflow_proto.parameter)
            if tensorflow_proto.HasField("parameter")
            else []
        )
        fetches = _tensor_names(tensorflow_proto.result)
        graph_def = compiler.optimize(
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
        prototypes = [new_variable(node, _CPU) for node in plan.variables]
        if plan.is_for_one_call:
            logging.warning(
                "A computation has operations with state, such as seeded random "
                "ones. It is prepared for each call, which is slow."
            )

        def copy(suffix: str) -> GraphCopy:
            return GraphCopy(
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
        # The states that no call uses at the moment, for each device.
        self._pools: dict[str, list[_CallState]] = {}
        if plan.is_shared:
            self._copy = copy(f"_{key}") if fetches else None
            self._new_copy = lambda: self._copy
        else:
            self._copy = None
            self._new_copy = lambda: copy(f"_{key}_{next(_copy_numbers)}")

    def __call__(self, arg: Any, device: Any) -> Any:
        """Runs on nested tuples of tensors and `SequenceValue`s, or None.

        The device has a `name`, a method `put` that copies tensors to it, and
        `note_training_on_host`, which is called if that happens.
        """
        if not self._has_results:
            return _unflatten(self._result, iter(()), None)
        flat = [] if arg is None or not self._feeds else flatten(arg)
        owners = [value for value in flat if isinstance(value, SequenceValue)] or None
        inputs = device.put(
            [v.variant if isinstance(v, SequenceValue) else v for v in flat]
        )
        if isinstance(device, Tracing):
            is_vectorizable = self._is_vectorizable or device is not VECTORIZING
            if not (self.is_stateless and is_vectorizable):
                raise NotTraceableError()
            return _unflatten(self._result, iter(self._copy.run(*inputs)), owners)
        if self.trains_on_host:
            device.note_training_on_host()
        with compiler.not_again(device.name):
            return self._run(inputs, owners, device)

    def _run(
        self,
        inputs: Sequence[tf.Tensor],
        owners: Sequence[SequenceValue] | None,
        device: Any,
    ) -> Any:
        if self.is_stateless:
            with tf.device(device.name):
                outputs = without_dict(self._copy.run(*inputs))
            if self._gives_sequences:
                owners = (self._copy, owners)
            return _unflatten(self._result, iter(outputs), owners)
        state, lease = self._borrow(device.name)
        with tf.device(device.name):
            outputs = state.call(inputs)
        if self._gives_sequences:
            # The elements are made on request. The state that makes them must then
            # still exist, and not be used by another call.
            owners = (lease, owners)
        else:
            state.clear()
            lease.end()
        return _unflatten(self._result, iter(outputs), owners)

    def _borrow(self, device: str) -> tuple["_CallState", "_Lease"]:
        """Returns a state that no other call uses, and its lease."""
        # No lock: `pop` and `append` are atomic, and the garbage collector, which may
        # return a state at any time, could deadlock on a lock.
        pool = self._pools.setdefault(device, [])
        try:
            state = pool.pop()
        except IndexError:
            variables = [new_variable(node, device) for node in self._plan.variables]
            state = _CallState(self._new_copy(), variables)
        return state, _Lease(state, [] if self._plan.is_for_one_call else pool)


def content_key(tensorflow_proto: Any) -> str:
    """Returns a name for the content of a TensorFlow computation."""
    types = (tensorflow_proto.parameter, tensorflow_proto.result)
    parts = [
        tensorflow_proto.graph_def.value,
        *(part.SerializeToString(deterministic=True) for part in types),
        tensorflow_proto.initialize_op.encode(),
    ]
    return hashlib.blake2b(b"|".join(parts), digest_size=12).hexdigest()


# Makes the names of all copies of graphs, in all contexts, unique.
_copy_numbers = itertools.count()


class _CallState:
    """The state of a single call: variables, and a copy of the graph."""

    def __init__(self, copy: GraphCopy, variables: Sequence["Variable"]):
        self._copy = copy
        self._variables = variables
        self._handles = [variable.handle for variable in variables]
        self._device = ""  # The device of the resources to be destroyed; "": none.

    def call(self, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Initializes the graph and runs it, on the current device."""
        self.clear()
        if self._copy.destroy is not None:
            self._device = eager_context.context().device_name
        if self._copy.initialize is not None:
            without_dict(self._copy.initialize(*self._handles, *inputs))
        return without_dict(self._copy.run(*self._handles, *inputs))

    def clear(self) -> None:
        """Destroys the graph's remaining resources."""
        if self._device:
            with eager_context.eager_mode(), tf.device(self._device):
                without_dict(self._copy.destroy())
            self._device = ""

    def __del__(self):
        try:  # noqa: SIM105 - as in `Variable`
            self.clear()
        except Exception:
            pass


class _Lease:
    """A lease of a state, until it ends or is deleted.

    Attributes:
        end: Returns the state to the pool; a no-argument function.
    """

    def __init__(self, state: _CallState, pool: list[_CallState]):
        # Not in `__del__`: the garbage collector would also call it for the state and
        # its functions, which then are unusable.
        self.end = weakref.finalize(self, pool.append, state)
        self.end.atexit = False


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
