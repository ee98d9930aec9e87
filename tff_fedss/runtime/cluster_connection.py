"""The connection of this process to a Ray cluster."""

import os
import pathlib
import signal
import socket
import tempfile
import threading
import warnings

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
    # Nothing is to be reported to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Where something else listens, Ray would try for 12 minutes.
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
        # Ray's workers would give way to everything else on a busy machine, such as to
        # this process, which waits for them.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Nobody looks at what Ray keeps of each task, a few kB.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
        options = {
            "num_cpus": len(os.sched_getaffinity(0)),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    elif _is_here(where.rpartition(":")[0]):
        # Of several nodes on this machine Ray would take any, which may go.
        options = {"_node_ip_address": where.rpartition(":")[0]}
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    here = os.getcwd()
    try:
        # Ray has all processes of the cluster look for modules in the current folder,
        # where a random.py of the user's may be.
        os.chdir("/")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It says what it then raises.
            ray.init(
                address=where, log_to_driver=False, logging_level="critical", **options
            )
    except Exception as error:  # Ray's own are of many kinds.
        ray.shutdown()
        raise _unreachable(address, where, error_text(error)) from error
    finally:
        os.chdir(here)
        if in_main_thread:  # Ray sets its own, which ends the process at once.
            signal.signal(signal.SIGTERM, handler)


def _find(address: str) -> str:
    """Returns where a cluster is, if something listens there.

    Ray's own "auto" may be the local cluster of another run on this machine, and it
    takes half a minute to say that nothing listens.

    Raises:
        InvalidInputError: If there is no cluster.
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
        except OSError as error:
            raise _unreachable(address, where, error_text(error)) from error
    return where


def _is_here(host: str) -> bool:
    """Whether an IPv4 address, not a name or 127.0.0.1, is this machine's."""
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
        "there, with the same version of Ray? (docs/several_machines.md)"
    )
