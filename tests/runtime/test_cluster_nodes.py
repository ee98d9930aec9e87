"""Machines of a cluster that go, come, or have another version of this project.

Ray plays two machines on this one: a raylet each, over loopback.
"""

import hashlib
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import portpicker
import psutil
import pytest

import tff_fedss
from tests import waiting
from tests.experiments import program_server
from tests.refusals import message_of
from tests.runtime import cluster_clients, test_cluster
from tests.runtime.test_cluster import NUM_CLIENTS, RAY_FOLDER, build_sum, use
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError
from tff_fedss.runtime import cluster_machines, cluster_pool, cluster_round
from tff_fedss.runtime.frozen import ClientRef

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture
def machines(monkeypatch):
    """Starts a machine, with options. Connect to it before others are added: else the
    connection may be to any of them."""
    started = []

    def start(**options):
        monkeypatch.setenv("RAY_TMPDIR", RAY_FOLDER)
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        found = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False, **options},
        )
        started.append(found)
        return found

    yield start
    ray.shutdown()
    for found in started:
        found.shutdown()


def kill(node):
    """Kills the raylet of a machine, and with it what it looks after."""
    (process,) = node.all_processes["raylet"]
    os.kill(process.process.pid, signal.SIGKILL)


def test_a_machine_that_is_lost_and_one_that_joins(machines, tmp_path, monkeypatch):
    found = machines()
    context = runtime.ClusterContext(found.address, num_actors=2)
    second = found.add_node(num_cpus=1)
    (tmp_path / "go_prepare").touch()
    # So large that an actor has its machine's raylet hold the result.
    total = build_sum(tmp_path, size=[100_000])
    xs = [float(x) for x in range(NUM_CLIENTS)]
    expected = sum(x * x for x in xs)
    begin = cluster_round.Round._begin
    killed = []

    def begin_and_kill(self, part, member):
        begin(self, part, member)
        at_work = [m for m in self._pool.members if m.node == second.node_id]
        if at_work and at_work[0].running and part.rows is not None and not killed:
            killed.append(at_work[0].pid)
            kill(second)
            (tmp_path / "go_work").touch()

    def machines_of(context):
        return sorted(member.node for member in context._pool.members)

    with use(context):
        test_cluster.two_actors(context)
        assert machines_of(context) == sorted(node["NodeID"] for node in ray.nodes())
        # None gives way to the rest of its machine.
        for pid in context.actor_pids:
            actor = psutil.Process(pid)
            assert actor.nice() == actor.parent().nice()
        with monkeypatch.context() as patch:
            patch.setattr(cluster_round.Round, "_begin", begin_and_kill)
            np.testing.assert_array_equal(total(1.0, xs), expected)
        assert killed and killed[0] not in context.actor_pids
        # The other one does it all.
        np.testing.assert_array_equal(total(2.0, xs), 2 * expected)
        assert len(context._pool.members) == 1
        third = found.add_node(num_cpus=1)
        np.testing.assert_array_equal(total(3.0, xs), 3 * expected)
        test_cluster.two_actors(context)
        assert third.node_id in machines_of(context)
    context.close()


@pytest.mark.slow
def test_a_machine_without_the_data_and_one_that_starts_no_actor(
    machines, monkeypatch, caplog
):
    monkeypatch.setattr(cluster_pool, "_PATIENCE_SECONDS", math.inf)
    found = machines()
    context = runtime.ClusterContext(found.address)
    monkeypatch.setenv("TFF_FEDSS_TEST_WITHOUT", "1")
    second = found.add_node(num_cpus=1, node_ip_address="127.0.0.2")
    context.share(cluster_clients.load_if_there, cluster_clients.make, {"data": 1})
    refs = [ClientRef((str(k), np.array([k, 0], np.int32))) for k in range(NUM_CLIENTS)]
    expected = sum(range(NUM_CLIENTS))
    with use(context):
        test_cluster.two_actors(context)
        assert test_cluster.sum_up(refs)["x"] == expected
    assert context.traffic.clients > 0
    (warning,) = caplog.messages
    assert "(127.0.0.2) cannot read the clients' data, which are sent to it" in warning
    assert warning.endswith("no such folder [InvalidInputError]")
    context.close()
    caplog.clear()
    actor = cluster_clients.BrokenIfWithout
    monkeypatch.setattr(cluster_pool.cluster_actor, "Actor", actor)
    with use(context):
        while context._pool._failures[second.node_id] < 3:
            assert test_cluster.sum_up(refs)["x"] == expected
        assert test_cluster.sum_up(refs)["x"] == expected
    (warning,) = caplog.messages
    assert "(127.0.0.2) of the cluster" in warning
    assert "starts no actor: there is no such thing. It needs" in warning
    context.close()


@pytest.mark.slow
def test_another_version_is_not_used(machines, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(cluster_pool, "_PATIENCE_SECONDS", math.inf)
    other = tmp_path / "other"
    shutil.copytree(pathlib.Path(tff_fedss.__file__).parent, other / "tff_fedss")
    (other / "tff_fedss" / "seeds.py").write_text("# Another version.\n")
    found = machines()
    context = runtime.ClusterContext(found.address)
    monkeypatch.setenv("PYTHONPATH", f"{other}:{os.environ.get('PYTHONPATH', '')}")
    found.add_node(num_cpus=1)
    with use(context):
        while not caplog.messages:  # A round may end before it has said its version.
            assert test_cluster.sum_up([{"x": 1.0, "pid": 1}])["x"] == 1.0
    (warning,) = caplog.messages
    assert re.search("another version, tff_fedss .* instead of .* commit", warning)
    assert len(context._pool.members) == 1
    context._pool.close()
    context._pool._versions = {"tff_fedss": "of others"}
    with use(context), pytest.raises(runtime.WorkerError, match="instead of of others"):
        test_cluster.sum_up([{"x": 1.0, "pid": 1}])
    context.close()


FLAGS = (
    "--dataset=glyphs",
    "--clients_per_round=40",
    "--warm_start_epochs=0",
    "--rounds=14",
    "--rounds_per_evaluation=100",
    "--num_negatives=80",
    "--embedding_dim=512",  # For results that the raylets hold.
)


def train(flags, folder, meanwhile):
    """Trains; returns digests of the results."""
    flags = (*FLAGS, *flags, f"--results_dir={folder}")
    with subprocess.Popen(
        program_server.command("experiments.fedss.train", flags),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        meanwhile(process, folder / "metrics.csv")
        output, _ = process.communicate(timeout=waiting.LIMIT)
    assert process.returncode == 0, output
    files = (folder / "metrics.csv", folder / "fedss.npz")
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


@pytest.mark.slow
def test_a_run_survives_the_loss_of_a_machine_at_any_moment(machines, tmp_path):
    found = machines()
    flags = [f"--cluster={found.address}"]
    rng = random.Random(0)
    expected = train(flags, tmp_path / "uninterrupted", lambda *_: None)

    def lose(process, metrics):
        rows = rng.randrange(1, 14)
        waiting.wait_until(
            lambda: metrics.exists() and metrics.read_text().count("\n") > rows, process
        )
        time.sleep(rng.random())
        kill(second)

    for k in range(20):
        # With an address of its own: the program is to connect to the first one.
        second = found.add_node(num_cpus=1, node_ip_address="127.0.0.2")
        assert train(flags, tmp_path / str(k), lose) == expected
        found.remove_node(second)


@pytest.mark.slow
def test_gpus_that_are_not_there_are_reported(machines):
    context = runtime.ClusterContext(machines().address, gpus_per_actor=1)
    expected = "gpus_per_actor=1: the machines .* have 0"
    with use(context), pytest.raises(InvalidInputError, match=expected):
        test_cluster.sum_up([{"x": 1.0, "pid": 1}])
    context.close()


def test_how_many_gpus_an_actor_has():
    with pytest.raises(InvalidInputError, match=r"gpus_per_actor=1.5 must be whole"):
        cluster_pool.Pool("auto", None, 1.5, 1, {})


@pytest.mark.parametrize(
    "num_actors, gpus_per_actor, machines, expected",
    [
        (None, None, dict(a=(8, 0), b=(2, 0)), dict(a=1, b=1)),
        (3, None, dict(a=(8, 0), b=(2, 0)), dict(a=3)),
        # A head that is to have no work.
        (None, None, dict(a=(0, 0), b=(2, 0)), dict(b=1)),
        (2, None, dict(a=(0, 0), b=(2, 0)), dict(b=2)),
        (None, None, dict(a=(0, 0)), {}),
        (None, None, dict(a=(8, 0), b=(8, 4)), dict(b=4)),
        (None, 0.2, dict(a=(8, 1)), dict(a=5)),
        (5, 0.2, dict(a=(8, 1)), dict(a=5)),
        (None, 0.4, dict(a=(8, 2)), dict(a=4)),
    ],
)
def test_how_many_actors_a_machine_has(num_actors, gpus_per_actor, machines, expected):
    pool = cluster_pool.Pool("auto", num_actors, gpus_per_actor, 1, {})

    def counts(machines):
        resources = {
            name: {"Resources": {"CPU": cpus, "GPU": gpus}}
            for name, (cpus, gpus) in machines.items()
        }
        return {name: len(x) for name, x in pool._shares(resources).items()}

    assert counts(machines) == expected
    # A run that has begun on GPUs does not continue without them.
    without = {name: (cpus, 0) for name, (cpus, gpus) in machines.items()}
    assert not counts(without) or not any(gpus for _, gpus in machines.values())


def test_all_actors_start_whose_shares_of_cpus_are_not_exact(monkeypatch):
    pool = cluster_pool.Pool("auto", 5, 0, 1, {})
    started = []
    monkeypatch.setattr(pool, "_start", lambda *args: started.append(args))
    machine = {
        "Resources": {"CPU": 3.0},
        "NodeManagerHostname": "a",
        "NodeManagerAddress": "",
    }
    pool._start_missing({"a": machine})
    assert len(started) == 5


# --- Clusters that cannot be reached: one line each, at once ----------------------


@pytest.fixture
def no_cluster(monkeypatch, tmp_path):
    """This machine is a part of none, whatever else runs here."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert not ray.is_initialized()


def test_a_machine_without_a_cluster_is_reported(no_cluster):
    message = message_of(cluster_machines.connect, "auto")
    assert message.startswith("cluster=auto: this machine is not a part of a cluster")
    assert "ray start" in message and "RAY_ADDRESS" in message


def test_an_address_where_nobody_listens_is_reported(no_cluster, monkeypatch):
    address = f"127.0.0.1:{portpicker.pick_unused_port()}"
    assert message_of(cluster_machines.connect, address).startswith(
        f"cluster={address} cannot be reached: Connection refused"
    )
    typo = "10.0.0..5:6379"
    assert message_of(cluster_machines.connect, typo).startswith(
        f"cluster={typo} cannot be reached: encoding with 'idna' codec failed"
    )
    # `ray start` has written it down, and the cluster is gone.
    monkeypatch.setenv("RAY_ADDRESS", address)
    message = message_of(cluster_machines.connect, "auto")
    assert message.startswith(f"cluster=auto ({address}) cannot be reached")
