"""The machines of a Ray cluster: which there are, and which version they have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from tff_fedss.errors import InvalidInputError
from tff_fedss.files import error_text
from tff_fedss.runtime import cluster_connection

# How long a machine may take to say which version it has before the first round.
_VERSION_SECONDS = 120.0
# What decides whether the machines compute the same, beside this project itself.
_DISTRIBUTIONS = ("numpy", "ray", "tensorflow", "tensorflow-federated")


def alive() -> dict[str, Any]:
    """The machines of the cluster that are there, as Ray describes them, by id."""
    import ray

    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def name_of(node: Mapping[str, Any]) -> str:
    """How messages call a machine."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def full_errors() -> tuple[type[Exception], ...]:
    """What Ray raises if its memory for objects is full."""
    import ray

    return ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError


def last_line(error: Exception) -> str:
    """What an actor or a task died of: the last line of its exception."""
    import ray

    if isinstance(error, ray.exceptions.RayActorError) and not error.actor_init_failed:
        return "its process was killed (out of memory?)"
    return error_text(str(error).strip().splitlines()[-1])[:500]


def remote(what: Any, node: str, cpus: float, gpus: float, **options: Any) -> Any:
    """Returns Ray's version of a function or class for one machine.

    Args:
        what: The function or class.
        node: The id of the machine.
        cpus: How many CPUs it takes.
        gpus: How many GPUs it takes, and sees.
        **options: Of `ray.remote`.
    """
    import ray
    from ray.util import scheduling_strategies

    made = ray.remote(**options)(what) if options else ray.remote(what)
    return made.options(
        num_cpus=cpus,
        num_gpus=gpus,
        scheduling_strategy=scheduling_strategies.NodeAffinitySchedulingStrategy(
            node, soft=False
        ),
    )


def kill_process(node: str, pid: int) -> None:
    """Kills a process of a machine, without waiting for it."""

    # Sent as code, as below: it needs no import there.
    def kill(pid):
        import os
        import signal

        os.kill(pid, signal.SIGKILL)

    remote(kill, node, 0, 0).remote(pid)


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


class Versions:
    """Which machines have the same version of this project as this process."""

    def __init__(self, address: str, packages: Sequence[str]):
        self._address = address
        self._versions = _version_fn()
        self._asked_for = packages, _DISTRIBUTIONS
        self._asked: dict[str, Any] = {}
        self._is_ours: dict[str, bool] = {}

    def usable(self, nodes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the machines that have the same version, of those of `alive`.

        The first call waits for the machines' answers. A machine that joins later is
        usable as soon as it has answered.

        Raises:
            InvalidInputError: If all of them have another version.
        """
        import ray

        if self._address == cluster_connection.LOCAL:  # This machine.
            return dict(nodes)
        is_first = not self._asked
        for key in nodes.keys() - self._asked.keys():
            asked = remote(self._versions, key, 0, 0).remote(*self._asked_for)
            self._asked[key] = asked
        waiting = [self._asked[key] for key in nodes if key not in self._is_ours]
        done = []
        if waiting:
            done, _ = ray.wait(
                waiting,
                num_returns=len(waiting),
                timeout=_VERSION_SECONDS if is_first else 0,
            )
        for key in [key for key in nodes if self._asked[key] in done]:
            self._is_ours[key] = self._is_same(nodes[key], self._asked[key])
        found = {key: node for key, node in nodes.items() if self._is_ours.get(key)}
        if nodes and not found and nodes.keys() <= self._is_ours.keys():
            raise InvalidInputError(
                f"No machine of the cluster {self._address} has the same version as "
                "this one: all need the same commit of this project and its lock."
            )
        return found

    def _is_same(self, node: Mapping[str, Any], asked: Any) -> bool:
        import ray

        try:
            theirs = ray.get(asked)
        except ray.exceptions.RayError as error:
            why = f"does not say its version: {last_line(error)}"
        else:
            ours = self._versions(*self._asked_for)
            other = [name for name in ours if theirs[name] != ours[name]]
            if not other:
                return True
            why = "has another version: " + ", ".join(
                f"{name} {theirs[name]} instead of {ours[name]}" for name in other
            )
        logging.warning(
            "Not used: %s of the cluster %s %s. All machines need the same commit of "
            "this project and its lock.",
            name_of(node),
            self._address,
            why,
        )
        return False
