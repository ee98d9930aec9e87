"""Memory of this machine, and checks that a run fits before anything is allocated."""

import pathlib
import re
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tff_fedss.errors import InvalidInputError

_GIB = 2**30
_PROC = pathlib.Path("/proc")
_CGROUPS = pathlib.Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Returns how much memory a process may have on this machine, swap included.

    All of it, not what is free now: less only where a control group (a container, a
    cluster's job) sets a limit.
    """
    info = dict(
        re.findall(r"^(\w+): +(\d+) kB$", (_PROC / "meminfo").read_text(), re.MULTILINE)
    )
    memory, swap = (1024 * int(info[key]) for key in ("MemTotal", "SwapTotal"))
    return min([memory, *_cgroup_limits()]) + swap


def _cgroup_limits() -> Iterator[int]:
    """Yields the limits of this process's control groups, and of those above."""
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
        # Inside a container, the group's name may be that of the host, and the folder
        # at the root is its own.
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
    """Checks that what must be held fits into memory.

    Args:
        needs: Bytes, by what they are for. Count only what must be there at the same
            time, and do not guess: a run is refused for it.
        device_needs: Bytes of what lies on GPUs where TensorFlow uses any; they are
            counted only if it uses none.
        memory: How many bytes there are; by default `available_bytes()`.

    Raises:
        InvalidInputError: If it does not fit. The message has every part and the sum.
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
        f"not enough memory: at least {_as_text(total)} would have to be held at the "
        f"same time, and this machine has {_as_text(memory)}: {'; '.join(texts)}."
    )


def _as_text(size: int) -> str:
    return (
        f"{size / _GIB:,.1f} GiB" if size >= _GIB / 10 else f"{size / 2**20:,.1f} MiB"
    )
