"""No worker survives the program that started it, however that ends."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests import waiting

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


@contextlib.contextmanager
def start(program, started=os.devnull):
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", PRELUDE + program, started],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what runs in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()  # A failed test must not leave, or wait for, its program.
        process.communicate()


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
    waiting.wait_until(
        lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    )


@pytest.mark.parametrize(
    "last_words, exit_code",
    [
        ("", 0),
        pytest.param("raise ValueError('oh no')", 1, marks=pytest.mark.slow),
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow),
    ],
    ids=["normal end", "exception", "exit code"],
)
def test_worker_ends_with_the_program(last_words, exit_code):
    with start("sys.stdin.readline()\n" + last_words) as process:
        wait_until_ready(process)
        worker = worker_of(process)
        # Returns when nobody holds the program's output any more: TFF's own worker
        # would keep a pipe open for ever.
        process.communicate("go on\n", timeout=waiting.LIMIT)
        assert process.returncode == exit_code
        assert_gone(worker)


@pytest.mark.parametrize(
    "signal_number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        signal.SIGKILL,
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_worker_ends_with_a_program_that_is_stopped_in_a_computation(
    signal_number, tmp_path
):
    started = tmp_path / "started"
    with start(FOREVER, str(started)) as process:
        wait_until_ready(process)
        worker = worker_of(process)
        waiting.wait_until(started.exists, process)  # In the endless computation.
        process.send_signal(signal_number)
        process.communicate(timeout=waiting.LIMIT)
        assert process.returncode == -signal_number
        assert_gone(worker)


KILL = """
import contextlib
import psutil

def kill_workers():
    for worker in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # It may be gone by now.
            worker.kill()
            while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
                pass
"""


@pytest.fixture(scope="module")
def told():
    """What a program says, line by line, that fails, loses its worker and closes."""
    program = f"""{KILL}
@tff.tensorflow.computation(np.int32)
def fail(x):
    check = tf.debugging.Assert(x < 0, ["not", "below", "zero"])
    with tf.control_dependencies([check]):
        return tf.identity(x)

try:
    fail(1)
except Exception as error:
    print("fails:", "below" in str(error))
print("after an error:", add_one(41))
kill_workers()
print("after a kill:", add_one(41))
(worker,) = psutil.Process().children()
context.close()
print("runs after close:", worker.is_running())
"""
    with start(program) as process:
        wait_until_ready(process)
        output, errors = process.communicate(timeout=waiting.LIMIT)
    return [*output.splitlines(), *errors.splitlines()]


def test_an_error_in_a_computation_leaves_the_worker_usable(told):
    assert "fails: True" in told and "after an error: 42" in told, told


def test_a_worker_that_dies_is_replaced_and_its_work_done_again(told):
    assert "after a kill: 42" in told, told
    assert any("killed by signal 9 (out of memory?). Doing this" in x for x in told)


def test_close_ends_the_worker(told):
    assert "runs after close: False" in told, told


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_an_error():
    program = f"""{KILL}
import threading

def kill_for_ever():
    while True:
        kill_workers()

threading.Thread(target=kill_for_ever, daemon=True).start()
try:
    {FOREVER}
except runtime.WorkerError as error:
    print(error)
"""
    with start(program) as process:
        wait_until_ready(process)
        output, errors = process.communicate(timeout=waiting.LIMIT)
        assert "TFF's worker process was killed by signal 9" in output, errors
        assert errors.count("Doing this computation again") == 2
