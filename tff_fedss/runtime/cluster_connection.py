"""Reaching a Ray cluster, or saying in a line why that cannot be."""

import os
import signal
import socket
import threading
import warnings

from tff_fedss.errors import InvalidInputError
from tff_fedss.files import error_text

LOCAL = "local"
_AUTO = "auto"
_BY_CLIENT = "ray://"
_CONNECT_SECONDS = 10.0
# A machine that is busy may be slow to answer.
_ANSWER_SECONDS = 60.0


def connect(address: str) -> None:
    """Connects this process to a cluster, unless it is connected.

    Args:
        address: "local": a cluster of this machine alone, which ends with this process.
            "auto": the one that this machine is a part of, or that RAY_ADDRESS names.
            "host:port": likewise, by the address of its first machine. "ray://...":
            one that this machine is not a part of.

    Raises:
        InvalidInputError: If there is no such cluster, or no Ray.
    """
    try:
        import ray
    except ImportError as error:
        raise InvalidInputError(
            f"cluster={address} needs Ray, which is not installed here: "
            f"./run.sh setup installs it ({error})."
        ) from error
    if ray.is_initialized():
        return
    # Nothing is to be reported to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options = {}
    if address == LOCAL:
        # Ray's workers would give way to everything else on a busy machine, such as to
        # this process, which waits for them.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Nobody looks at what Ray keeps of each task, a few kB.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
        where = address
        options = {
            "num_cpus": len(os.sched_getaffinity(0)),
            "include_dashboard": False,
        }
    else:
        where = _find(address)
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
        raise _unreachable(address, error_text(error).split(". ")[0]) from error
    finally:
        os.chdir(here)
        if in_main_thread:  # Ray sets its own, which ends the process at once.
            signal.signal(signal.SIGTERM, handler)


def _find(address: str) -> str:
    """Returns where a cluster is.

    Ray itself would try for minutes where nobody answers, or for ever where somebody
    else does; and "auto" may be the cluster of another run of this machine.

    Raises:
        InvalidInputError: If there is none.
    """
    from ray._private import utils

    where = address
    if address == _AUTO:
        where = os.environ.get("RAY_ADDRESS") or utils.read_ray_address()
        if not where or where == _AUTO:
            raise InvalidInputError(
                f"cluster={address}: this machine is not a part of a cluster. `ray "
                "start` makes it one, and RAY_ADDRESS names another "
                "(docs/several_machines.md)."
            )
    host, _, port = where.removeprefix(_BY_CLIENT).rpartition(":")
    if not port.isdecimal():  # Such as those of Ray on Kubernetes.
        return where
    name = address if where == address else f"{address} ({where})"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            pass
    except OSError as error:
        raise _unreachable(name, error_text(error)) from error
    if not where.startswith(_BY_CLIENT):
        _check_is_ray(name, where)
    return where


def _check_is_ray(name: str, address: str) -> None:
    """Raises an InvalidInputError if what listens is not Ray, or another one."""
    import grpc
    import ray
    from ray._private.utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    channel = init_grpc_channel(address)
    try:
        reply = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).CheckAlive(
            gcs_service_pb2.CheckAliveRequest(), timeout=_ANSWER_SECONDS
        )
    except grpc.RpcError as error:
        raise _unreachable(
            name,
            "what listens there is not the first machine of a cluster, whose port "
            f"`ray start --head` tells ({error_text(error.details())[:150]})",
        ) from error
    finally:
        channel.close()
    if reply.ray_version != ray.__version__:
        raise InvalidInputError(
            f"cluster={name} has Ray {reply.ray_version}, and this machine has "
            f"{ray.__version__}. All machines need the same commit of this project and "
            "its lock."
        )


def _unreachable(name: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"cluster={name} cannot be reached: {reason[:300]}. Has `ray start` been "
        "run there? (docs/several_machines.md)"
    )
