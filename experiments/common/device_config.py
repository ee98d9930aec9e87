"""The flags that say which GPUs a program uses, and with what precision it computes."""

import dataclasses

from experiments.common import config
from tff_fedss import runtime

_TOPIC = "Where it runs"


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
    deterministic: bool | None = config.flag(
        None,
        "Same seed, same bytes on a GPU, too: its kernels add in a fixed order, some "
        "of them slower. CPUs need no such thing, but compute other bytes with it. A "
        "published --cell has it where there are GPUs.",
        group=_TOPIC,
        off=False,
    )
    precision: str | None = config.flag(
        None,
        "`tf32`: GPUs of Ampere and later take 10 bits of the mantissas of float32 "
        "factors, which is faster, and less exact; it changes nothing on a CPU. "
        "Default: float32.",
        group=_TOPIC,
        choices=("float32", "tf32"),
        off="float32",
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
        off="float32",
    )


def configure_gpus(asked: config.Config) -> None:
    """Does what the flags of any program say, before TensorFlow is used.

    Raises:
        InvalidInputError: If TensorFlow does not see so many GPUs.
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
