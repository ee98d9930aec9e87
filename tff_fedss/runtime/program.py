"""TFF's building blocks as Python functions over the runtime's values.

A compiled TFF computation is a small tree: blocks of calls to intrinsics and to
TensorFlow leaves. `build` converts it once to nested Python functions, which each round
calls.

Every node is a function (environment, device) -> value, where the environment maps the
names in scope to values. The value of a functional type is a function (argument,
device) -> value.
"""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context

from tff_fedss.runtime import intrinsics
from tff_fedss.runtime.tf_computation import TFComputation, content_key

Node = Callable[[Mapping[str, Any], Any], Any]


class Builder:
    """Builds programs; equal TensorFlow computations are one `TFComputation`."""

    def __init__(self):
        self._computations: weakref.WeakValueDictionary[str, TFComputation] = (
            weakref.WeakValueDictionary()
        )

    def build(self, block: tff.framework.ComputationBuildingBlock) -> Node:
        """Turns a building block, the root of a compiled computation, into a node.

        Raises:
            NotImplementedError: If this runtime does not support a building block or an
                intrinsic; the message names it.
        """
        if isinstance(block, tff.framework.Reference):
            name = block.name
            return lambda environment, device: environment[name]
        if isinstance(block, tff.framework.Selection):
            return self._selection(block)
        if isinstance(block, tff.framework.Struct):
            nodes = [self.build(e) for _, e in tff.structure.iter_elements(block)]
            return lambda environment, device: tuple(
                node(environment, device) for node in nodes
            )
        if isinstance(block, tff.framework.Call):
            return self._call(block)
        if isinstance(block, tff.framework.Block):
            return self._block(block)
        if isinstance(block, tff.framework.Lambda):
            return self._lambda(block)
        if isinstance(block, tff.framework.CompiledComputation):
            compiled = self._tf_computation(block)
            return lambda environment, device: compiled
        if isinstance(block, tff.framework.Intrinsic):
            intrinsic = intrinsics.find(block)
            return lambda environment, device: intrinsic
        if isinstance(block, tff.framework.Literal):
            with eager_context.eager_mode(), tf.device("/device:CPU:0"):
                constant = tf.constant(
                    block.value, tf.as_dtype(block.type_signature.dtype)
                )
            return lambda environment, device: constant
        if isinstance(block, tff.framework.Placement):
            literal = block.uri
            return lambda environment, device: literal
        raise NotImplementedError(
            f"The in-process runtime has no {type(block).__name__} building blocks: "
            f"{block.compact_representation()[:200]}"
        )

    def _tf_computation(
        self, block: tff.framework.CompiledComputation
    ) -> TFComputation:
        proto = block.proto
        if proto.WhichOneof("computation") != "tensorflow":
            raise NotImplementedError(
                "The in-process runtime runs TensorFlow computations only: found one "
                f"for {proto.WhichOneof('computation')}."
            )
        key = content_key(proto.tensorflow)
        found = self._computations.get(key)
        if found is None:
            found = self._computations[key] = TFComputation(proto.tensorflow)
        return found

    def _selection(self, block: tff.framework.Selection) -> Node:
        source = self.build(block.source)
        index = block.index
        if index is None:
            index = tff.structure.name_to_index_map(block.source.type_signature)[
                block.name
            ]
        if isinstance(block.source.type_signature, tff.FederatedType):
            raise NotImplementedError(
                "The in-process runtime selects from structs, not from federated "
                f"values: {block.compact_representation()[:200]}"
            )
        return lambda environment, device: source(environment, device)[index]

    def _call(self, block: tff.framework.Call) -> Node:
        function = self.build(block.function)
        if block.argument is None:
            return lambda environment, device: function(environment, device)(
                None, device
            )
        argument = self.build(block.argument)
        return lambda environment, device: function(environment, device)(
            argument(environment, device), device
        )

    def _lambda(self, block: tff.framework.Lambda) -> Node:
        body, parameter = self.build(block.result), block.parameter_name

        def close_over(environment):
            def function(argument, device):
                inner = dict(environment)
                if parameter is not None:
                    inner[parameter] = argument
                return body(inner, device)

            return function

        if _free_names(block):
            return lambda environment, device: close_over(environment)
        function = close_over({})
        function.is_closed = True
        return lambda environment, device: function

    def _block(self, block: tff.framework.Block) -> Node:
        nodes = [(name, self.build(value)) for name, value in block.locals]
        result = self.build(block.result)
        # A value is released after its last use, since the values of all clients of a
        # round may be large. `dying[i]` lists the names that no step after i reads.
        last_use: dict[str, int] = {}
        for step, (name, value) in enumerate(block.locals):
            last_use[name] = step
            for used in names_in(value):
                if used in last_use:
                    last_use[used] = step
        for used in names_in(block.result):
            last_use.pop(used, None)
        dying: list[list[str]] = [[] for _ in nodes]
        redefined = len({name for name, _ in nodes}) < len(nodes)
        if not redefined:
            for name, step in last_use.items():
                dying[step].append(name)

        def run(environment, device):
            environment = dict(environment)
            for (name, node), names in zip(nodes, dying, strict=False):
                environment[name] = node(environment, device)
                for dead in names:
                    del environment[dead]
            return result(environment, device)

        return run


def names_in(block: tff.framework.ComputationBuildingBlock) -> set[str]:
    """Returns all names that a building block refers to."""
    names = set()

    def visit(part):
        if isinstance(part, tff.framework.Reference):
            names.add(part.name)
        return part, False

    tff.framework.transform_postorder(block, visit)
    return names


def _free_names(block: tff.framework.Lambda) -> set[str]:
    """Returns the names that a function takes from outside; each is bound once."""
    bound = {block.parameter_name}

    def visit(part):
        if isinstance(part, tff.framework.Block):
            bound.update(name for name, _ in part.locals)
        elif isinstance(part, tff.framework.Lambda):
            bound.add(part.parameter_name)
        return part, False

    tff.framework.transform_postorder(block.result, visit)
    return names_in(block.result) - bound
