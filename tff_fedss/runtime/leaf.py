"""TensorFlow computations as functions of this process: the leaves of a TFF program.

TFF stores each TensorFlow computation as a GraphDef that was made for a session of its
own. Here it becomes a function of TensorFlow's eager runtime, which all computations
and all concurrent clients share. What a session kept apart must be kept apart anew:

- The functions of its library get names that no other graph has.
- Its variables become arguments. Each concurrent call borrows a set of its own, and
  initializes it as TFF's sessions do: by the initialize_op, before anything else.
- Tables, iterators and other shared resources get names of this graph only.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import handle_data_util

# A VarHandleOp with this shared name makes a new variable at each execution.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_CPU = "/device:CPU:0"


# In graphs with these operations, tf.vectorized_map computes something else, silently.
_NOT_VECTORIZABLE = frozenset(
    {"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"}
)


class NotTraceableError(Exception):
    """A computation with variables cannot become a part of another one's graph."""


class NotVectorizableError(Exception):
    """A computation with branches or loops cannot become a part of a vectorized map."""


class _Tracing:
    """The place of a computation that becomes a part of a graph."""

    device = None

    @staticmethod
    def bring(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        return tensors


TRACING = _Tracing()
VECTORIZING = _Tracing()


class SequenceValue:
    """A `tf.data.Dataset` that crosses a function's border.

    Attributes:
        variant: The dataset as a scalar variant tensor on the CPU.
        owners: What must live as long as the variant, such as the Python functions that
            a dataset calls.
    """

    __slots__ = ("owners", "variant")

    def __init__(self, variant: tf.Tensor, owners: Any = None):
        self.variant = variant
        self.owners = owners


def flatten(value: Any) -> list[Any]:
    """Returns the tensors and sequences of nested tuples, in order."""
    if not isinstance(value, tuple):
        return [value]
    flat: list[Any] = []
    _extend(flat, value)
    return flat


def _extend(flat: list[Any], value: tuple[Any, ...]) -> None:
    for element in value:
        if isinstance(element, tuple):
            _extend(flat, element)
        else:
            flat.append(element)


class Leaf:
    """A TensorFlow computation of a TFF program, callable on any device.

    Attributes:
        is_closed: It depends on nothing but its argument.
    """

    is_closed = True

    def __init__(self, tensorflow_proto: Any):
        """Imports the graph.

        Args:
            tensorflow_proto: The `tensorflow` field of a TFF computation's proto.
        """
        suffix = "_" + content_key(tensorflow_proto)
        graph_def = tf.compat.v1.GraphDef.FromString(tensorflow_proto.graph_def.value)
        _make_names_unique(graph_def, suffix)
        self._feeds = (
            _tensor_names(tensorflow_proto.parameter)
            if tensorflow_proto.HasField("parameter")
            else []
        )
        self._fetches = _tensor_names(tensorflow_proto.result)
        self._result = tensorflow_proto.result
        init_op = tensorflow_proto.initialize_op
        token = tensorflow_proto.session_token_tensor_name
        roots = {_node_name(t) for t in self._fetches} | ({init_op} - {""})
        nodes = {node.name: node for node in graph_def.node}
        specs = [_spec_of(nodes[_node_name(name)]) for name in self._feeds]
        graph_def = _sub_graph(graph_def, roots)
        functions = graph_def.library.function
        self._is_vectorizable = not any(
            node.op in _NOT_VECTORIZABLE
            for part in (graph_def.node, *(f.node_def for f in functions))
            for node in part
        )
        self._variables = [node for node in graph_def.node if node.op == "VarHandleOp"]
        feeds = [f"{node.name}:0" for node in self._variables] + self._feeds
        specs = [tf.TensorSpec([], tf.resource) for _ in self._variables] + specs
        prototypes = [_new_variable(node, _CPU) for node in self._variables]
        importer = _Importer(graph_def, feeds, token, prototypes)
        self._run = (
            _as_function(lambda *args: importer(args, self._fetches), specs)
            if self._fetches
            else None
        )
        self._initialize = None
        if init_op:

            def initialize(*args):
                (op,) = importer(args, [init_op])
                with tf.control_dependencies([op]):
                    return [tf.constant(0)]

            self._initialize = _as_function(initialize, specs)
        self._lock = threading.Lock()
        self._pools: dict[str, list[list[_Variable]]] = {}

    @property
    def is_stateless(self) -> bool:
        """Whether it may be called inside of another function."""
        return self._initialize is None and not self._variables

    def __call__(self, arg: Any, place: Any) -> Any:
        """Runs the computation.

        Args:
            arg: Nested tuples of tensors and `SequenceValue`s, or None.
            place: Where to run: has a `device` and a method `bring` that brings tensors
                to it.

        Returns:
            The result, likewise.
        """
        if self._run is None:
            return _unflatten(self._result, iter(()), None)
        flat = [] if arg is None or not self._feeds else flatten(arg)
        owners = [value for value in flat if isinstance(value, SequenceValue)] or None
        inputs = place.bring(
            [v.variant if isinstance(v, SequenceValue) else v for v in flat]
        )
        if isinstance(place, _Tracing):
            if not self.is_stateless:
                raise NotTraceableError()
            if place is VECTORIZING and not self._is_vectorizable:
                raise NotVectorizableError()
            return _unflatten(self._result, iter(self._run(*inputs)), owners)
        with tf.device(place.device):
            outputs = self._call(inputs, place.device)
        return _unflatten(self._result, iter(outputs), owners)

    def _call(self, inputs: Sequence[tf.Tensor], device: str) -> Sequence[tf.Tensor]:
        if self.is_stateless:
            return self._run(*inputs)
        with self._borrow_variables(device) as handles:
            if self._initialize is not None:
                self._initialize(*handles, *inputs)
            return self._run(*handles, *inputs)

    @contextlib.contextmanager
    def _borrow_variables(self, device: str) -> Iterator[list[tf.Tensor]]:
        """Lends a set of variables that no concurrent call has."""
        with self._lock:
            pool = self._pools.setdefault(device, [])
            variables = pool.pop() if pool else None
        if variables is None:
            variables = [_new_variable(node, device) for node in self._variables]
        try:
            yield [variable.handle for variable in variables]
        finally:
            with self._lock:
                pool.append(variables)


def content_key(tensorflow_proto: Any) -> str:
    """Returns a name for the content of a TensorFlow computation."""
    key = hashlib.blake2b(digest_size=12)
    key.update(tensorflow_proto.graph_def.value)
    for part in (tensorflow_proto.parameter, tensorflow_proto.result):
        key.update(b"|" + part.SerializeToString(deterministic=True))
    key.update(b"|" + tensorflow_proto.initialize_op.encode())
    return key.hexdigest()


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
        part = _sub_graph(self._graph_def, {_node_name(name) for name in fetches})
        fed = {_node_name(name) for name in values}
        kept = [node for node in part.node if node.name not in fed]
        for node in kept:  # An argument is there already: nothing has to wait for it.
            inputs = [i for i in node.input if not (i[0] == "^" and i[1:] in fed)]
            if len(inputs) < len(node.input):
                node.input[:] = inputs
        used = {name for node in kept for name in map(_tensor_name, node.input)}
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


def _as_function(
    body: Callable[..., list[tf.Tensor]], specs: Sequence[tf.TensorSpec]
) -> Callable[..., list[tf.Tensor]]:
    return tf.compat.v1.wrap_function(body, specs)


class _Variable:
    """A resource handle that destroys its variable when it goes."""

    def __init__(self, handle: tf.Tensor):
        self.handle = handle

    def __del__(self):
        # The garbage collector may call this in the middle of the tracing of a graph,
        # which this operation must not become a part of, or when the interpreter ends.
        with (
            contextlib.suppress(Exception),
            eager_context.eager_mode(),
            tf.device(self.handle.device),
        ):
            tf.raw_ops.DestroyResourceOp(resource=self.handle, ignore_lookup_error=True)


def _new_variable(node: Any, device: str) -> _Variable:
    with eager_context.eager_mode(), tf.device(device):
        return _Variable(
            tf.raw_ops.VarHandleOp(
                dtype=tf.as_dtype(node.attr["dtype"].type),
                shape=tf.TensorShape(node.attr["shape"].shape),
                shared_name=_ANONYMOUS,
            )
        )


def _sub_graph(
    graph_def: tf.compat.v1.GraphDef, roots: set[str]
) -> tf.compat.v1.GraphDef:
    """Returns the part of a graph that its roots depend on."""
    nodes = {node.name: node for node in graph_def.node}
    reached, waiting = set(roots), list(roots)
    while waiting:
        for node_input in nodes[waiting.pop()].input:
            name = _node_name(node_input)
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return tf.compat.v1.GraphDef(
        node=[node for node in graph_def.node if node.name in reached],
        library=graph_def.library,
        versions=graph_def.versions,
    )


def _node_name(name: str) -> str:
    """Returns the node of a tensor's name, or of a node's input."""
    return name.lstrip("^").partition(":")[0]


def _tensor_name(node_input: str) -> str:
    """Returns the full name of the tensor that an input of a node names."""
    if ":" in node_input or node_input.startswith("^"):
        return node_input
    return node_input + ":0"


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


def _make_names_unique(graph_def: tf.compat.v1.GraphDef, suffix: str) -> None:
    """Renames what TensorFlow finds by name across graphs, in place."""
    functions = {function.signature.name for function in graph_def.library.function}

    def rename(name: str) -> str:
        return name + suffix if name in functions else name

    def visit_attributes(attributes: Any) -> None:
        for value in attributes.values():
            kind = value.WhichOneof("value")
            if kind == "func":
                visit_function(value.func)
            elif kind == "list":
                for function in value.list.func:
                    visit_function(function)
            elif kind == "s" and value.s.decode(errors="replace") in functions:
                value.s = rename(value.s.decode()).encode()

    def visit_function(function: Any) -> None:
        function.name = rename(function.name)
        visit_attributes(function.attr)

    def visit_node(node: Any) -> None:
        node.op = rename(node.op)
        # Colocation is advice, and the nodes that it names may be gone.
        node.attr.pop("_class", None)
        visit_attributes(node.attr)
        if "shared_name" in node.attr:
            name = node.attr["shared_name"].s.decode() or node.name
            is_variable = node.op == "VarHandleOp"
            name = _ANONYMOUS if is_variable else name + suffix
            node.attr["shared_name"].s = name.encode()

    for node in graph_def.node:
        visit_node(node)
    for function in graph_def.library.function:
        function.signature.name = rename(function.signature.name)
        visit_attributes(function.attr)
        for node in function.node_def:
            visit_node(node)
    for gradient in graph_def.library.gradient:
        gradient.function_name = rename(gradient.function_name)
        gradient.gradient_func = rename(gradient.gradient_func)
