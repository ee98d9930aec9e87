"""Hundreds of rounds on two Ray nodes among kills: the same bytes, nothing that grows.

    ./run.sh test --slow -m soak

takes about half an hour, and says how fast file descriptors, threads and memory grow.
TFF_FEDSS_SOAK_ROUNDS, by default 300, shortens it while one works on it.
"""

import collections
import os
import random
import time

import numpy as np
import psutil
import pytest

from tests import waiting
from tests.faults import test_kills
from tests.runtime import test_cluster_nodes

machines = test_cluster_nodes.machines  # The fixture.

ROUNDS = int(os.environ.get("TFF_FEDSS_SOAK_ROUNDS", "300"))
IS_SHORT = ROUNDS < 100
FLAGS = (
    "--dataset=glyphs",
    "--clients_per_round=16",  # Two parts: one for each node.
    "--num_negatives=20",
    "--warm_start_epochs=0",
    f"--rounds={ROUNDS}",
    "--rounds_per_evaluation=10",
    "--rounds_per_checkpoint=1",
)
KINDS = ("process", "actor", "node", "actor", "node")  # What is killed, in turn,
PAUSES = (10, 25)  # after this number of rounds.
WARM_UP = 8  # A process computes and keeps things for the first time in these rounds.
# How much a process may grow in 100 rounds. One descriptor or thread that is kept each
# round makes 100; phi, 31 MiB.
LIMITS = {"descriptors": 10.0, "threads": 10.0, "MiB": 15.0}
# By how the names of processes begin; beside them there is the one that trains.
ROLES = {"ray::Actor": "actor", "raylet": "raylet", "gcs_server": "gcs_server"}


class Observer:
    """Kills what there is to kill, and watches what is there.

    Attributes:
        samples: By role and process: the number of a round since the beginning, and
            what the process had then, in the order of LIMITS.
        seen: All processes there ever were.
        kills: How many, by kind.
    """

    def __init__(self, before, cluster):
        self.samples = collections.defaultdict(lambda: collections.defaultdict(list))
        self.seen: set[psutil.Process] = set()
        self.kills: collections.Counter[str] = collections.Counter()
        self._before, self._cluster, self._second = before, cluster, None
        self._generator = random.Random(0)
        self._rows = self._round = 0
        self.add_second_node()

    def add_second_node(self):
        # The program is to connect to the first one.
        of_its_own = {"num_cpus": 1, "node_ip_address": "127.0.0.2"}
        self._second = self._cluster.add_node(**of_its_own)

    def watch(self, folder, with_kills):
        """Returns a moment for `test_kills.attempt`: when to kill the process."""
        metrics = folder / "metrics.csv"
        due = self._round + self._generator.randint(*PAUSES)
        next_look = 0.0

        def has_come(process):
            nonlocal due, next_look
            if time.monotonic() < next_look:
                return False
            next_look = time.monotonic() + 0.5
            rows = metrics.read_text().count("\n") - 1 if metrics.exists() else 0
            self._round += max(0, rows - self._rows)
            self._rows = rows
            actors = self._look(process)
            kind = KINDS[self.kills.total() % len(KINDS)]
            if not with_kills or self._round < due or (kind == "actor" and not actors):
                return False
            due = self._round + self._generator.randint(*PAUSES)
            self.kills[kind] += 1
            if kind == "actor":
                self._generator.choice(actors).kill()
            elif kind == "node":
                test_cluster_nodes.kill(self._second)
                self._cluster.remove_node(self._second)
                self.add_second_node()
            return kind == "process"

        return has_come

    def _look(self, training):
        """Takes samples of all processes; returns the actors."""
        actors = []
        for process in set(psutil.Process().children(recursive=True)) - self._before:
            try:
                name = process.name()
                memory = process.memory_info().rss / 2**20
                numbers = process.num_fds(), process.num_threads(), memory
            except psutil.Error:
                continue  # It has just ended.
            self.seen.add(process)
            roles = [role for begin, role in ROLES.items() if name.startswith(begin)]
            if process.pid == training.pid:
                roles = ["training"]
            for role in roles:
                self.samples[role][process].append((self._round, *numbers))
            if "actor" in roles:
                actors.append(process)
        return sorted(actors, key=lambda process: process.pid)


def slopes(samples):
    """How fast the processes of a role grow, by one least-squares slope for all.

    Each process has a level of its own, and its first rounds do not count. Returns the
    growth of each number in 100 rounds; None if no process has lived long enough.
    """
    found = []
    for of_process in samples:
        table = np.asarray(of_process)
        table = table[table[:, 0] >= table[0, 0] + WARM_UP]
        if len(table) and np.ptp(table[:, 0]) >= WARM_UP:
            found.append(table - table.mean(axis=0))
    if not found:
        return None
    rounds, *numbers = np.concatenate(found).T
    return [100 * (rounds @ ys) / (rounds @ rounds) for ys in numbers]


def files(folder):
    # Events of TensorBoard have the time in their names.
    paths = [path for path in folder.rglob("*") if ".tfevents." not in path.name]
    return sorted(str(path.relative_to(folder)) for path in paths)


@pytest.mark.soak
def test_kills_change_no_byte_and_leave_nothing(
    machines, place, tmp_path, monkeypatch, record_property
):
    before = set(psutil.Process().children(recursive=True))
    temporary, log = tmp_path / "temporary", tmp_path / "output.txt"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    cluster = machines()
    observer = Observer(before, cluster)
    place.begin("train", "new")
    flags = (*FLAGS, f"--cluster={cluster.address}")
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    for folder in (unbroken, killed):
        begun, code = time.monotonic(), None
        while code is None:
            moment = observer.watch(folder, with_kills=folder == killed)
            own = [*flags, f"--results_dir={folder}"]
            with log.open("a") as output:
                code = test_kills.attempt(place, own, output, moment)
        said = log.read_text(errors="replace")
        assert code == 0 and "Traceback" not in said, said[-2000:]
        minutes = (time.monotonic() - begun) / 60
        record_property(folder.name, f"{ROUNDS} rounds in {minutes:.1f} minutes")
    record_property("kills", dict(observer.kills))
    assert IS_SHORT or set(observer.kills) == set(KINDS)
    assert files(killed) == files(unbroken)
    for name in ["metrics.csv", *(path.name for path in unbroken.glob("*.npz"))]:
        assert (killed / name).read_bytes() == (unbroken / name).read_bytes(), name
    too_fast = []
    for role in ("training", *ROLES.values()):
        found = slopes(observer.samples[role].values())
        if found is None:
            assert IS_SHORT, f"no {role} has lived long enough"
            continue
        for name, slope in zip(LIMITS, found, strict=True):
            record_property(f"{role}, {name}", f"{slope:+.2f} in 100 rounds")
            if slope > LIMITS[name]:
                too_fast.append((role, name, slope))
    assert not too_fast, too_fast
    test_cluster_nodes.ray.shutdown()
    cluster.shutdown()
    waiting.wait_until(lambda: not any(map(waiting.is_alive, observer.seen)))
    # A killed process leaves what TensorFlow has made of its Python functions.
    left = files(temporary)
    record_property("files of autograph left", len(left))
    assert all(name.startswith("__autograph_generated_file") for name in left), left
