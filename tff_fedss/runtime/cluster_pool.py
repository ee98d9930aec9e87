"""A pool of actors on the machines of a Ray cluster."""

import collections
import contextlib
import dataclasses
import os
import pickle
import signal
import time
from collections.abc import Mapping
from typing import Any

from absl import logging

from tff_fedss.errors import InvalidInputError, check_range
from tff_fedss.runtime import cluster_actor, cluster_machines
from tff_fedss.runtime.errors import WorkerError

# Consecutive failures to start after which a machine is left out.
_MAX_FAILURES = 3
# Time for an actor to start: on a busy machine TensorFlow alone takes minutes to load.
# After the shorter time a warning says that no actor has started.
_START_SECONDS = 900.0
_PATIENCE_SECONDS = 60.0
# Seconds without an answer after which an actor is replaced. Much earlier, the round is
# reported as making no progress.
_ANSWER_SECONDS = 120.0
_STALLED_SECONDS = 2.0
_UPDATE_SECONDS = 1.0


@dataclasses.dataclass(eq=False)
class Member:
    """An actor of the pool.

    Attributes:
        handle: Ray's handle.
        cpus: Number of the machine's CPUs that the actor has.
        pid: Process id of the actor's process there.
        since: The time of the last ping or, before the first one, of the start.
        answers: Whether the actor has answered since the last loss of another actor.
    """

    handle: Any
    node: str
    host: str
    cpus: float
    pid: int = 0
    reads_clients: bool = False
    running: list[Any] = dataclasses.field(default_factory=list)
    ping: Any = None
    since: float = dataclasses.field(default_factory=time.monotonic)
    answers: bool = True


@dataclasses.dataclass(frozen=True)
class _Share:
    """An actor's share of its machine."""

    cpus: float
    gpus: float


class Pool:
    """Actors on the machines of the cluster that this process is connected to.

    A machine whose actors fail to start three times in a row is left out, and tried
    again once a round. One with another version of the project is left out permanently.

    Args:
        address: For messages.
        num_actors: Number of actors; None: one on each machine or, with GPUs, as many
            as the GPUs allow.
        gpus_per_actor: Number of each actor's GPUs; None: 1, if there are any.
        clients_per_gpu: How many clients train on a GPU at once.
        precision: See `cluster_actor.Actor`.
    """

    def __init__(
        self,
        address: str,
        num_actors: int | None,
        gpus_per_actor: float | None,
        clients_per_gpu: int,
        precision: Mapping[str, bool],
    ):
        if num_actors is not None:
            check_range("num_actors", num_actors, 1, whole=True)
        if gpus_per_actor is not None and gpus_per_actor > 1 and gpus_per_actor % 1:
            raise InvalidInputError(
                f"gpus_per_actor={gpus_per_actor:g} must be whole, or at most 1."
            )
        self.members: list[Member] = []
        self._address = address
        self._num_actors = num_actors
        self._gpus_per_actor = gpus_per_actor
        self._clients_per_gpu = clients_per_gpu
        self._precision = precision
        self._shared: bytes | None = None
        self._versions = cluster_machines.versions()
        self._starting: dict[Any, Member] = {}
        # By machine: its consecutive failures, and the message of the last one.
        self._failures: collections.Counter[str] = collections.Counter()
        self._why: dict[str, str] = {}
        self._reported: set[str] = set()
        self._is_checked = False
        self._next_update = 0.0
        self._since = time.monotonic()
        self._has_warned = False

    @property
    def starting(self) -> list[Any]:
        """The tasks to wait for besides the members' work."""
        return list(self._starting)

    @property
    def is_stalled(self) -> bool:
        """Whether no actor is running, or one does not answer."""
        return not self.members or any(
            _seconds_asked(member) > _STALLED_SECONDS for member in self.members
        )

    def share(self, shared: cluster_actor.Shared) -> None:
        """Restarts the actors, with a way to read the clients' data."""
        self.close()
        self._shared = pickle.dumps(shared)
        self.begin_round()

    def begin_round(self) -> None:
        """Retries machines once, and drops surplus actors of a machine."""
        for node, count in self._failures.items():
            if count == _MAX_FAILURES:
                self._warn_of(node)
                self._failures[node] -= 1
        self._since, self._has_warned = time.monotonic(), False
        nodes = self._usable()
        shares = self._shares(nodes)
        for node, of_node in shares.items():
            there = [member for member in self.members if member.node == node]
            for member in there[len(of_node) :]:
                if len(self.members) > sum(map(len, shares.values())):
                    self.drop(member)
        self._start_missing(nodes)

    def update(self) -> list[Member]:
        """Starts missing actors; returns those that no longer answer.

        Raises WorkerError if there is no actor, and none starts.
        """
        now = time.monotonic()
        if now < self._next_update and all(m.answers for m in self.members):
            return []
        self._next_update = now + _UPDATE_SECONDS
        for reference, member in list(self._starting.items()):
            if now - member.since > _START_SECONDS:
                del self._starting[reference]
                self._failures[member.node] = _MAX_FAILURES - 1
                self._failed(member, f"it takes more than {_START_SECONDS:.0f} s")
        self._start_missing(self._usable())
        self._check_start()
        return self._silent()

    def started(self, reference: Any) -> None:
        """Handles an actor of `starting` that has started or failed to start."""
        import ray

        member = self._starting.pop(reference)
        try:
            said: cluster_actor.Started = ray.get(reference)
        except ray.exceptions.RayError as error:
            self._failed(member, cluster_machines.last_line(error))
            return
        other = [k for k, ours in self._versions.items() if said.versions[k] != ours]
        if other:
            differences = (
                f"{k} {said.versions[k]} instead of {self._versions[k]}" for k in other
            )
            self._failed(member, f"it has another version, {', '.join(differences)}")
            self._failures[member.node] = _MAX_FAILURES + 1  # It is not retried.
            return
        del self._failures[member.node]
        member.pid, member.reads_clients = said.pid, said.reads_clients
        if said.why_not:
            logging.warning(
                "%s cannot read the clients' data, which are sent to it: %s",
                member.host,
                said.why_not,
            )
        self.members.append(member)

    def lose(self, member: Member) -> None:
        """Removes an actor that is lost, maybe with others of its machine."""
        self.drop(member)
        for other in self.members:
            other.ping, other.answers = None, False

    def drop(self, member: Member) -> None:
        """Removes an actor."""
        self.members.remove(member)
        self._kill(member)

    def close(self) -> None:
        """Ends all actors."""
        import ray

        gone = [*self.members, *self._starting.values()]
        self.members, self._starting = [], {}
        if ray.is_initialized():
            for member in gone:
                self._kill(member)

    def _kill(self, member: Member) -> None:
        import ray

        ray.kill(member.handle)
        # A stopped process does not see Ray's request to end.
        is_stalled = _seconds_asked(member) > _STALLED_SECONDS
        is_here = (
            self._address == cluster_machines.LOCAL
            and member.node == ray.get_runtime_context().get_node_id()
        )
        if is_here and member.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL if is_stalled else signal.SIGCONT)
        elif is_stalled:
            cluster_machines.kill_process(member.node, member.pid)

    def _usable(self) -> dict[str, Any]:
        """Returns the machines that may have actors now."""
        return {
            key: node
            for key, node in cluster_machines.alive().items()
            if self._failures[key] < _MAX_FAILURES
        }

    def _start_missing(self, nodes: Mapping[str, Any]) -> None:
        for key, of_node in self._shares(nodes).items():
            there = [
                member
                for member in (*self.members, *self._starting.values())
                if member.node == key
            ]
            free = nodes[key]["Resources"].get("CPU", 0) - sum(m.cpus for m in there)
            missing = of_node[len(there) :]
            if self._failures[key]:  # One after another.
                is_starting = any(m.node == key for m in self._starting.values())
                missing = missing[: not is_starting]
            for share in missing:
                if share.cpus <= round(free, 3):  # Sums of 0.1 are not exact.
                    free -= share.cpus
                    self._start(key, cluster_machines.name_of(nodes[key]), share)

    def _start(self, node: str, host: str, share: _Share) -> None:
        actor = cluster_machines.remote(
            cluster_actor.Actor,
            node,
            share.cpus,
            share.gpus,
            concurrency_groups={"ping": 1},
        )
        handle = actor.remote(
            bool(share.gpus),
            self._clients_per_gpu if share.gpus else max(1, int(share.cpus)),
            self._precision,
        )
        member = Member(handle, node, host, share.cpus)
        self._starting[handle.start.remote(self._shared)] = member

    def _failed(self, member: Member, why: str) -> None:
        self._kill(member)
        self._failures[member.node] = min(
            self._failures[member.node] + 1, _MAX_FAILURES
        )
        self._why[member.node] = (
            f"{member.host} of the cluster {self._address} starts no actor: {why}. It "
            "needs this commit of the project, its lock, and free memory"
        )

    def _check_start(self) -> None:
        """Warns of machines that start no actor; raises an error if none does."""
        out = [key for key, n in self._failures.items() if n >= _MAX_FAILURES]
        if out and not self.members and not self._starting:
            raise WorkerError(f"{self._why[out[-1]]}.")
        for key in out:
            self._warn_of(key)
        if self.members:
            self._since, self._has_warned = time.monotonic(), False
            return
        seconds = time.monotonic() - self._since
        message = (
            f"No actor has started within {seconds:.0f} s on the cluster "
            f"{self._address}: its machines are gone or very busy, or others use "
            "their CPUs or GPUs (see `ray status`)."
        )
        if seconds > _START_SECONDS:
            raise WorkerError(message)
        if seconds > _PATIENCE_SECONDS and not self._has_warned:
            self._has_warned = True
            logging.warning("%s Waiting.", message)

    def _warn_of(self, node: str) -> None:
        if node not in self._reported:
            self._reported.add(node)
            logging.warning("%s. Left out.", self._why[node])

    def _silent(self) -> list[Member]:
        """Pings the members; returns those that do not answer, or have died."""
        import ray

        dead = []
        asked = {member.ping: member for member in self.members if member.ping}
        if asked:
            answered, _ = ray.wait([*asked], num_returns=len(asked), timeout=0)
            for ping in answered:
                member = asked[ping]
                try:
                    ray.get(ping)
                    member.ping, member.answers = None, True
                except ray.exceptions.RayError:
                    dead.append(member)
        for member in self.members:
            if member.ping is None:
                ping = member.handle.ping.options(concurrency_group="ping")
                member.ping, member.since = ping.remote(), time.monotonic()
        silent = [m for m in self.members if _seconds_asked(m) > _ANSWER_SECONDS]
        return dead + [member for member in silent if member not in dead]

    def _shares(self, nodes: Mapping[str, Any]) -> dict[str, list[_Share]]:
        """Returns the shares of the actors that should run, by machine."""
        resources = {key: node["Resources"] for key, node in nodes.items()}
        gpus = {key: had.get("GPU", 0) for key, had in resources.items()}
        if self._gpus_per_actor is None and nodes:
            # Once: a run that went from GPUs to CPUs would get other results.
            self._gpus_per_actor = 1 if any(gpus.values()) else 0
        per_actor = self._gpus_per_actor or 0
        most = {
            key: _most_actors(gpus[key], per_actor)
            if per_actor
            else int(had.get("CPU", 0) > 0)
            for key, had in resources.items()
        }
        wanted = self._num_actors
        if per_actor:
            self._check_gpus(per_actor, gpus, sum(most.values()))
            wanted = min(wanted or sum(most.values()), sum(most.values()))
        if wanted is None or not any(most.values()):
            counts = most
        else:
            counts = collections.Counter()
            for _ in range(wanted):
                free = [
                    k
                    for k in nodes
                    if most[k] and (not per_actor or counts[k] < most[k])
                ]
                # The machine where the next actor gets the largest share.
                counts[
                    max(
                        free, key=lambda k: resources[k].get("CPU", 0) / (counts[k] + 1)
                    )
                ] += 1
        return {
            key: [_Share(_cpus(resources[key], counts[key]), per_actor)] * counts[key]
            for key in nodes
            if counts[key]
        }

    def _check_gpus(
        self, per_actor: float, gpus: Mapping[str, float], most: int
    ) -> None:
        """Raises InvalidInputError if there are too few GPUs when the run begins."""
        if self._is_checked:
            return
        if most < (self._num_actors or 1):
            raise InvalidInputError(
                f"gpus_per_actor={per_actor:g}: the machines of the cluster "
                f"{self._address} have {', '.join(f'{g:g}' for g in gpus.values())} "
                f"GPUs, enough for {most} of {self._num_actors or 1} actors."
            )
        self._is_checked = True


def _seconds_asked(member: Member) -> float:
    """Returns for how long a member has not answered."""
    return 0.0 if member.ping is None else time.monotonic() - member.since


def _most_actors(num_gpus: float, per_actor: float) -> int:
    """Returns how many actors a machine's GPUs allow; a part lies within one GPU."""
    # Ray's numbers are floats: one GPU has five parts of 0.2.
    if per_actor < 1:
        return int(num_gpus) * int(1 / per_actor + 1e-6)
    return int(num_gpus / per_actor + 1e-6)


def _cpus(resources: Mapping[str, float], num_actors: int) -> float:
    share = resources.get("CPU", 0) / num_actors
    # Ray takes parts of a CPU, but no numbers such as 2.5.
    return float(int(share)) if share >= 1 else int(share * 1000) / 1000
