"""Where computations run: execution contexts for TFF's, a mesh of devices for ours."""

from tff_fedss.runtime.device_mesh import DeviceMesh, balanced_bounds, local_mesh
from tff_fedss.runtime.errors import (
    ClientError,
    ComputationError,
    ExecutionError,
    ServerError,
    WorkerError,
)
from tff_fedss.runtime.gpus import clients_per_device, configure_gpus
from tff_fedss.runtime.in_process import InProcessContext, set_in_process_context
from tff_fedss.runtime.native import NativeContext, set_native_context
from tff_fedss.runtime.remote import RemoteContext, set_remote_context

__all__ = [
    "ClientError",
    "ComputationError",
    "DeviceMesh",
    "ExecutionError",
    "InProcessContext",
    "NativeContext",
    "RemoteContext",
    "ServerError",
    "WorkerError",
    "balanced_bounds",
    "clients_per_device",
    "configure_gpus",
    "local_mesh",
    "set_in_process_context",
    "set_native_context",
    "set_remote_context",
]
