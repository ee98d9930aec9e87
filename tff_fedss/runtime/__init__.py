"""Execution contexts: where the TFF computations of this project run."""

from tff_fedss.runtime.in_process import (
    ClientError,
    InProcessContext,
    set_in_process_context,
)
from tff_fedss.runtime.native import NativeContext, set_native_context
from tff_fedss.runtime.remote import RemoteContext, set_remote_context
from tff_fedss.runtime.worker_service import WorkerError

__all__ = [
    "ClientError",
    "InProcessContext",
    "NativeContext",
    "RemoteContext",
    "WorkerError",
    "set_in_process_context",
    "set_native_context",
    "set_remote_context",
]
