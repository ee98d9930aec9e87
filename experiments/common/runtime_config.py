"""The flags that say where TFF computations run."""

import collections
import dataclasses
import re
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from experiments.common import config, device_config
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class RuntimeConfig(device_config.DeviceConfig):
    """Where TFF computations run."""

    # It decides results: the order of sums differs.
    runtime: str = config.flag(
        "auto",
        "What runs the rounds. `in_process`: this process, on its GPUs, or on its CPU "
        "cores with a client on each. `native`: TFF's own runtime, on CPUs. `auto`: "
        "in_process, or native with --workers, which needs it.",
        group="Where it runs",
        choices=("auto", "native", "in_process"),
    )
    clients_per_gpu: int = config.flag(
        1,
        "How many clients train on a GPU at once, each with its part of the memory: "
        "more keep it busier.",
        low=1,
        decides=False,
    )
    workers: tuple[str, ...] | None = config.flag(
        None,
        "host:port,...: the machines that the clients train on, each with a worker "
        "(`./run.sh worker --port=P`), inside a trusted network. Default: this "
        "machine, with a worker of its own.",
        decides=False,
    )

    @property
    def used_gpus(self) -> int | None:
        """See `GpuConfig`: TFF's own runtime cannot use any, nor is evaluation to."""
        return 0 if self.runtime == "native" or self.workers else self.num_gpus

    @property
    def clients_at_once(self) -> int:
        """See `GpuConfig`."""
        return self.clients_per_gpu


_ConfigT = TypeVar("_ConfigT", bound=RuntimeConfig)

# A name, an IPv4 address or an IPv6 address in brackets.
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Gives --runtime=auto its meaning.

    Raises:
        InvalidInputError: If the flags do not go with each other, or not with this
            machine.
    """
    if config.workers is not None:
        _check_workers(config)
    if config.runtime == "auto":
        name = "native" if config.workers else "in_process"
        config = dataclasses.replace(config, runtime=name)
    if config.runtime == "native" and config.num_gpus:
        raise InvalidInputError(
            f"--num_gpus={config.num_gpus} needs --runtime=in_process: TFF's own "
            "runtime (--runtime=native) cannot use GPUs."
        )
    return config


def install(config: RuntimeConfig) -> Callable[[], None]:
    """Makes the runtime the default context, after `device_config.configure_gpus`.

    Returns:
        What to call after the first round: it raises a RuntimeError if GPUs are in use
        and clients did not train on them.

    Raises:
        InvalidInputError: As `with_defaults`.
    """
    config = with_defaults(config)
    if config.runtime == "native":
        if config.workers:
            runtime.set_remote_context(config.workers)
        else:
            runtime.set_native_context()
        return lambda: None
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


def _check_workers(config: RuntimeConfig) -> None:
    for worker in config.workers or [""]:
        host, _, port = worker.rpartition(":")
        if not (_HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536):
            raise InvalidInputError(
                "--workers takes host:port,..., such as 10.0.0.5:8000,10.0.0.6:8000, "
                f"found '{worker}'."
            )
    twice = [w for w, n in collections.Counter(config.workers).items() if n > 1]
    if twice:
        raise InvalidInputError(f"--workers names {twice[0]} more than once.")
    if config.runtime == "in_process":
        raise InvalidInputError(
            "--workers needs --runtime=native: --runtime=in_process is for this "
            "machine alone."
        )
    if config.num_gpus:
        raise InvalidInputError(
            f"--num_gpus={config.num_gpus} does not go with --workers: TFF's worker "
            "cannot use GPUs."
        )
