"""Machines of a cluster that go, come, or have another version of this project.

Ray plays two machines on this one: a raylet each, over loopback.
"""

import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow_federated as tff

from tests import waiting
from tests.runtime import test_cluster
from tests.runtime.test_cluster import NUM_CLIENTS, RAY_FOLDER, build_sum, use
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError
from tff_fedss.runtime import cluster_hosts, cluster_round

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.slow


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
    context = runtime.ClusterContext(found.address)
    second = found.add_node(num_cpus=1)
    found.wait_for_nodes(timeout=waiting.LIMIT)
    (tmp_path / "go_prepare").touch()
    total = build_sum(tmp_path)
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

    with use(context):
        test_cluster.two_actors(context)
        assert {m.node for m in context._pools[0].members} == {
            node["NodeID"] for node in ray.nodes()
        }
        with monkeypatch.context() as patch:
            patch.setattr(cluster_round.Round, "_begin", begin_and_kill)
            assert total(1.0, xs) == expected
        assert killed and killed[0] not in context.actor_pids
        # The other one does it all.
        assert total(2.0, xs) == 2 * expected
        assert len(context._pools[0].members) == 1
        third = found.add_node(num_cpus=1)
        found.wait_for_nodes(timeout=waiting.LIMIT)
        assert total(3.0, xs) == 3 * expected
        # The round above has started an actor there, and may have ended before it.
        test_cluster.two_actors(context)
        assert third.node_id in {m.node for m in context._pools[0].members}
    context.close()


def test_another_version_is_told(machines, tmp_path, monkeypatch):
    other = tmp_path / "other"
    package = os.path.dirname(cluster_hosts.__file__.replace("/runtime", ""))
    shutil.copytree(package, other / "tff_fedss")
    (other / "tff_fedss" / "seeds.py").write_text("# Another version.\n")
    found = machines()
    context = runtime.ClusterContext(found.address)
    monkeypatch.setenv("PYTHONPATH", f"{other}:{os.environ.get('PYTHONPATH', '')}")
    found.add_node(num_cpus=1)
    found.wait_for_nodes(timeout=waiting.LIMIT)
    expected = "has another version: tff_fedss .* instead of .* same commit"
    with use(context), pytest.raises(InvalidInputError, match=expected):
        test_cluster.sum_up([{"x": 1.0, "pid": 1}])
    context.close()


def test_what_does_not_fit_into_the_store_is_told(machines):
    found = machines(
        object_store_memory=80 * 2**20,
        # The disk, which would take what does not fit, is full.
        _system_config={"local_fs_capacity_threshold": 0.01},
    )

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None]), np.float32)
    def work(w, x):
        return x + w[0]

    @tff.federated_computation(
        tff.FederatedType(tff.TensorType(np.float32, [None]), tff.SERVER),
        test_cluster.SCALARS,
    )
    def total(w, xs):
        sent = tff.federated_broadcast(w)
        return tff.federated_sum(tff.federated_map(work, (sent, xs)))

    context = runtime.ClusterContext(found.address)
    with (
        use(context),
        pytest.raises(runtime.WorkerError, match="--object-store-memory"),
    ):
        total(np.zeros(200 * 2**20 // 4, np.float32), [1.0, 2.0])
    context.close()


def test_gpus_that_are_not_there_are_told(machines):
    context = runtime.ClusterContext(machines().address, gpus_per_actor=1)
    expected = "gpus_per_actor=1, but the machines .* have 0"
    with use(context), pytest.raises(InvalidInputError, match=expected):
        test_cluster.sum_up([{"x": 1.0, "pid": 1}])
    context.close()
