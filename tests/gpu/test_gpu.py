"""Every algorithm on a GPU, held against the CPU: `./run.sh test -m gpu`.

Without a GPU those tests are skipped, and the same code runs once on the CPU. The first
start on a GPU newer than TensorFlow compiles its kernels, for a minute or two.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.gpu import small_runs
from tff_fedss import models, runtime

ALGORITHMS = (*small_runs.FEDERATED, *small_runs.CENTRAL)
FAST = ("fedss", "centralized")
# In units of the largest change of a weight. Float32 has seven digits, of which a
# training loses some, more from round to round.
LARGEST_DIFFERENCE = 1e-3
CPU, GPU = "CPU:0", "GPU:0"


@pytest.fixture(scope="module", autouse=True)
def float32():
    """Products in float32, without TF32; the memory of GPUs is taken as needed."""
    runtime.configure_gpus()


def largest_difference(a, b, start):
    """Returns the largest difference of a weight over the largest change of any."""
    change = max(np.abs(x - s).max(initial=0.0) for x, s in zip(a, start, strict=True))
    away = max(np.abs(x - y).max(initial=0.0) for x, y in zip(a, b, strict=True))
    return float(away / change)


@pytest.mark.gpu
def test_the_driver_and_the_libraries_are_there():
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap"]
    found = subprocess.run(
        [*command, "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    build = tf.sysconfig.get_build_info()
    print(found.stdout, build["cuda_version"], build["cudnn_version"])
    assert len(found.stdout.splitlines()) >= len(tf.config.list_physical_devices("GPU"))


def mobilenet_step():
    images = np.random.default_rng(0).integers(0, 256, (8, 96, 96, 3))
    images = images.astype(np.float32)
    model = models.FEATURE_EXTRACTORS["mobilenet_v3_small"](images.shape[1:], 64)

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    return gradient


@pytest.mark.gpu
def test_a_step_of_a_mobilenet_is_that_of_the_cpu():
    results = []
    for where in (CPU, GPU):
        with tf.device(f"/{where}"):
            # The constants of a function are where it is made: a new one for each.
            function = tf.function(mobilenet_step())
            results.append([np.asarray(x, np.float32) for x in function()])
    zeros = [np.zeros_like(x) for x in results[0]]
    assert largest_difference(*results, zeros) < LARGEST_DIFFERENCE


def train_and_compare(name, device, rounds):
    """Trains; the first round is that of the CPU, and all weights move."""
    ours = small_runs.train(name, device, rounds)
    theirs = small_runs.train(name, CPU, 1)
    difference = largest_difference(theirs[1], ours[1], theirs[0])
    assert difference < LARGEST_DIFFERENCE
    assert all(np.isfinite(w).all() for w in ours[-1])
    assert all((a != b).any() for a, b in zip(ours[0], ours[-1], strict=True))
    return difference


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_trains_as_on_the_cpu(name):
    train_and_compare(name, GPU, rounds=3)


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in FAST else pytest.mark.slow) for x in ALGORITHMS],
)
def test_the_same_on_the_cpu(name):
    assert train_and_compare(name, CPU, rounds=3) == 0.0


@pytest.mark.gpu
def test_deterministic_operations_give_the_same_bytes_on_a_gpu():
    # In a process of its own: it decides what all later computations are made of.
    code = (
        "from tff_fedss import runtime; runtime.configure_gpus(deterministic=True)\n"
        "import numpy as np; from tests.gpu import small_runs\n"
        "a, b = (small_runs.train('fedss', 'GPU:0', 3)[-1] for _ in range(2))\n"
        "assert all(map(np.array_equal, a, b))"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert outcome.returncode == 0, outcome.stderr
