"""The flags of a program's runtime, devices and precision."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from experiments.common import config
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError

_TOPIC = "Where it runs"
# The runtimes that each of these flags is for.
_RUNTIMES = {
    "num_gpus": ("in_process",),
    "xla": ("in_process", "cluster"),
    "actors": ("cluster",),
    "gpus_per_actor": ("cluster",),
}


@dataclasses.dataclass(frozen=True)
class DeviceConfig(config.Config):
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
        off=False,
    )
    precision: str | None = config.flag(
        None,
        "`tf32`: GPUs of Ampere and later use 10 bits of the mantissas of float32 "
        "factors, which is faster, and less exact; it changes nothing on a CPU. "
        "`mixed`: phi computes in bfloat16; weights, their sums, normalizations, "
        "embeddings and losses stay float32, and so do exported encoders. For GPUs of "
        "Ampere and later. Default: float32.",
        choices=("float32", "tf32", "mixed"),
        off="float32",
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
        "more clients use the GPU better.",
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


def configure_gpus(asked: config.Config) -> None:
    """Applies the flags, before TensorFlow is used.

    Raises:
        InvalidInputError: If TensorFlow does not see enough GPUs.
    """
    if not isinstance(asked, DeviceConfig):
        runtime.configure_gpus()
        return
    # If other processes train, evaluation in this one uses no GPU.
    is_elsewhere = isinstance(asked, RuntimeConfig) and (
        asked.runtime in ("native", "cluster") or asked.cluster is not None
    )
    runtime.configure_gpus(
        0 if is_elsewhere else asked.num_gpus,
        clients_per_gpu=getattr(asked, "clients_per_gpu", 1),
        deterministic=bool(asked.deterministic),
        tf32=asked.precision == "tf32",
        mixed_precision=asked.precision == "mixed",
    )


_ConfigT = TypeVar("_ConfigT", bound=RuntimeConfig)


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Resolves --runtime=auto.

    Raises:
        InvalidInputError: If a flag is not for this runtime.
    """
    name = config.runtime
    if name == "auto":
        name = "cluster" if config.cluster else "in_process"
    if config.cluster and name != "cluster":
        raise InvalidInputError(
            f"--cluster={config.cluster} does not go with --runtime={name}, which is "
            "for this process alone."
        )
    for flag, runtimes in _RUNTIMES.items():
        value = getattr(config, flag)
        if value is not None and name not in runtimes:
            raise InvalidInputError(
                f"--{flag}={value} needs --runtime={' or '.join(runtimes)}, found "
                f"{name}."
            )
    return dataclasses.replace(config, runtime=name)


def install(config: RuntimeConfig, has_clients: bool = True) -> Callable[[], None]:
    """Makes the runtime the default context, after `configure_gpus`.

    Args:
        config: The flags, see `with_defaults`.
        has_clients: Whether it will train clients.

    Returns:
        A function to call after the first round: it raises RuntimeError if GPUs are
        used but clients did not train on them.

    Raises:
        InvalidInputError: If there is no such cluster.
    """
    if has_clients and not tf.config.get_visible_devices("GPU"):
        # Too late if another run has been in this process, as in tests.
        with contextlib.suppress(RuntimeError):
            runtime.use_one_thread_per_operation()
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
        is_on_gpu = any("GPU" in device for device in context.client_devices)
        if not tf.config.get_visible_devices("GPU"):
            return
        if context.trained_on_host or not is_on_gpu:
            raise RuntimeError(
                f"Clients should have trained on {', '.join(context.devices)}, but "
                "they trained on the CPU."
            )

    return check
