"""Choice of what a graph is written for: GPUs or CPUs.

What is fast on a CPU, many passes over little memory, is slow on a GPU, where each
operation costs the launch of a kernel; and the other way round. So some things are
written down twice, and it is decided when their graph is made.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_as_if_gpus = contextvars.ContextVar("as_if_gpus", default=False)


def is_for_gpus() -> bool:
    """Returns whether this process has GPUs to compute on, or is to act as if."""
    return _as_if_gpus.get() or bool(tf.config.get_visible_devices("GPU"))


@contextlib.contextmanager
def as_if_gpus() -> Iterator[None]:
    """Has graphs written as for GPUs, to look at them where there are none."""
    token = _as_if_gpus.set(True)
    try:
        yield
    finally:
        _as_if_gpus.reset(token)
