"""Devices, failures and limits of the in-process runtime."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import freed, waiting
from tff_fedss import runtime
from tff_fedss.runtime import gpus, graphs, in_process, tf_computation

FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@pytest.fixture(scope="module")
def context():
    return runtime.InProcessContext(clients_per_device=3)


@pytest.fixture
def installed(context):
    with tff.framework.get_context_stack().install(context):
        yield context


def own_threads():
    return {t for t in threading.enumerate() if t.name == "tff_fedss in_process"}


@tff.tensorflow.computation(np.float32)
def root(x):
    check = tf.debugging.Assert(x >= 0, ["no root of", x])
    with tf.control_dependencies([check]):
        return tf.sqrt(x)


@tff.federated_computation(FLOATS)
def roots(values):
    return tff.federated_map(root, values)


def test_set_in_process_context_makes_it_the_default(in_process_context):
    context = runtime.set_in_process_context(default_num_clients=3, reads_ahead=True)
    try:
        assert context._reads_ahead
        assert tff.framework.get_context_stack().current is context
        assert root(4.0) == 2.0
        assert context.devices == (tf.zeros([]).device,)
    finally:
        tff.framework.set_default_context(in_process_context)


def test_the_cpu_has_a_client_on_each_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3, 4})
    context = runtime.InProcessContext()
    assert context._slots == context.devices * 3


@tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER))
def sent_and_valued(value):
    ten = tff.federated_value(10.0, tff.CLIENTS)
    return tff.federated_broadcast(value), ten, tff.federated_sum(ten)


def test_clients_without_arguments():
    context = runtime.InProcessContext(default_num_clients=3)
    with (
        contextlib.closing(context),
        tff.framework.get_context_stack().install(context),
    ):
        assert sent_and_valued(2.0) == (2.0, 10.0, 30.0)
        assert roots([np.float32(4)]) == [2.0]  # An argument says how many there are.


def test_without_clients_an_error_says_what_to_do(installed):
    with pytest.raises(ValueError, match=r"list of client values, .*default_num_cl"):
        sent_and_valued(2.0)
    with pytest.raises(ValueError, match="=-1 must be at least 0"):
        runtime.InProcessContext(default_num_clients=-1)


def test_a_failing_client_is_named(installed):
    values = [np.float32(k) for k in range(12)]
    values[7] = np.float32(-49)
    with pytest.raises(
        runtime.ClientError, match="Client 7 of 12 failed: .*no root of"
    ) as e:
        roots(values)
    assert e.value.client == 7 and "-49" in str(e.value)
    assert isinstance(e.value.__cause__, tf.errors.InvalidArgumentError)
    # The context is as good as before.
    assert roots([np.float32(9)] * 12) == [3.0] * 12


def test_threads_are_used_again_and_end_with_the_context():
    before = own_threads()
    context = runtime.InProcessContext(clients_per_device=3)
    with tff.framework.get_context_stack().install(context):
        for _ in range(20):
            roots([np.float32(k) for k in range(9)])
            with pytest.raises(runtime.ClientError):
                roots([np.float32(-k) for k in range(9)])
    threads = own_threads() - before
    assert 1 <= len(threads) <= 3
    del context
    gc.collect()
    for thread in threads:
        thread.join(waiting.LIMIT)
        assert not thread.is_alive()


def test_what_ran_is_freed_without_a_collection(installed):
    values = [np.float32(k) for k in range(9)]
    roots(values)
    with freed.without_collections():
        roots(values)
        # A thread drops its work just after the result.
        waiting.wait_until(lambda: not freed.instances(in_process._Invocation))


def test_a_failing_client_stops_the_others(installed):
    @tff.tensorflow.computation(np.float32)
    def fail_or_count_for_minutes(x):
        def count():
            start = tf.constant(0, tf.int64)
            loop = tf.while_loop(lambda i: i < 10**9, lambda i: (i + 1,), (start,))
            return tf.cast(loop[0], tf.float32)

        def fail():
            with tf.control_dependencies([tf.debugging.Assert(x > 0, ["too small"])]):
                return tf.identity(x)

        return tf.cond(x > 0, count, fail)

    @tff.federated_computation(FLOATS)
    def everywhere(values):
        return tff.federated_map(fail_or_count_for_minutes, values)

    with pytest.raises(runtime.ClientError, match="Client 1 of 2 failed: .*too small"):
        # TensorFlow has a thread per core: with more clients that count, the one that
        # fails would have to wait for its turn.
        everywhere([1.0, 0.0])


def test_a_failing_server_is_no_failing_client(installed):
    with pytest.raises(runtime.ServerError, match="The server failed: .*no root") as e:
        root(-1.0)
    assert isinstance(e.value.__cause__, tf.errors.InvalidArgumentError)
    assert "\n" not in str(e.value)
    for error in (runtime.ServerError, runtime.ClientError):
        assert issubclass(error, runtime.ComputationError)
    for error in (runtime.ComputationError, runtime.WorkerError):
        assert issubclass(error, runtime.ExecutionError)


def test_an_unsupported_intrinsic_is_named(installed):
    intrinsic = tff.framework.Intrinsic(
        "federated_teleport",
        tff.FunctionType(FLOATS, tff.FederatedType(np.float32, tff.SERVER)),
    )
    value = tff.framework.Reference("x", FLOATS)
    block = tff.framework.Lambda("x", FLOATS, tff.framework.Call(intrinsic, value))
    teleport = tff.framework.ConcreteComputation.from_building_block(block)
    with pytest.raises(NotImplementedError, match="'federated_teleport'"):
        teleport([1.0])


def test_lists_of_different_lengths_are_refused(installed):
    @tff.federated_computation(FLOATS, FLOATS)
    def both(a, b):
        return tff.federated_zip((a, b))

    with pytest.raises(ValueError, match=r"lists of \[1, 2\]"):
        both([1.0], [1.0, 2.0])
    with pytest.raises(TypeError, match="list with one value per client"):
        both(1.0, [1.0])


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="no device 'GPU:7'"):
        runtime.InProcessContext(["GPU:7"])
    with pytest.raises(ValueError, match="=0 must be at least 1"):
        runtime.InProcessContext(clients_per_device=0)


def test_the_state_of_a_round_is_not_copied(installed):
    add_one = tff.tensorflow.computation(
        lambda x: x + 1.0, tff.TensorType(np.float32, [300, 300])
    )
    state = add_one(np.zeros([300, 300], np.float32))
    with pytest.raises(ValueError, match="read-only"):
        state[0, 0] = 5.0
    taken = []
    converter = installed._converter
    original = converter._tensor_from_python
    converter._tensor_from_python = (
        lambda *args: taken.append(original(*args)) or taken[-1]
    )
    try:
        after = add_one(state)
        assert np.shares_memory(memoryview(taken[0]), state)
        # A part of it, or a copy that was changed, is a value of its own.
        changed = state.copy()
        changed[0] = 7.0
        assert add_one(changed)[0, 0] == 8.0
        np.testing.assert_array_equal(add_one(state[::-1]), after[::-1])
        np.testing.assert_array_equal(add_one(state.T), after.T)
    finally:
        del converter._tensor_from_python
    of_another_shape = tff.tensorflow.computation(
        lambda x: x, tff.TensorType(np.float32, [3])
    )
    with pytest.raises(TypeError, match="shape"):
        of_another_shape(state)
    taken.clear()
    del state, after
    assert not converter._given


def test_an_argument_may_change_after_the_call(installed):
    identity = tff.tensorflow.computation(
        lambda x: tf.identity(x), tff.TensorType(np.float32, [300, 300])
    )
    argument = np.zeros([300, 300], np.float32)
    result = identity(argument)
    argument[:] = 1.0
    assert result.max() == 0.0


@contextlib.contextmanager
def started(program, *arguments):
    """A program in a process of its own, which ends with the test."""
    code = textwrap.dedent(program)
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=waiting.take_ctrl_c,
    )
    try:
        yield process
    finally:
        process.kill()  # A failed test must not leave, or wait for, its program.
        process.communicate()


ENDLESS = """
    import sys
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff
    from tff_fedss import runtime

    runtime.set_in_process_context(clients_per_device=2)

    @tff.tensorflow.computation(np.int64)
    def count_to(n):
        name = tf.strings.join([sys.argv[1], tf.strings.as_string(n)])
        with tf.control_dependencies([tf.io.write_file(name, "")]):
            start = tf.constant(0, tf.int64)
        return tf.while_loop(lambda i: i < n, lambda i: (i + 1,), (start,))[0]

    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def everywhere(values):
        return tff.federated_map(count_to, values)

    assert everywhere([3, 4]) == [3, 4]
    print("ready", flush=True)
    try:
        everywhere([10**15] * 4)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert everywhere([5]) == [5]
"""


ENDLESS_PROGRAM = (
    "import asyncio\n"
    + textwrap.dedent(ENDLESS).partition("assert everywhere([3, 4])")[0]
    + """
context = tff.program.NativeFederatedContext(runtime.AsyncInProcessContext())

@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def total(values):
    return tff.federated_sum(everywhere(values))

async def program():
    with tff.framework.get_context_stack().install(context):
        print("ready", flush=True)
        await tff.program.materialize_value(total([10**15] * 4))

try:
    asyncio.run(program())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
)


@pytest.mark.parametrize(
    "program", [ENDLESS, pytest.param(ENDLESS_PROGRAM, marks=pytest.mark.slow)]
)
def test_ctrl_c_ends_a_computation(tmp_path, program):
    with started(program, f"{tmp_path}/") as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        waiting.wait_until((tmp_path / f"{10**15}").exists, process)
        process.send_signal(signal.SIGINT)
        # The computation itself would take weeks.
        output, errors = process.communicate(timeout=waiting.LIMIT)
        assert output == "interrupted\n", errors
        assert process.returncode == 0, errors


GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


@pytest.mark.parametrize(
    "dtype, is_on_gpu",
    [(tf.float32, True), (tf.bfloat16, True), (tf.int64, True), (tf.int32, False)],
)
def test_variables_are_where_tensorflow_can_keep_them(dtype, is_on_gpu):
    """By the kernels of this TensorFlow, which has those of GPUs on any machine."""
    device = gpus.variable_device(dtype, GPU)
    assert (device == GPU) == is_on_gpu
    assert is_on_gpu or device.endswith("CPU:0")
    assert gpus.variable_device(dtype, "/device:CPU:1") == "/device:CPU:1"


READS = tff.SequenceType(np.float32)


@tff.tensorflow.computation(READS)
def slow_sum(data):
    return data.reduce(0.0, lambda total, x: total + x)


@tff.federated_computation(tff.FederatedType(READS, tff.CLIENTS))
def slow_sums(data):
    return tff.federated_map(slow_sum, data)


def read_by(function):
    """Two numbers that a function of Python reads."""
    return tf.data.Dataset.range(2).map(
        lambda i: tf.ensure_shape(tf.numpy_function(function, [i], tf.float32), [])
    )


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_next_clients_are_read_ahead(at_once, monkeypatch):
    """Once each, and no more of them than one for each that computes."""
    reads, most = [], []

    def data(k):
        def read(i):
            reads.append(k)
            return np.float32(k + i)

        return read_by(read)

    call = tf_computation.TFComputation.__call__

    def watched(self, arg, place):
        most.append(len(set(reads)) - len(most))
        return call(self, arg, place)

    monkeypatch.setattr(tf_computation.TFComputation, "__call__", watched)
    context = runtime.InProcessContext(None, at_once, reads_ahead=True)
    with tff.framework.get_context_stack().install(context):
        found = slow_sums([data(k) for k in range(8)])
    context.close()
    assert list(found) == [2.0 * k + 1 for k in range(8)]
    assert context.waiting_seconds > 0
    assert sorted(reads) == sorted([*range(8)] * 2)
    # Of those that have begun, each may have another one behind it.
    assert max(most) <= 2 * at_once


def test_a_client_that_cannot_be_read_is_named():
    def bad(_):
        raise ValueError("no such image")

    context = runtime.InProcessContext(None, 2, reads_ahead=True)
    with (
        tff.framework.get_context_stack().install(context),
        pytest.raises(runtime.ClientError, match="Client 2 of 5.*no such image"),
    ):
        slow_sums([read_by(bad if k == 2 else np.float32) for k in range(5)])
    context.close()


@pytest.mark.parametrize("is_on_host", [True, False])
def test_gradients_in_functions_of_data_sets_are_found(is_on_host):
    with tf.Graph().as_default() as graph:
        kernel, data = tf.ones([2, 2]), tf.data.Dataset.from_tensors(tf.ones([3, 2]))

        @tf.function
        def step(kernel, x):
            return tf.gradients(tf.reduce_sum(tf.nn.relu(x @ kernel)), kernel)[0]

        if is_on_host:
            data.reduce(kernel, step)
        else:
            step(kernel, data.map(lambda x: 2 * x).get_single_element())
    assert graphs.has_gradients_in_data_sets(graph.as_graph_def()) == is_on_host
