"""The machine's memory, and a check that a run fits before it allocates any."""

import pathlib
import re
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tff_fedss.errors import InvalidInputError

_GIB = 2**30
_PROC = pathlib.Path("/proc")
_CGROUPS = pathlib.Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Returns the memory that a process may have on this machine, swap included.

    This is the total, not what is free now, or less where a control group (a container,
    a cluster's job) sets a limit.
    """
    info = dict(
        re.findall(r"^(\w+): +(\d+) kB$", (_PROC / "meminfo").read_text(), re.MULTILINE)
    )
    memory, swap = (1024 * int(info[key]) for key in ("MemTotal", "SwapTotal"))
    return min([memory, *_cgroup_limits()]) + swap


def _cgroup_limits() -> Iterator[int]:
    """Yields the limits of this process's control groups and of their parents."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:  # Version 2.
            root, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container, the group's name may be the host's name for it, and its
        # folder is the root.
        path = pathlib.PurePosixPath(group.lstrip("/"))
        for folder in (path, *path.parents):
            try:
                text = (root / folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal():  # Else "max".
                yield int(text)


def check(
    needs: Mapping[str, int],
    *,
    device_needs: Mapping[str, int] | None = None,
    memory: int | None = None,
) -> None:
    """Checks that the memory a run needs fits.

    Args:
        needs: Bytes by purpose. Count only what must be in memory at the same time, and
            do not guess: a run that does not fit is refused.
        device_needs: Bytes by purpose, held on GPUs if TensorFlow uses any, so they are
            counted only if it uses none.
        memory: The memory in bytes; by default `available_bytes()`.

    Raises:
        InvalidInputError: If they do not fit. The message has each part and the sum.
    """
    parts = dict(needs)
    if device_needs and not tf.config.get_visible_devices("GPU"):
        parts |= device_needs
    total = sum(parts.values())
    memory = available_bytes() if memory is None else memory
    if total <= memory:
        return
    largest = sorted(parts.items(), key=lambda part: -part[1])
    texts = [
        f"{what} {_as_text(size)}" for what, size in largest if size > total / 1000
    ]
    raise InvalidInputError(
        f"not enough memory: at least {_as_text(total)} is needed at the same "
        f"time, and this machine has {_as_text(memory)}: {'; '.join(texts)}."
    )


def _as_text(size: int) -> str:
    return (
        f"{size / _GIB:,.1f} GiB" if size >= _GIB / 10 else f"{size / 2**20:,.1f} MiB"
    )
