"""The flags that say where TFF computations run."""

import dataclasses
import re
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from experiments.common import config
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class RuntimeConfig(config.Config):
    """Where TFF computations run."""

    # It decides results: the order of sums differs.
    runtime: str = config.flag(
        "auto",
        "What runs the rounds. `in_process`: this process, on its GPUs, or on its CPU "
        "cores with a client on each. `native`: TFF's own runtime, on CPUs. `cluster`: "
        "as --cluster says, by default `local`. `auto`: in_process, or cluster with "
        "--cluster.",
        group="Where it runs",
        choices=("auto", "native", "in_process", "cluster"),
    )
    num_gpus: int | None = config.flag(
        None,
        "How many GPUs to use. Default: all that TensorFlow sees.",
        low=0,
        decides=False,
    )
    clients_per_gpu: int = config.flag(
        1,
        "How many clients train on a GPU at once: more keep it busier and need more of "
        "its memory.",
        low=1,
        decides=False,
    )
    cluster: str | None = config.flag(
        None,
        "Where clients train, if not in this process: on a Ray cluster "
        "(docs/several_machines.md). `local`: one of this machine alone, for this run. "
        "`auto`: the one that this machine is a part of (`ray start`). "
        "`ray://host:port`: another. What comes out of a run is the same on all of "
        "them.",
        decides=False,
    )
    actors: int | None = config.flag(
        None,
        "On how many processes of the cluster. Default: one on each machine, or as "
        "many as its GPUs suffice for.",
        low=1,
        decides=False,
    )
    gpus_per_actor: float | None = config.flag(
        None,
        "How many GPUs each of them has: 0 for none, 0.5 for two on one GPU. Default: "
        "1, if the cluster has GPUs.",
        low=0,
        decides=False,
    )


_ConfigT = TypeVar("_ConfigT", bound=RuntimeConfig)

# A name, an IPv4 address or an IPv6 address in brackets.
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Gives --runtime=auto its meaning.

    Raises:
        InvalidInputError: If the flags do not go with each other, or not with this
            machine.
    """
    _check_cluster(config)
    _num_gpus(config)
    if config.runtime == "auto":
        name = "cluster" if config.cluster else "in_process"
        config = dataclasses.replace(config, runtime=name)
    if config.runtime == "native" and config.num_gpus:
        raise InvalidInputError(
            f"--num_gpus={config.num_gpus} needs --runtime=in_process: TFF's own "
            "runtime (--runtime=native) cannot use GPUs."
        )
    return config


def install(config: RuntimeConfig) -> Callable[[], None]:
    """Makes the runtime the default context. Call it before TensorFlow is used.

    Returns:
        What to call after the first round: it raises a RuntimeError if GPUs are in use
        and clients did not train on them.

    Raises:
        InvalidInputError: As `with_defaults`.
    """
    config = with_defaults(config)
    if config.runtime == "native":
        runtime.set_native_context()
        return lambda: None
    if config.runtime == "cluster":
        runtime.set_cluster_context(
            config.cluster or "local",
            num_actors=config.actors,
            gpus_per_actor=config.gpus_per_actor,
            clients_per_gpu=config.clients_per_gpu,
        )
        return lambda: None  # Its actors check that themselves.
    gpus = tf.config.list_physical_devices("GPU")[: _num_gpus(config)]
    if gpus != tf.config.get_visible_devices("GPU"):
        tf.config.set_visible_devices(gpus, "GPU")
    context = runtime.set_in_process_context(
        clients_per_device=config.clients_per_gpu if gpus else None
    )

    def check() -> None:
        used = sorted(context.client_devices)
        if gpus and not any("GPU" in device for device in used):
            raise RuntimeError(
                f"Clients should have trained on {', '.join(context.devices)}, but "
                f"their results come from {', '.join(used) or 'nowhere'}."
            )

    return check


def check_address(cluster: str) -> None:
    """Raises an InvalidInputError if --cluster has no value that it could have."""
    host, _, port = cluster.removeprefix("ray://").rpartition(":")
    is_address = _HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536
    if cluster not in ("auto", "local") and not is_address:
        raise InvalidInputError(
            "--cluster takes local, auto, or an address such as "
            f"ray://10.0.0.5:10001, found '{cluster}'."
        )


def _check_cluster(config: RuntimeConfig) -> None:
    """Checks the flags of a cluster, whether or not there is to be one."""
    for name in ("actors", "gpus_per_actor"):
        if getattr(config, name) is not None and config.cluster is None:
            raise InvalidInputError(
                f"--{name}={getattr(config, name)} needs --cluster, such as "
                "--cluster=local."
            )
    if config.cluster is None:
        return
    check_address(config.cluster)
    if config.runtime not in ("auto", "cluster"):
        raise InvalidInputError(
            f"--cluster={config.cluster} does not go with --runtime={config.runtime}, "
            "which is for this process alone."
        )
    if config.num_gpus is not None:
        raise InvalidInputError(
            f"--num_gpus={config.num_gpus} does not go with --cluster: "
            "--gpus_per_actor says how many GPUs each of its --actors has."
        )


def _num_gpus(config: RuntimeConfig) -> int:
    seen = len(tf.config.list_physical_devices("GPU"))
    if config.num_gpus is None:
        return seen
    if config.num_gpus > seen:
        raise InvalidInputError(
            f"--num_gpus={config.num_gpus}, but TensorFlow sees {seen}. "
            "(docs/gpus.md says what TensorFlow needs to see them.)"
        )
    return config.num_gpus
