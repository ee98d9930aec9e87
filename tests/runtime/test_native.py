"""No worker survives the program that started it, however that ends."""

import os
import signal

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import waiting
from tests.runtime.test_in_process import started
from tff_fedss import runtime
from tff_fedss.runtime import native

PRELUDE = """
import sys
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tff_fedss import runtime

context = runtime.set_native_context()

@tff.tensorflow.computation(np.int32)
def add_one(x):
    return x + 1

@tff.tensorflow.computation(np.int64)
def count_to(n):
    with tf.control_dependencies([tf.io.write_file(sys.argv[1], "")]):
        start = tf.constant(0, tf.int64)
    return tf.while_loop(lambda i: i < n, lambda i: (i + 1,), (start,))[0]

assert add_one(1) == 2
print("ready", flush=True)
"""
FOREVER = "count_to(10**15)\n"


def wait_until_ready(process):
    assert process.stdout.readline() == "ready\n", process.stderr.read()


def worker_of(process):
    (worker,) = (
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if os.path.basename(child.exe()) == "worker_binary"
    )
    return worker


def assert_gone(worker):
    waiting.wait_until(lambda: not waiting.is_alive(worker))


def test_worker_ends_with_the_program():
    with started(PRELUDE + "sys.stdin.readline()\n", os.devnull) as process:
        wait_until_ready(process)
        worker = worker_of(process)
        # Returns when no process holds the program's output: TFF's own worker would
        # keep a pipe open for ever.
        process.communicate("end\n", timeout=waiting.LIMIT)
        assert process.returncode == 0
        assert_gone(worker)


def test_worker_ends_with_a_program_that_is_killed_in_a_computation(tmp_path):
    begun = tmp_path / "begun"
    with started(PRELUDE + FOREVER, str(begun)) as process:
        wait_until_ready(process)
        worker = worker_of(process)
        waiting.wait_until(begun.exists, process)  # In the endless computation.
        process.kill()
        process.communicate(timeout=waiting.LIMIT)
        assert process.returncode == -signal.SIGKILL
        assert_gone(worker)


@tff.tensorflow.computation(np.int32)
def double(x):
    check = tf.debugging.Assert(x >= 0, ["below zero"])
    with tf.control_dependencies([check]):
        return 2 * x


def kill(context):
    worker = context._worker._process
    if worker is not None:
        worker.kill()
        worker.wait()


def test_a_worker_outlives_errors_is_replaced_and_ends_with_its_context(caplog):
    context = runtime.NativeContext()
    with tff.framework.get_context_stack().install(context):
        with pytest.raises(runtime.ComputationError, match="below zero"):
            double(-1)
        assert double(21) == 42 and not caplog.messages
        kill(context)
        assert double(21) == 42
    (warning,) = caplog.messages
    assert "killed by signal 9 (out of memory?). Repeating" in warning
    worker = context._worker._process
    context.close()
    assert worker.poll() == -signal.SIGKILL
    with (
        tff.framework.get_context_stack().install(context),
        pytest.raises(runtime.WorkerError, match="The context is closed"),
    ):
        double(21)


def test_a_worker_that_dies_again_and_again_is_an_error(monkeypatch, caplog):
    context = runtime.NativeContext()
    start = native._Worker._start

    def start_and_kill(self):
        start(self)
        kill(context)

    monkeypatch.setattr(native._Worker, "_start", start_and_kill)
    installed = tff.framework.get_context_stack().install(context)
    with installed, pytest.raises(runtime.WorkerError, match="killed by signal 9"):
        double(21)
    assert caplog.text.count("Repeating this computation") == 2
    context.close()
