"""The flags of a program's runtime, devices and precision."""

import dataclasses
import re
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from experiments.common import config
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError

_TOPIC = "Where it runs"


@dataclasses.dataclass(frozen=True)
class GpuConfig(config.Config):
    """Flags of all programs that compute. See docs/gpus.md."""

    num_gpus: int | None = config.flag(
        None,
        "How many GPUs to use. Default: all that TensorFlow sees.",
        group=_TOPIC,
        low=0,
        decides=False,
    )
    deterministic: bool | None = config.flag(
        None,
        "Same seed, same bytes also on a GPU: its kernels add in a fixed order, "
        "some of them slower. CPUs do not need it, and compute other bytes with it. "
        "A published --cell sets it if there are GPUs.",
        group=_TOPIC,
        off=False,
    )
    precision: str | None = config.flag(
        None,
        "`tf32`: GPUs of Ampere and later use 10 bits of the mantissas of float32 "
        "factors, which is faster, and less exact; it changes nothing on a CPU. "
        "Default: float32.",
        group=_TOPIC,
        choices=("float32", "tf32"),
        off="float32",
    )

    @property
    def used_gpus(self) -> int | None:
        """Number of GPUs that TensorFlow uses in this process; None: all."""
        return self.num_gpus

    @property
    def clients_at_once(self) -> int:
        """Number of clients that train on a GPU at once."""
        return 1


@dataclasses.dataclass(frozen=True)
class DeviceConfig(GpuConfig):
    """Flags of programs that train networks."""

    precision: str | None = config.flag(
        None,
        "`tf32`: GPUs of Ampere and later use 10 bits of the mantissas of float32 "
        "factors, which is faster, and less exact; it changes nothing on a CPU. "
        "`mixed`: phi computes in bfloat16; weights, their sums, normalizations, "
        "embeddings and losses stay float32. For GPUs of Ampere and later. Default: "
        "float32.",
        group=_TOPIC,
        choices=("float32", "tf32", "mixed"),
        off="float32",
    )


def configure_gpus(asked: config.Config) -> None:
    """Applies the flags, before TensorFlow is used.

    Raises:
        InvalidInputError: If TensorFlow does not see enough GPUs.
    """
    if not isinstance(asked, GpuConfig):
        runtime.configure_gpus()
        return
    runtime.configure_gpus(
        asked.used_gpus,
        clients_per_gpu=asked.clients_at_once,
        deterministic=bool(asked.deterministic),
        tf32=asked.precision == "tf32",
        mixed_precision=asked.precision == "mixed",
    )


@dataclasses.dataclass(frozen=True)
class RuntimeConfig(DeviceConfig):
    """Flags of the runtime of TFF's computations."""

    # It decides results: the order of sums differs.
    runtime: str = config.flag(
        "auto",
        "What runs the rounds. `in_process`: this process, on its GPUs, or on its "
        "CPU cores with a client on each. `native`: TFF's own runtime, on CPUs. "
        "`cluster`: the cluster of --cluster, by default `local`. `auto`: "
        "in_process, or cluster with --cluster.",
        group=_TOPIC,
        choices=("auto", "native", "in_process", "cluster"),
    )
    clients_per_gpu: int = config.flag(
        1,
        "How many clients train on a GPU at once, each with its part of the memory: "
        "more use it better.",
        low=1,
        decides=False,
    )
    xla: bool | None = config.flag(
        None,
        "Let XLA compile the step of a client: on a GPU few large kernels instead "
        "of many small ones. Compilation takes time, and it is slower on a CPU.",
        off=False,
    )
    cluster: str | None = config.flag(
        None,
        "Train clients on a Ray cluster instead of in this process "
        "(docs/several_machines.md). `local`: one of this machine alone, for this "
        "run. `auto`: the one that this machine is a part of (`ray start`). "
        "`ray://host:port`: another. The results of a run are the same on all of "
        "them.",
        decides=False,
    )
    actors: int | None = config.flag(
        None,
        "Number of processes on the cluster that train clients. Default: one on "
        "each machine, or as many as its GPUs allow.",
        low=1,
        decides=False,
    )
    gpus_per_actor: float | None = config.flag(
        None,
        "Number of GPUs of each of --actors: 0 for none, 0.5 for two on one GPU. "
        "Default: 1, if the cluster has GPUs.",
        low=0,
        decides=False,
    )

    @property
    def used_gpus(self) -> int | None:
        """Number of GPUs of this process; if others train, evaluation uses none."""
        is_elsewhere = self.runtime in ("native", "cluster") or self.cluster is not None
        return 0 if is_elsewhere else self.num_gpus

    @property
    def clients_at_once(self) -> int:
        """Number of clients that train on a GPU at once."""
        return self.clients_per_gpu


_ConfigT = TypeVar("_ConfigT", bound=RuntimeConfig)

# A name, an IPv4 address or an IPv6 address in brackets.
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Resolves --runtime=auto.

    Raises:
        InvalidInputError: If the flags do not suit each other or this machine.
    """
    _check_cluster(config)
    if config.runtime == "auto":
        name = "cluster" if config.cluster else "in_process"
        config = dataclasses.replace(config, runtime=name)
    if config.runtime == "native" and config.num_gpus:
        raise InvalidInputError(
            f"--num_gpus={config.num_gpus} needs --runtime=in_process: TFF's own "
            "runtime (--runtime=native) cannot use GPUs."
        )
    if config.runtime == "native" and config.xla:
        raise InvalidInputError(
            "--xla needs --runtime=in_process: TFF's own runtime has no XLA."
        )
    return config


def install(config: RuntimeConfig) -> Callable[[], None]:
    """Makes the runtime the default context, after `configure_gpus`.

    Returns:
        A function to call after the first round: it raises RuntimeError if GPUs are
        used but clients did not train on them.

    Raises:
        InvalidInputError: See `with_defaults`.
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
            deterministic=bool(config.deterministic),
            tf32=config.precision == "tf32",
        )
        return lambda: None  # Its actors check this themselves.
    context = runtime.set_in_process_context(
        clients_per_device=runtime.clients_per_device(config.clients_per_gpu)
    )

    def check() -> None:
        used = sorted(context.client_devices)
        if not tf.config.get_visible_devices("GPU"):
            return
        if not any("GPU" in device for device in used) or context.trained_on_host:
            raise RuntimeError(
                f"Clients should have trained on {', '.join(context.devices)}, but "
                + (
                    "they train in a function of tf.data, which runs on the CPU."
                    if context.trained_on_host
                    else f"their results come from {', '.join(used) or 'nowhere'}."
                )
            )

    return check


def check_address(cluster: str) -> None:
    """Raises InvalidInputError if --cluster has no valid value."""
    host, _, port = cluster.removeprefix("ray://").rpartition(":")
    is_address = _HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536
    if cluster not in ("auto", "local") and not is_address:
        raise InvalidInputError(
            "--cluster takes local, auto, or an address such as "
            f"ray://10.0.0.5:10001, found '{cluster}'."
        )


def _check_cluster(config: RuntimeConfig) -> None:
    """Checks the flags of a cluster, also without one."""
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
