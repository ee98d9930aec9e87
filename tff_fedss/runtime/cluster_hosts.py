"""The machines of a Ray cluster, and an actor on each that is of use."""

import collections
import dataclasses
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from tff_fedss.errors import InvalidInputError
from tff_fedss.files import error_text
from tff_fedss.runtime import cluster_actor, cluster_connection
from tff_fedss.runtime.errors import WorkerError

# How long it may take until an actor is there: on a busy machine TensorFlow alone takes
# minutes to load. Until it is told that there is none.
_START_SECONDS = 900.0
_PATIENCE_SECONDS = 60.0
# How long a machine may take to say which version it has.
_PROBE_SECONDS = 120.0
# What decides whether the machines compute the same, beside this project itself.
_DISTRIBUTIONS = ("numpy", "ray", "tensorflow", "tensorflow-federated")


def full_errors() -> tuple[type[Exception], ...]:
    """What Ray raises if its memory for objects is full."""
    import ray

    return ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError


def _version_fn() -> Callable[[Sequence[str], Sequence[str]], dict[str, str]]:
    # A function within another is sent as code: the other machine may not have ours.
    def versions(packages, distributions):
        import hashlib
        import importlib.metadata
        import importlib.util
        import pathlib

        found = {}
        for package in packages:
            spec = importlib.util.find_spec(package)
            if spec is None or spec.origin is None:
                found[package] = "none"
                continue
            root = pathlib.Path(spec.origin).parent
            digest = hashlib.sha256()
            for path in sorted(root.rglob("*.py")):
                digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
                digest.update(path.read_bytes())
            found[package] = digest.hexdigest()[:12]
        for name in distributions:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = "none"
        return found

    return versions


def alive() -> dict[str, Any]:
    """The machines of the cluster that are there, as Ray describes them, by id."""
    import ray

    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


class Versions:
    """Which machines have the same version of this project as this process."""

    def __init__(self, address: str, packages: Sequence[str]):
        """Creates it.

        Args:
            address: Of the cluster.
            packages: Those that must be the same.
        """
        self._address = address
        self._packages = packages
        self._is_ours: dict[str, bool] = {}

    def usable(self, nodes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those machines that are of use.

        Args:
            nodes: From `alive`.

        Raises:
            InvalidInputError: If one of the first that are asked about has another
                version. One that joins later is passed over, with a warning.
        """
        import ray

        new = [key for key in nodes if key not in self._is_ours]
        is_first = not self._is_ours
        if (
            self._address == cluster_connection.LOCAL and len(nodes) == 1
        ):  # This machine.
            self._is_ours.update(dict.fromkeys(new, True))
            new = []
        versions = _version_fn()
        ours = versions(self._packages, _DISTRIBUTIONS) if new else {}
        asked = {
            key: remote(versions, key, 0, 0).remote(self._packages, _DISTRIBUTIONS)
            for key in new
        }
        found = {}
        for key, reference in asked.items():
            try:
                found[key] = ray.get(reference, timeout=_PROBE_SECONDS)
            except ray.exceptions.RayError as error:
                host = nodes[key]["NodeManagerHostname"]
                logging.warning("%s does not answer: %s", host, error_text(error)[:300])
        for key, theirs in found.items():
            message = (
                f"{nodes[key]['NodeManagerHostname']} of the cluster {self._address} "
                "has another version: "
                + ", ".join(
                    f"{name} {theirs[name]} instead of {ours[name]}"
                    for name in ours
                    if theirs[name] != ours[name]
                )
                + ". All machines need the same commit of this project and its lock."
            )
            if theirs != ours and is_first:
                raise InvalidInputError(message)
            if theirs != ours:
                logging.warning("Not used: %s", message)
        self._is_ours.update((key, found.get(key) == ours) for key in new)
        return {key: node for key, node in nodes.items() if self._is_ours[key]}


@dataclasses.dataclass(eq=False)
class Member:
    """An actor of the pool.

    Attributes:
        handle: Ray's.
        node: The id of its machine.
        host: The name of it.
        pid: Of the actor's process there.
        reads_clients: Whether it has the clients' data.
        running: What it is at work on, the oldest first.
    """

    handle: Any
    node: str
    host: str = ""
    pid: int = 0
    reads_clients: bool = False
    running: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Share:
    """What an actor gets of its machine."""

    cpus: float
    gpus: float


class Pool:
    """Actors on the machines of the cluster that this process is connected to.

    Attributes:
        members: Those that are there.
    """

    def __init__(
        self,
        address: str,
        num_actors: int | None,
        gpus_per_actor: float | None,
        clients_per_gpu: int,
        precision: Mapping[str, bool],
        shared: cluster_actor.Shared | None,
        packages: Sequence[str],
    ):
        """Creates it without any actor.

        Args:
            address: For messages.
            num_actors: How many; None: one on each machine or, where there are GPUs,
                as many as these suffice for.
            gpus_per_actor: How many GPUs each has; None: 1, where there are any.
            clients_per_gpu: How many clients train on a GPU at once.
            precision: See `cluster_actor.Actor`.
            shared: How actors come to the clients' data.
            packages: Those that all machines must have in the same version.
        """
        self.members: list[Member] = []
        self._address = address
        self._num_actors = num_actors
        self._gpus_per_actor = gpus_per_actor
        self._clients_per_gpu = clients_per_gpu
        self._precision = precision
        self._shared = None if shared is None else pickle.dumps(shared)
        self._versions = Versions(address, packages)
        self._starting: dict[Any, Member] = {}
        self._since = time.monotonic()
        self._has_warned = False

    @property
    def starting(self) -> list[Any]:
        """What to wait for beside the members' work."""
        return list(self._starting)

    def refresh(self) -> None:
        """Starts the actors that are missing; does not wait for them.

        Raises:
            InvalidInputError: If the cluster cannot have them, or its machines have
                another version of this project.
        """
        shares = self._shares(self._versions.usable(alive()))
        there = [*self.members, *self._starting.values()]
        if not self._starting:
            self._since, self._has_warned = time.monotonic(), False
        missing = sum(map(len, shares.values())) - len(there)
        for node, of_node in shares.items():
            has = sum(member.node == node for member in there)
            for share in of_node[has:]:
                if missing > 0:
                    self._start(node, share)
                    missing -= 1

    def started(self, reference: Any) -> None:
        """Takes in an actor that has started, or has failed to.

        Args:
            reference: One of `starting`, done.
        """
        import ray

        member = self._starting.pop(reference)
        try:
            said: cluster_actor.Started = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            logging.warning(
                "An actor did not start: %s.", error_text(str(error)).rstrip(".")[:500]
            )
            return
        member.host, member.pid = said.host, said.pid
        member.reads_clients = said.reads_clients
        if said.why_not:
            logging.warning(
                "%s cannot read the clients' data, which are sent to it: %s",
                said.host,
                said.why_not,
            )
        self.members.append(member)

    def check_start(self) -> None:
        """Says so if there is still no actor.

        Raises:
            WorkerError: If there is none after a long time.
        """
        seconds = time.monotonic() - self._since
        if self.members or seconds < _PATIENCE_SECONDS:
            return
        message = (
            f"No actor has started within {seconds:.0f} s on the cluster "
            f"{self._address}: its machines are gone or very busy, or others use their "
            "CPUs or GPUs (`ray status` says it)."
        )
        if seconds > _START_SECONDS:
            raise WorkerError(message)
        if not self._has_warned:
            self._has_warned = True
            logging.warning("%s Waiting.", message)

    def drop(self, member: Member) -> None:
        """Does without an actor from now on."""
        import ray

        if member in self.members:
            self.members.remove(member)
            ray.kill(member.handle)

    def close(self) -> None:
        """Ends all actors."""
        import ray

        gone = [*self.members, *self._starting.values()]
        self.members, self._starting = [], {}
        if ray.is_initialized():
            for member in gone:
                ray.kill(member.handle)

    def _start(self, node: str, share: _Share) -> None:
        actor = remote(cluster_actor.Actor, node, share.cpus, share.gpus)
        handle = actor.remote(
            bool(share.gpus),
            self._clients_per_gpu if share.gpus else max(1, int(share.cpus)),
            self._precision,
        )
        self._starting[handle.start.remote(self._shared)] = Member(handle, node)

    def _shares(self, nodes: Mapping[str, Any]) -> dict[str, list[_Share]]:
        """What the actors get that there should be, by machine."""
        resources = {key: node["Resources"] for key, node in nodes.items()}
        gpus = {key: had.get("GPU", 0) for key, had in resources.items()}
        per_actor = self._gpus_per_actor
        if per_actor is None:
            per_actor = 1 if any(gpus.values()) else 0
        most = {key: int(gpus[key] // per_actor) if per_actor else 1 for key in nodes}
        if per_actor and not any(most.values()):
            raise InvalidInputError(
                f"gpus_per_actor={per_actor:g}, but the machines of the cluster "
                f"{self._address} have {', '.join(f'{g:g}' for g in gpus.values())}."
            )
        wanted = self._num_actors
        if wanted is None:
            counts = most
        elif per_actor and wanted > sum(most.values()):
            raise InvalidInputError(
                f"actors={wanted}, but the GPUs of the cluster {self._address} suffice "
                f"for {sum(most.values())} with gpus_per_actor={per_actor:g}."
            )
        else:
            counts = collections.Counter()
            for _ in range(wanted):
                free = [k for k in nodes if not per_actor or counts[k] < most[k]]
                # Where the next one gets the most.
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


def _cpus(resources: Mapping[str, float], num_actors: int) -> float:
    share = resources.get("CPU", 0) / num_actors
    # Ray takes parts of a CPU, but no numbers such as 2.5.
    return float(int(share)) if share >= 1 else int(share * 1000) / 1000


def remote(what: Any, node: str, cpus: float, gpus: float) -> Any:
    """Returns Ray's version of a function or class, for one machine.

    Args:
        what: The function or class.
        node: The id of the machine.
        cpus: How many CPUs it takes.
        gpus: How many GPUs it takes, and sees.
    """
    import ray
    from ray.util import scheduling_strategies

    return ray.remote(what).options(
        num_cpus=cpus,
        num_gpus=gpus,
        scheduling_strategy=scheduling_strategies.NodeAffinitySchedulingStrategy(
            node, soft=False
        ),
    )
