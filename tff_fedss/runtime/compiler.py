"""TFF's compiler as this project's runtimes use it: without what they have no need of.

`tff.backends.native.desugar_and_transform_to_native` does the same and has Grappler
look at each TensorFlow computation besides, importing its graph into Python for that.
Here a `TFComputation` does so itself (`grappler`).
"""

import collections
import threading
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

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
