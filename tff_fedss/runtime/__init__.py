"""Execution contexts: where the TFF computations of this project run."""

from tff_fedss.runtime.native import (
    NativeContext,
    WorkerError,
    set_native_context,
)

__all__ = ["NativeContext", "WorkerError", "set_native_context"]
