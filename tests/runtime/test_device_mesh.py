import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

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


_COLLECTIVES = """
import numpy as np
import tensorflow as tf
from tff_fedss import runtime

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
try:
    runtime.local_mesh(9)
except ValueError as error:
    print(error)
"""


def test_collectives_between_logical_devices():
    outcome = subprocess.run(
        [sys.executable, "-c", _COLLECTIVES], capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr
    if not tf.config.list_physical_devices("GPU"):
        assert "num_devices=9: TensorFlow runs in this process" in outcome.stdout
