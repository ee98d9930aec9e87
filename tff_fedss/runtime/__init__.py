"""Execution contexts: where the TFF computations of this project run."""

from tff_fedss.runtime.in_process import (
    ClientError,
    InProcessContext,
    set_in_process_context,
)
from tff_fedss.runtime.native import (
    NativeContext,
    WorkerError,
    set_native_context,
)

__all__ = [
    "ClientError",
    "InProcessContext",
    "NativeContext",
    "WorkerError",
    "set_in_process_context",
    "set_native_context",
]
