"""Several workers give what one process gives, also when some of them die."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading

import numpy as np
import portpicker
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import waiting
from tests.algorithms import toy
from tff_fedss import runtime
from tff_fedss.runtime import remote, worker_service

SCALARS = tff.FederatedType(np.float32, tff.CLIENTS)


class Worker:
    def __init__(self, port=None):
        self.port = port or portpicker.pick_unused_port()
        self.address = f"localhost:{self.port}"
        self.process = worker_service.start_process(
            self.port, -1, tempfile.TemporaryFile()
        )

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(count):
    workers = [Worker() for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


@contextlib.contextmanager
def use(context):
    with tff.framework.get_context_stack().install(context):
        yield


@contextlib.contextmanager
def over(workers):
    """Computations run over the workers, all of which have answered."""
    context = runtime.RemoteContext([worker.address for worker in workers])
    context._workers.wait_for_start()
    with contextlib.closing(context), use(context):
        yield context


@pytest.fixture(scope="module")
def three_workers():
    """To be left alive."""
    with running(3) as workers:
        yield workers


def assert_close(ours, theirs):
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        ours,
        theirs,
    )


def two_rounds(method, cohort):
    process = toy.build(method)
    first = process.next(process.initialize(), toy.to_tff(cohort))
    second = process.next(first.state, toy.to_tff(cohort))
    weights = process.get_model_weights(second.state)
    return second.state, first.metrics, second.metrics, weights.trainable


@pytest.mark.parametrize(
    "method, num_clients, num_workers",
    [
        ("fedss", 3, 2),
        ("fedss", 1, 2),
        ("fedss", 2, 3),
        ("fedss", 3, 1),
        ("full_softmax", 3, 2),
    ],
)
def test_a_round_is_the_one_of_a_single_process(
    native_context, three_workers, method, num_clients, num_workers
):
    cohort = toy.make_cohort()[:num_clients]
    with use(native_context):
        expected = two_rounds(method, cohort)
    with over(three_workers[:num_workers]):
        found = two_rounds(method, cohort)
    assert type(found[0]) is type(expected[0])
    assert_close(found, expected)


@pytest.fixture(scope="module")
def expected_round(native_context):
    with use(native_context):
        return two_rounds("fedss", toy.make_cohort())


def test_the_parts_are_done_side_by_side(three_workers, tmp_path):
    # Each client waits for the other two: one worker after another would never end.
    meet = build_sum(tmp_path, wait_for="started_[123]", how_many=3)
    with over(three_workers):
        assert meet([1.0, 2.0, 3.0]) == 14.0


def build_sum(folder, wait_for="go", how_many=1):
    """The sum of the squares of x, by clients that say that they have started."""

    @tff.tensorflow.computation(np.float32)
    def work(x):
        name = tf.strings.as_string(tf.cast(x, tf.int32))
        started = tf.io.write_file(tf.strings.join([f"{folder}/started_", name]), "")

        def is_to_wait(i):
            # It depends on i, or else it would be moved out of the loop.
            nothing = tf.strings.substr(tf.strings.as_string(i), 0, 0)
            there = tf.io.matching_files(
                tf.strings.join([f"{folder}/{wait_for}", nothing])
            )
            return tf.size(there) < how_many

        with tf.control_dependencies([started]):
            i = tf.while_loop(is_to_wait, lambda i: (i + 1,), (tf.constant(0),))
        with tf.control_dependencies(list(i)):
            return x * x

    @tff.federated_computation(SCALARS)
    def total(xs):
        return tff.federated_sum(tff.federated_map(work, xs))

    return total


@contextlib.contextmanager
def meanwhile(function):
    """Calls a function in a thread, and does not hide that it failed."""
    failures = []

    def call():
        try:
            function()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    yield
    thread.join()
    assert not failures


def test_a_worker_that_is_killed_in_a_round_is_replaced_by_another(tmp_path, caplog):
    def kill_one():
        waiting.wait_until(lambda: len(list(tmp_path.glob("started_?"))) == 3)
        workers[0].kill()
        (tmp_path / "started_1").unlink()  # By the one that dies.
        # The other one is still at its own part.
        (tmp_path / "go").touch()

    with running(2) as workers, over(workers), meanwhile(kill_one):
        assert build_sum(tmp_path)([1.0, 2.0, 3.0]) == 14.0
    assert (tmp_path / "started_1").exists()
    assert f"Lost worker {workers[0].address}" in caplog.text


def test_a_round_of_fedss_survives_a_kill_to_the_same_bytes(expected_round):
    with running(2) as workers, over(workers):
        whole = two_rounds("fedss", toy.make_cohort())
        assert_close(whole, expected_round)
        # It takes its part of the round, and does not get on with it.
        workers[1].process.send_signal(signal.SIGSTOP)
        timer = threading.Timer(1.0, workers[1].kill)
        timer.start()
        found = two_rounds("fedss", toy.make_cohort())
        timer.join()
    tf.nest.map_structure(np.testing.assert_array_equal, found, whole)


def test_a_worker_that_hangs_is_replaced_by_another(
    monkeypatch, caplog, expected_round
):
    check = remote._Connection.check
    with running(2) as workers, over(workers):
        monkeypatch.setattr(remote, "_HEARTBEAT_SECONDS", 0.5)
        monkeypatch.setattr(remote, "_HEARTBEAT_TIMEOUT_SECONDS", 2.0)
        # The other one may be slow to answer, on a busy machine.
        hangs = workers[0].address
        monkeypatch.setattr(
            remote._Connection, "check", lambda c: c.address == hangs and check(c)
        )
        # As if its machine had vanished: nobody closes the connection.
        workers[0].process.send_signal(signal.SIGSTOP)
        assert_close(two_rounds("fedss", toy.make_cohort()), expected_round)
    lost = f"Lost worker {workers[0].address} (no answer within 2 s)"
    assert lost in caplog.text


def test_a_connection_that_was_closed_may_be_checked_again():
    # Its part may take a while to notice, and the next heartbeat comes meanwhile.
    connection = remote._Connection("localhost:1", compiler_fn=None)
    connection.close()
    connection.check()
    assert not connection.is_there.is_set()


def test_a_worker_that_is_not_there_at_the_start_is_left_out(
    monkeypatch, caplog, three_workers, expected_round
):
    monkeypatch.setattr(remote, "_START_TIMEOUT_SECONDS", 2.0)
    monkeypatch.setattr(remote, "_RETURN_TIMEOUT_SECONDS", waiting.LIMIT)
    absent = f"localhost:{portpicker.pick_unused_port()}"
    context = runtime.RemoteContext([three_workers[0].address, absent])
    context._workers.connections[0].is_there.wait(waiting.LIMIT)
    with contextlib.closing(context), use(context):
        assert_close(two_rounds("fedss", toy.make_cohort()), expected_round)
    no_answer = f"No answer from worker {absent} within 2 s. The others do its part."
    assert no_answer in caplog.text


def test_an_only_worker_that_is_not_there_has_no_others(monkeypatch, caplog):
    monkeypatch.setattr(remote, "_START_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(remote, "_RETURN_TIMEOUT_SECONDS", 0.1)
    absent = f"localhost:{portpicker.pick_unused_port()}"
    context = runtime.RemoteContext([absent])
    with (
        contextlib.closing(context),
        use(context),
        pytest.raises(runtime.WorkerError, match=f"No worker is left of {absent}"),
    ):
        toy.build().initialize()
    assert f"No answer from worker {absent}" in caplog.text
    assert "others" not in caplog.text


def test_a_worker_that_comes_back_is_used_again(tmp_path):
    (tmp_path / "go").touch()
    work = build_sum(tmp_path)
    with running(2) as workers, over(workers) as context:
        assert work([1.0, 2.0]) == 5.0
        workers[0].kill()
        assert work([1.0, 2.0]) == 5.0
        workers.append(Worker(workers[0].port))
        waiting.wait_until(
            lambda: all(c.is_there.is_set() for c in context._workers.connections)
        )
        workers[1].kill()
        assert work([1.0, 2.0]) == 5.0


def test_a_worker_that_was_started_anew_between_rounds_does_the_next(tmp_path):
    (tmp_path / "go").touch()
    work = build_sum(tmp_path)
    with running(1) as workers, over(workers):
        assert work([1.0, 2.0]) == 5.0
        workers[0].kill()
        workers.append(Worker(workers[0].port))
        assert work([1.0, 2.0]) == 5.0


def test_without_any_worker_left_there_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "_RETURN_TIMEOUT_SECONDS", 1.0)

    def kill_both():
        waiting.wait_until(lambda: len(list(tmp_path.glob("started_?"))) == 2)
        for worker in workers:
            worker.kill()

    with running(2) as workers, over(workers):
        names = ", ".join(worker.address for worker in workers)
        with (
            meanwhile(kill_both),
            pytest.raises(runtime.WorkerError, match=f"No worker is left of {names}"),
        ):
            build_sum(tmp_path)([1.0, 2.0])
        with pytest.raises(runtime.WorkerError, match="No worker is left"):
            toy.build().initialize()


def test_a_part_that_kills_its_workers_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "_MAX_ATTEMPTS", 2)
    started = tmp_path / "started_1"

    def kill_the_one_that_works():
        for worker in workers[:2]:
            waiting.wait_until(started.exists)
            started.unlink()
            worker.kill()

    with (
        running(3) as workers,
        over(workers),
        meanwhile(kill_the_one_that_works),
        pytest.raises(
            runtime.WorkerError, match=f"2 times .* last time {workers[1].address}: "
        ),
    ):
        build_sum(tmp_path)([1.0])


def test_an_error_in_a_client_is_no_dead_worker(three_workers, caplog):
    @tff.tensorflow.computation(np.float32)
    def refuse_negatives(x):
        check = tf.debugging.Assert(x >= 0, ["found a negative"])
        with tf.control_dependencies([check]):
            return tf.identity(x)

    @tff.federated_computation(SCALARS)
    def total(xs):
        return tff.federated_sum(tff.federated_map(refuse_negatives, xs))

    with over(three_workers):
        with pytest.raises(runtime.ComputationError, match="found a negative"):
            total([1.0, -2.0, 3.0])
        assert total([1.0, 2.0, 3.0]) == 6.0
    assert "Lost worker" not in caplog.text


def test_what_cannot_be_cut_runs_on_one_worker(three_workers, caplog):
    @tff.tensorflow.computation(np.float32, np.float32)
    def subtract(x, y):
        return x - y

    @tff.federated_computation(SCALARS)
    def deviations(xs):
        mean = tff.federated_broadcast(tff.federated_mean(xs))
        return tff.federated_map(subtract, (xs, mean))

    @tff.federated_computation(SCALARS)
    def no_deviation(xs):
        return tff.federated_sum(deviations(xs))

    with over(three_workers):
        assert deviations([1.0, 2.0, 6.0]) == [-2.0, -1.0, 3.0]
        assert "its result stays at the clients" in caplog.text
        assert no_deviation([1.0, 2.0, 6.0]) == 0.0
        assert caplog.text.count("One worker does all") == 2
        assert no_deviation([]) == 0.0


def test_there_must_be_a_worker():
    with pytest.raises(ValueError, match="at least one worker"):
        runtime.RemoteContext([])


@pytest.mark.parametrize(
    "signal_number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
)
def test_a_program_that_is_stopped_in_a_round_ends_at_once(signal_number, tmp_path):
    program = """
import pathlib, signal, sys
from tests.runtime import test_remote
from tff_fedss import runtime

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
runtime.set_remote_context(sys.argv[1].split(","))
try:
    test_remote.build_sum(sys.argv[2])([1.0, 2.0])
finally:
    print("unwound", flush=True)
"""
    with running(2) as workers:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                program,
                ",".join(worker.address for worker in workers),
                str(tmp_path),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            waiting.wait_until(
                lambda: len(list(tmp_path.glob("started_?"))) == 2, process
            )
            process.send_signal(signal_number)
            output, errors = process.communicate(timeout=waiting.LIMIT)
        finally:
            process.kill()
        assert output == "unwound\n", errors
        assert process.returncode == (143 if signal_number == signal.SIGTERM else -2)
