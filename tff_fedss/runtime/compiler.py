"""TFF's compiler as this project's runtimes use it: without what they have no need of.

`tff.backends.native.desugar_and_transform_to_native` does the same and has Grappler
look at each TensorFlow computation besides, importing its graph into Python for that.
Here a `TFComputation` does so itself (`grappler`).
"""

import tensorflow_federated as tff


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
