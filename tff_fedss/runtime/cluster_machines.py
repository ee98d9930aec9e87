"""The connection to a Ray cluster, its machines and their versions."""

import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedss.errors import InvalidInputError
from tff_fedss.files import error_text

LOCAL = "local"
_AUTO = "auto"
_BY_CLIENT = "ray://"
_CONNECT_SECONDS = 10.0


def connect(address: str) -> None:
    """Connects this process to a cluster, unless it is connected.

    Args:
        address: "local": a cluster of this machine alone, which ends with this process
            and listens on 127.0.0.1 only. "auto": the one that this machine is a part
            of, or that RAY_ADDRESS names. "host:port": the one whose first machine has
            that address. "ray://host:port": one that this machine is not a part of.

    Raises:
        InvalidInputError: If there is no such cluster, or no Ray.
    """
    # No usage reports are sent.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # If another program listens there, Ray would try for 12 minutes.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    try:
        import ray
    except ImportError as error:
        raise InvalidInputError(
            f"cluster={address} needs Ray, which is not installed here: "
            f"./run.sh setup installs it ({error})."
        ) from error
    if ray.is_initialized():
        return
    where = _find(address)
    options = {}
    if address == LOCAL:
        # Ray's workers would have a lower priority than all else on a busy machine,
        # such as this process, which waits for them.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Ray's records of each task, a few kB, are not used.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
        options = {
            "num_cpus": len(os.sched_getaffinity(0)),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    elif _is_here(where.rpartition(":")[0]):
        # Of several nodes on this machine Ray would use any, which may end.
        options = {"_node_ip_address": where.rpartition(":")[0]}
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    here = os.getcwd()
    try:
        # Ray adds the current folder, where the user may have a random.py, to the
        # module path of all processes of the cluster.
        os.chdir("/")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It logs the error that it then raises.
            ray.init(
                address=where, log_to_driver=False, logging_level="critical", **options
            )
    except Exception as error:  # Ray raises many kinds of errors.
        ray.shutdown()
        raise _unreachable(address, where, error_text(error)) from error
    finally:
        os.chdir(here)
        if in_main_thread:  # Ray's handler ends the process at once.
            signal.signal(signal.SIGTERM, handler)


def _find(address: str) -> str:
    """Returns a cluster's address, if a program listens there, else InvalidInputError.

    Ray's own "auto" may be the local cluster of another run on this machine, and it
    takes half a minute to report that no program listens.
    """
    where = address
    if address == _AUTO:
        folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        written = pathlib.Path(folder, "ray", "ray_current_cluster")  # By `ray start`.
        where = os.environ.get("RAY_ADDRESS", "")
        if not where and written.exists():
            where = written.read_text().strip()
        if where in ("", _AUTO):
            raise InvalidInputError(
                f"cluster={address}: this machine is not a part of a cluster. `ray "
                "start` makes it one, and RAY_ADDRESS names another "
                "(docs/several_machines.md)."
            )
    host, _, port = where.removeprefix(_BY_CLIENT).rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), _CONNECT_SECONDS
            ).close()
        except (OSError, UnicodeError, OverflowError) as error:
            raise _unreachable(address, where, error_text(error)) from error
    return where


def _is_here(host: str) -> bool:
    """Returns whether an IPv4 address, not a name or 127.0.0.1, is this machine's."""
    try:
        socket.inet_aton(host)
        with socket.socket() as listener:
            listener.bind((host, 0))
    except OSError:
        return False
    return host != "127.0.0.1"


def _unreachable(address: str, where: str, why: str) -> InvalidInputError:
    name = address if where == address else f"{address} ({where})"
    return InvalidInputError(
        f"cluster={name} cannot be reached: {why[:300]}. Has `ray start` been run "
        "there, with the same version of Ray and the same token, if any? "
        "(docs/several_machines.md)"
    )


# Distributions that, besides the project, decide whether machines compute the same.
_DISTRIBUTIONS = ("numpy", "ray", "tensorflow", "tensorflow-federated")


def alive() -> dict[str, Any]:
    """Returns Ray's descriptions of the cluster's running machines, by id."""
    import ray

    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def name_of(node: Mapping[str, Any]) -> str:
    """Returns a machine's name in messages."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def full_errors() -> tuple[type[Exception], ...]:
    """Returns the errors that Ray raises if its object memory is full."""
    import ray

    return ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError


def last_line(error: Exception) -> str:
    """Returns why an actor or a task died: the last line of its exception."""
    import ray

    if isinstance(error, ray.exceptions.RayActorError) and not error.actor_init_failed:
        return "its process was killed (out of memory?)"
    return error_text(str(error).strip().splitlines()[-1])[:500]


def remote(what: Any, node: str, cpus: float, gpus: float, **options: Any) -> Any:
    """Returns Ray's version of a function or class for a machine, with its options."""
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

    # A nested function is sent as code: the machine needs no import.
    def kill(pid):
        import os
        import signal

        os.kill(pid, signal.SIGKILL)

    remote(kill, node, 0, 0).remote(pid)


def versions(packages: Sequence[str] = ("tff_fedss",)) -> dict[str, str]:
    """Returns what decides whether two machines compute the same, by name.

    Args:
        packages: Names of packages, whose value is a digest of their code. Installed
            distributions that matter as well have their version.
    """
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
    for name in _DISTRIBUTIONS:
        found[name] = importlib.metadata.version(name)
    return found
