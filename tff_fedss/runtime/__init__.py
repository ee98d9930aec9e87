"""Where computations run: execution contexts for TFF's, a mesh of devices for ours."""

from tff_fedss.runtime.device_mesh import DeviceMesh, balanced_bounds, local_mesh
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
    "DeviceMesh",
    "InProcessContext",
    "NativeContext",
    "RemoteContext",
    "WorkerError",
    "balanced_bounds",
    "local_mesh",
    "set_in_process_context",
    "set_native_context",
    "set_remote_context",
]
