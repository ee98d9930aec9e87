"""Rounds over actors give what one process gives, also when some of them die."""

import atexit
import collections
import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import freed, waiting
from tests.algorithms import toy
from tests.runtime import broken_actors, cluster_clients
from tff_fedss import runtime, stopping
from tff_fedss.errors import InvalidInputError
from tff_fedss.runtime import (
    cluster_machines,
    cluster_pool,
    cluster_round,
    parts,
)
from tff_fedss.runtime.frozen import ClientRef

ray = pytest.importorskip("ray")

SCALARS = tff.FederatedType(np.float32, tff.CLIENTS)
AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)
# Its own for each process of tests.
RAY_FOLDER = f"{tempfile.gettempdir()}/tff_ray_{os.getpid()}"
atexit.register(shutil.rmtree, RAY_FOLDER, ignore_errors=True)
# Three parts, the last one short.
NUM_CLIENTS = 2 * parts.CLIENTS_PER_PART + 3


@contextlib.contextmanager
def local_ray():
    """A cluster of this machine, with a folder whose name is short enough for Ray."""
    with pytest.MonkeyPatch.context() as patch:
        # Sockets lie in it, whose paths may have 107 bytes.
        patch.setenv("RAY_TMPDIR", RAY_FOLDER)
        _connect()
        try:
            yield
        finally:
            ray.shutdown()


def _connect(attempts=3):
    """Connects, again if Ray has not started within its 30 s on a busy machine."""
    try:
        cluster_machines.connect("local")
    except InvalidInputError as error:
        if attempts == 1 or "timed out" not in str(error):
            raise
        _connect(attempts - 1)


use = tff.framework.get_context_stack().install


@pytest.fixture(scope="module")
def cluster():
    """Two actors."""
    with local_ray():
        context = runtime.ClusterContext("local", num_actors=2)
        context.share(cluster_clients.load, cluster_clients.make, {"data": 1})
        yield context
        context.close()


def cohort():
    clients = [client for seed in range(7) for client in toy.make_cohort(seed)]
    return toy.to_tff(clients[:NUM_CLIENTS])


def two_rounds():
    process, clients = toy.build("fedss"), cohort()
    first = process.next(process.initialize(), clients)
    second = process.next(first.state, clients)
    return second.state, first.metrics, second.metrics


def test_a_round_is_the_one_of_a_single_process(cluster):
    expected = two_rounds()
    with use(cluster):
        found = two_rounds()
    assert type(found[0]) is type(expected[0])
    # Each matrix product of so small a network is computed by one thread here as well.
    toy.same_bytes(found, expected)
    traffic = cluster.traffic
    # Neither W nor a momentum: phi, twelve weights and three biases, and the number of
    # the round, to one machine.
    assert traffic.broadcasts == 15 * 4 + 4
    size = toy.MAX_POSITIVES + 4
    assert traffic.keys == NUM_CLIENTS * size * 4
    assert traffic.rows == NUM_CLIENTS * size * toy.EMBEDDING_DIM * 4


def test_a_round_is_freed_without_a_collection(cluster):
    process, clients = toy.build("fedss"), cohort()
    with use(cluster):
        state = process.initialize()
        process.next(state, clients)
        with freed.without_collections():
            process.next(state, clients)
            assert not freed.instances(cluster_round.Round)


@tff.federated_computation(
    tff.FederatedType(collections.OrderedDict(x=np.float32, pid=np.int32), tff.CLIENTS)
)
def sum_up(values):
    return tff.federated_sum(values)


REFS = [ClientRef((str(k), np.array([k, 0], np.int32))) for k in range(3)]


def test_clients_are_made_where_they_train(cluster):
    with use(cluster):
        result = sum_up(REFS)
    assert result["x"] == 3.0 and result["pid"] / 3 in cluster.actor_pids
    assert cluster.traffic.clients == 0
    # Computations that do not go out take the names as well.
    resolved = cluster._resolved([REFS[2]], sum_up.type_signature.parameter)
    assert resolved == [{"x": 2.0, "pid": os.getpid()}]


def test_a_local_cluster_listens_on_this_machine_only(cluster):
    two_actors(cluster)
    driver = psutil.Process()
    listening = []
    for process in (driver, *driver.children(recursive=True)):
        # One of Ray's short commands may have ended meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            name = process.name()
            listening += [
                (name, connection.laddr.ip.removeprefix("::ffff:"))
                for connection in process.net_connections("inet")
                # An earlier test may have started TFF's own worker, no part of the
                # cluster.
                if connection.status == psutil.CONN_LISTEN and name != "worker_binary"
            ]
    assert {"gcs_server", "raylet", "ray::Actor"} <= {name for name, _ in listening}
    assert {ip for _, ip in listening} <= {"127.0.0.1", "::1"}, listening


def test_a_round_without_actors_can_be_stopped(cluster, monkeypatch):
    cluster._pool.close()
    monkeypatch.setattr(cluster_pool.cluster_actor, "Actor", broken_actors.Endless)
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def are_starting():
        children = psutil.Process().children(recursive=True)
        return any(waiting.is_alive(process, "Endless") for process in children)

    def stop():
        waiting.wait_until(are_starting)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        with (
            use(cluster),
            meanwhile(stop),
            pytest.raises(KeyboardInterrupt),
            stopping.deferred("round"),
        ):
            sum_up([{"x": 1.0, "pid": 1}])
    finally:
        signal.signal(signal.SIGTERM, handler)
    waiting.wait_until(lambda: not are_starting())


def test_a_machine_that_starts_no_actor_is_named(cluster, monkeypatch):
    cluster._pool.close()
    monkeypatch.setattr(cluster_pool.cluster_actor, "Actor", broken_actors.Broken)
    expected = (
        r" \(127.0.0.1\) of the cluster local starts no actor: "
        r"there is no such thing\. It needs this commit"
    )
    with use(cluster), pytest.raises(runtime.WorkerError, match=expected):
        sum_up([{"x": 1.0, "pid": 1}])
    assert cluster._pool._failures.total() == 3
    monkeypatch.undo()
    with use(cluster):  # It is tried again.
        assert sum_up([{"x": 1.0, "pid": 1}])["x"] == 1.0


def test_two_selections_a_broadcast_and_an_argument_in_one_client(cluster):
    @tff.tensorflow.computation(np.float32, np.int32)
    def row(table, key):
        return table * tf.cast(key, tf.float32)

    @tff.tensorflow.computation(np.float32)
    def keys_of(x):
        return tf.stack([tf.cast(x, tf.int32), 1])

    rows_type = tff.SequenceType(np.float32)

    @tff.tensorflow.computation(rows_type, rows_type, np.float32, np.float32)
    def join(a, b, x, factor):
        add = lambda total, value: total + value  # noqa: E731
        return a.reduce(0.0, add) + 10 * b.reduce(0.0, add) + 100 * x + 1000 * factor

    @tff.federated_computation(AT_SERVER, SCALARS, AT_SERVER)
    def both(table, xs, factor):
        keys = tff.federated_map(keys_of, xs)
        most = tff.federated_value(9, tff.SERVER)
        first = tff.federated_select(keys, most, table, row)
        second = tff.federated_select(keys, most, factor, row)
        sent = tff.federated_broadcast(factor)
        return tff.federated_sum(tff.federated_map(join, (first, second, xs, sent)))

    arguments = 2.0, [1.0, 2.0, 3.0], 5.0
    expected = both(*arguments)
    assert expected > 15000
    with use(cluster):
        assert both(*arguments) == expected


def build_sum(folder, size=()):
    """The sum of x times a row that each client selects, as often as the size says.

    The first client of a part says in a file that it has come to `prepare` or `work`,
    and waits there for `go_prepare` or `go_work`.
    """

    def at_the_gate(name, x):
        def wait():
            text = tf.strings.as_string(tf.cast(x, tf.int32))
            write = tf.io.write_file(tf.strings.join([f"{folder}/{name}_", text]), "")

            def is_to_wait(i):
                # It depends on i, or else it would be moved out of the loop.
                end = tf.strings.substr(tf.strings.as_string(i), 0, 0)
                there = tf.io.matching_files(
                    tf.strings.join([f"{folder}/go_{name}", end])
                )
                return tf.size(there) < 1

            with tf.control_dependencies([write]):
                i = tf.while_loop(is_to_wait, lambda i: (i + 1,), (tf.constant(0),))
            with tf.control_dependencies(list(i)):
                return tf.identity(x)

        clients = float(parts.CLIENTS_PER_PART)
        is_first = tf.equal(tf.math.floormod(x, clients), 0.0)
        return tf.cond(is_first, wait, lambda: tf.identity(x))

    @tff.tensorflow.computation(np.float32)
    def keys_of(x):
        return tf.reshape(tf.cast(at_the_gate("prepare", x), tf.int32), [1])

    @tff.tensorflow.computation(np.float32, np.int32)
    def row_of(table, key):
        return table * tf.cast(key, tf.float32)

    @tff.tensorflow.computation(np.float32, tff.SequenceType(np.float32))
    def work(x, rows):
        row = rows.batch(1).get_single_element()[0]
        return tf.fill(size, at_the_gate("work", x) * row)

    @tff.federated_computation(AT_SERVER, SCALARS)
    def total(table, xs):
        rows = tff.federated_select(
            tff.federated_map(keys_of, xs),
            tff.federated_value(1000, tff.SERVER),
            table,
            row_of,
        )
        return tff.federated_sum(tff.federated_map(work, (xs, rows)))

    return total


@contextlib.contextmanager
def meanwhile(function):
    """Calls a function in a thread, and does not hide that it failed."""
    errors = []

    def call():
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not errors, errors


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("prepare", marks=pytest.mark.slow),
        pytest.param("between", marks=pytest.mark.slow),
        "work",
    ],
)
def test_the_part_of_an_actor_that_is_killed_is_done_again(
    cluster, tmp_path, monkeypatch, phase
):
    killed = []

    def kill(pid):
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    def kill_one_at_the_gate():
        waiting.wait_until(lambda: len(list(tmp_path.glob(f"{phase}_*"))) == 2)
        kill(cluster.actor_pids[0])  # Both are there.
        (tmp_path / f"go_{phase}").touch()

    end = cluster_round.Round._end

    def end_and_kill(self, reference):
        task = self._running[reference]
        result = end(self, reference)
        if task.is_preparing and not killed:
            kill(task.member.pid)
        return result

    for gate in {"prepare", "work"} - {phase}:
        (tmp_path / f"go_{gate}").touch()
    if phase == "between":
        monkeypatch.setattr(cluster_round.Round, "_end", end_and_kill)
    total = build_sum(tmp_path)
    xs = [float(x) for x in range(NUM_CLIENTS)]
    with use(cluster):
        assert total(0.0, []) == 0.0
        two_actors(cluster)
        with meanwhile((lambda: None) if phase == "between" else kill_one_at_the_gate):
            result = total(2.0, xs)
        # What counted twice, or not at all, would be seen.
        assert result == sum(2.0 * x * x for x in xs)
        assert total(1.0, xs) == sum(x * x for x in xs)
    assert killed and killed[0] not in cluster.actor_pids


def test_a_part_does_not_die_of_actors_that_were_dead_before(cluster, monkeypatch):
    monkeypatch.setattr(cluster_round, "_MAX_DEATHS", 2)
    monkeypatch.setattr(cluster._pool, "_num_actors", 3)
    cluster._pool.close()
    with use(cluster):
        wait_for_actors(cluster, 3)
        for pid in cluster.actor_pids[:2]:  # The first to get work.
            os.kill(pid, signal.SIGKILL)
        assert sum_up([{"x": 1.0, "pid": 1}])["x"] == 1.0
    cluster._pool.close()


def two_actors(context):
    """Waits until both are there."""
    wait_for_actors(context, 2)


def wait_for_actors(context, count):
    pool = context._pool

    def are_there():
        pool.begin_round()  # A start that fails on a busy machine is tried again.
        pool.update()
        done, _ = ray.wait(pool.starting, timeout=1) if pool.starting else ([], [])
        for reference in done:
            pool.started(reference)
        return len(pool.members) >= count

    waiting.wait_until(are_there)


def test_an_actor_that_hangs_is_replaced(cluster, tmp_path, monkeypatch):
    stopped = []

    def stop_one_at_the_gate():
        waiting.wait_until(lambda: len(list(tmp_path.glob("work_*"))) >= 2)
        monkeypatch.setattr(cluster_pool, "_STALLED_SECONDS", 2.0)
        monkeypatch.setattr(cluster_pool, "_ANSWER_SECONDS", 10.0)
        stopped.append(psutil.Process(cluster.actor_pids[0]))
        os.kill(stopped[0].pid, signal.SIGSTOP)
        (tmp_path / "go_work").touch()

    (tmp_path / "go_prepare").touch()
    total = build_sum(tmp_path)
    xs = [float(x) for x in range(NUM_CLIENTS)]
    with use(cluster):
        two_actors(cluster)
        with meanwhile(stop_one_at_the_gate):
            assert total(2.0, xs) == sum(2.0 * x * x for x in xs)
    assert stopped[0].pid not in cluster.actor_pids
    waiting.wait_until(lambda: not waiting.is_alive(stopped[0]))


def test_a_client_that_fails_is_named(cluster):
    @tff.tensorflow.computation(np.float32)
    def check(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 12.0, "too much")]):
            return tf.identity(x)

    @tff.federated_computation(SCALARS)
    def total(xs):
        return tff.federated_sum(tff.federated_map(check, xs))

    xs = [float(x) for x in range(13)]
    with use(cluster), pytest.raises(runtime.ClientError) as error:
        total(xs)
    assert error.value.client == 12 and "too much" in str(error.value)
    assert str(error.value).startswith("Client 12 of 13 failed: ")


def test_an_actor_that_cannot_read_data_is_not_taken_for_dead(cluster, caplog):
    unreadable = ClientRef((cluster_clients.UNREADABLE, np.array([0, 0], np.int32)))
    with use(cluster), pytest.raises(runtime.WorkerError, match="signature not found"):
        sum_up([unreadable])
    assert "Lost an actor" not in caplog.text


@pytest.mark.slow
def test_clients_data_that_differ_there_are_sent(cluster, caplog, monkeypatch):
    monkeypatch.setattr(cluster_pool, "_PATIENCE_SECONDS", math.inf)
    cluster._pool.close()
    context = runtime.ClusterContext("local", num_actors=1)
    with use(context):
        context.share(cluster_clients.load, cluster_clients.make, {"data": 2})
        result = sum_up(REFS)
        context.close()
    assert result["x"] == 3.0 and result["pid"] == 3 * os.getpid()
    assert context.traffic.clients > 0
    assert "the data there differ in data" in caplog.text
    assert caplog.text.count("\n") == 1


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_nothing(tmp_path):
    code = f"""
import sys
import tempfile
from tests.runtime import test_cluster
from tff_fedss import runtime
context = runtime.ClusterContext("local", num_actors=2)
with test_cluster.use(context):
    test_cluster.two_actors(context)
    total = test_cluster.build_sum({str(tmp_path)!r})
    print(*context.actor_pids, flush=True)
    total(1.0, [0.0] * 16)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "RAY_TMPDIR": RAY_FOLDER,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    actors = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(actors) == 2
    everything = psutil.Process(process.pid).children(recursive=True)
    assert {*actors} <= {*everything}
    # In the midst of their work.
    waiting.wait_until(lambda: list(tmp_path.glob("prepare_*")), process)
    process.kill()
    process.communicate()
    waiting.wait_until(lambda: not any(map(waiting.is_alive, everything)))
