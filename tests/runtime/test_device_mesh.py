import re

import numpy as np
import pytest
import tensorflow as tf

from tests import waiting
from tests.runtime.test_in_process import started
from tff_fedss import runtime


@pytest.mark.parametrize("total, parts", [(10, 4), (3, 5), (1623, 16), (0, 2)])
def test_parts_are_balanced(total, parts):
    bounds = runtime.balanced_bounds(total, parts)
    sizes = np.diff(bounds)
    assert bounds[0] == 0 and bounds[-1] == total and len(sizes) == parts
    assert sizes.max() - sizes.min() <= 1


def test_fewer_parts_keep_bounds_of_more_and_stay_balanced():
    for parts in (1, 2, 4, 8):
        bounds = runtime.balanced_bounds(1623, 16)[runtime.balanced_bounds(16, parts)]
        np.testing.assert_array_equal(bounds, runtime.balanced_bounds(1623, parts))


FOUR_DEVICES = """
    import ctypes
    import hashlib
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff
    from tff_fedss import runtime

    context = runtime.set_in_process_context()
    tf.debugging.set_log_device_placement(True)
    # The context has not looked for devices yet: what they are can still be decided.
    mesh = runtime.local_mesh(4)
    assert len(set(mesh.devices)) == len(mesh) == 4
    value = np.arange(22, dtype=np.float32).reshape(11, 2)

    @tf.function
    def collectives(value):
        parts = mesh.scatter(value)
        gathered = mesh.all_gather(parts)
        sums = mesh.all_reduce(tf.add, [tf.reduce_sum(part, 0) for part in parts])
        highest = mesh.all_reduce(tf.maximum, [tf.reduce_max(part) for part in parts])
        scattered = mesh.reduce_scatter([k * g for k, g in enumerate(gathered)])
        return parts, gathered, sums, highest, scattered

    for run in (collectives, collectives.python_function):
        parts, gathered, sums, highest, scattered = run(tf.constant(value))
        assert sorted(len(part) for part in parts) == [2, 3, 3, 3]
        np.testing.assert_array_equal(np.concatenate(parts), value)
        for k in range(4):
            np.testing.assert_array_equal(gathered[k], value)
            np.testing.assert_array_equal(sums[k], value.sum(0))
            assert highest[k] == 21
            np.testing.assert_array_equal(scattered[k], 6 * parts[k])
    for k, part in enumerate(parts):  # Those of the eager run.
        assert part.device == mesh.devices[k] or tf.DeviceSpec.from_string(
            part.device
        ).device_index == k, (part.device, mesh.devices)

    from tests.algorithms import toy  # It uses the devices.

    rng = np.random.default_rng(0)
    cohort = [toy.make_client(rng, 6 + k, [k, k + 1]) for k in range(10)]
    process = toy.build("fedss")

    def two_rounds(context):
        with tff.framework.get_context_stack().install(context):
            state = process.initialize()
            for _ in range(2):
                state, metrics = process.next(state, toy.to_tff(cohort))
        values = [*toy.weights_of(state), *metrics.values()]
        return hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()

    def say(text):
        # TensorFlow's log of placements goes to the same pipe, through a buffer of C.
        ctypes.CDLL(None).fflush(None)
        print(text, flush=True)

    try:
        runtime.local_mesh(9)
    except ValueError as error:
        say(error)
    say(two_rounds(runtime.InProcessContext(["CPU:0"])))
    two_of_four = runtime.InProcessContext(["CPU:3", "CPU:1"], 2)
    say(two_rounds(two_of_four))
    assert {name[-5:] for name in two_of_four.client_devices} == {"CPU:1", "CPU:3"}
    say("all devices:")
    say(two_rounds(context))
"""


def test_collectives_and_clients_on_logical_devices():
    """Rounds give the same bytes, on which devices their clients may be."""
    with started(FOUR_DEVICES) as process:
        output, errors = process.communicate(timeout=waiting.LIMIT)
    assert process.returncode == 0, errors
    if not tf.config.list_physical_devices("GPU"):
        assert "num_devices=9: TensorFlow runs in this process" in output
    digests = re.findall(r"^[0-9a-f]{64}$", output, re.MULTILINE)
    assert len(digests) == 3 and len(set(digests)) == 1
    # TensorFlow's own log of the training's operations, which only clients run.
    log = output.partition("all devices:")[2]
    trained = re.findall(r"MatMul\): /job.*/device:(CPU:\d)", log)
    assert set(trained) == {"CPU:0", "CPU:1", "CPU:2", "CPU:3"}
