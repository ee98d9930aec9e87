"""The flags that say which GPUs a program uses, and with what precision it computes."""

import dataclasses
from typing import TypeVar

from experiments.common import config
from tff_fedss import runtime

_TOPIC = "Where it runs"
_WARM_START = ("warm_start",)  # See `experiments.fedss.run_config`.


@dataclasses.dataclass(frozen=True)
class GpuConfig(config.Config):
    """Of programs that compute. See docs/gpus.md."""

    num_gpus: int | None = config.flag(
        None,
        "How many GPUs to use. Default: all that TensorFlow sees.",
        group=_TOPIC,
        low=0,
        decides=False,
    )
    # Those that decide results are open by default, and off: a run without them is
    # one of before there were such flags.
    deterministic: bool | None = config.flag(
        None,
        "Same seed, same bytes on a GPU, too: its kernels add in a fixed order, some "
        "of them slower. CPUs need no such thing, but compute other bytes with it. A "
        "published --cell has it where there are GPUs.",
        group=_TOPIC,
        marks=_WARM_START,
    )
    precision: str | None = config.flag(
        None,
        "`tf32`: GPUs of Ampere and later take 10 bits of the mantissas of float32 "
        "factors, which is faster, and less exact; it changes nothing on a CPU. "
        "Default: float32.",
        group=_TOPIC,
        choices=("float32", "tf32"),
        marks=_WARM_START,
    )

    @property
    def used_gpus(self) -> int | None:
        """How many GPUs TensorFlow is to use in this process; None: all."""
        return self.num_gpus

    @property
    def clients_at_once(self) -> int:
        """How many clients are to train on a GPU at once."""
        return 1


@dataclasses.dataclass(frozen=True)
class DeviceConfig(GpuConfig):
    """Of programs that train networks."""

    precision: str | None = config.flag(
        None,
        "`tf32`: GPUs of Ampere and later take 10 bits of the mantissas of float32 "
        "factors, which is faster, and less exact; it changes nothing on a CPU. "
        "`mixed`: phi computes in bfloat16; weights, their sums, normalizations, "
        "embeddings and losses stay float32. For GPUs of Ampere and later. Default: "
        "float32.",
        group=_TOPIC,
        choices=("float32", "tf32", "mixed"),
        marks=_WARM_START,
    )


_ConfigT = TypeVar("_ConfigT", bound=config.Config)


def configure_gpus(asked: _ConfigT) -> _ConfigT:
    """Does what the flags say, before TensorFlow is used.

    Args:
        asked: Those of any program.

    Returns:
        The flags; a switch that is off counts as one that was not given.

    Raises:
        InvalidInputError: If TensorFlow does not see so many GPUs.
    """
    if not isinstance(asked, GpuConfig):
        runtime.configure_gpus()
        return asked
    runtime.configure_gpus(
        asked.used_gpus,
        clients_per_gpu=asked.clients_at_once,
        deterministic=bool(asked.deterministic),
        tf32=asked.precision == "tf32",
        mixed_precision=asked.precision == "mixed",
    )
    return dataclasses.replace(
        asked,
        deterministic=asked.deterministic or None,
        precision=None if asked.precision == "float32" else asked.precision,
    )
