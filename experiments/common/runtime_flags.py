"""The flags that say where TFF computations run."""

import collections
import re
from collections.abc import Callable

import tensorflow as tf
from absl import flags

from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError

RUNTIME = flags.DEFINE_enum(
    "runtime",
    "auto",
    ["auto", "native", "in_process"],
    "What runs the rounds. `in_process`: this process, on its GPUs, or on its CPU "
    "cores with a client on each. `native`: TFF's own runtime, on CPUs. `auto`: "
    "in_process, or native with --workers, which needs it.",
)
_NUM_GPUS = flags.DEFINE_integer(
    "num_gpus",
    None,
    "How many GPUs to use. Default: all that TensorFlow sees.",
    lower_bound=0,
)
_CLIENTS_PER_GPU = flags.DEFINE_integer(
    "clients_per_gpu",
    1,
    "How many clients train on a GPU at once: more keep it busier and need more of its "
    "memory.",
    lower_bound=1,
)

_WORKERS = flags.DEFINE_list(
    "workers",
    None,
    "host:port,...: the machines that the clients train on, each with a worker "
    "(`./run.sh worker --port=P`), inside a trusted network. Default: this machine, "
    "with a worker of its own.",
)

NAMES = ("runtime", "num_gpus", "clients_per_gpu", "workers")

# A name, an IPv4 address or an IPv6 address in brackets.
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")


def take_defaults() -> None:
    """Gives --runtime=auto its meaning.

    Raises:
        InvalidInputError: If the flags do not go with each other, or not with this
            machine.
    """
    if _WORKERS.value is not None:
        _check_workers()
    _num_gpus()
    if RUNTIME.value == "auto":
        flags.FLAGS.runtime = "native" if _WORKERS.value else "in_process"
    if RUNTIME.value == "native" and _NUM_GPUS.value:
        raise InvalidInputError(
            f"--num_gpus={_NUM_GPUS.value} needs --runtime=in_process: TFF's own "
            "runtime (--runtime=native) cannot use GPUs."
        )


def install() -> Callable[[], None]:
    """Makes the runtime the default context. Call it before TensorFlow is used.

    Returns:
        What to call after the first round: it raises a RuntimeError if GPUs are in use
        and clients did not train on them.

    Raises:
        InvalidInputError: As `take_defaults`.
    """
    take_defaults()
    if RUNTIME.value == "native":
        if _WORKERS.value:
            runtime.set_remote_context(_WORKERS.value)
        else:
            runtime.set_native_context()
        return lambda: None
    gpus = tf.config.list_physical_devices("GPU")[: _num_gpus()]
    if gpus != tf.config.get_visible_devices("GPU"):
        tf.config.set_visible_devices(gpus, "GPU")
    context = runtime.set_in_process_context(
        clients_per_device=_CLIENTS_PER_GPU.value if gpus else None
    )

    def check() -> None:
        used = sorted(context.client_devices)
        if gpus and not any("GPU" in device for device in used):
            raise RuntimeError(
                f"Clients should have trained on {', '.join(context.devices)}, but "
                f"their results come from {', '.join(used) or 'nowhere'}."
            )

    return check


def _check_workers() -> None:
    for worker in _WORKERS.value or [""]:
        host, _, port = worker.rpartition(":")
        if not (_HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536):
            raise InvalidInputError(
                "--workers takes host:port,..., such as 10.0.0.5:8000,10.0.0.6:8000, "
                f"found '{worker}'."
            )
    twice = [w for w, n in collections.Counter(_WORKERS.value).items() if n > 1]
    if twice:
        raise InvalidInputError(f"--workers names {twice[0]} more than once.")
    if RUNTIME.value == "in_process":
        raise InvalidInputError(
            "--workers needs --runtime=native: --runtime=in_process is for this "
            "machine alone."
        )
    if _NUM_GPUS.value:
        raise InvalidInputError(
            f"--num_gpus={_NUM_GPUS.value} does not go with --workers: TFF's worker "
            "cannot use GPUs."
        )


def _num_gpus() -> int:
    seen = len(tf.config.list_physical_devices("GPU"))
    if _NUM_GPUS.value is None:
        return seen
    if _NUM_GPUS.value > seen:
        raise InvalidInputError(
            f"--num_gpus={_NUM_GPUS.value}, but TensorFlow sees {seen}. "
            "(docs/gpus.md says what TensorFlow needs to see them.)"
        )
    return _NUM_GPUS.value
