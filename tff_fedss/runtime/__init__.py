"""Execution contexts for TFF's computations, and a mesh of devices for ours.

The default is `in_process`: `program` evaluates a compiled computation, `intrinsics`
its federated parts and `tf_computation` its TensorFlow. `cluster` distributes clients
over Ray's actors; `native` is TFF's own runtime. Begin with
`in_process.InProcessContext`.
"""

from tff_fedss.runtime.cluster import ClusterContext, set_cluster_context
from tff_fedss.runtime.device_mesh import DeviceMesh, balanced_bounds, local_mesh
from tff_fedss.runtime.errors import (
    ClientError,
    ComputationError,
    ExecutionError,
    ServerError,
    WorkerError,
)
from tff_fedss.runtime.gpus import clients_per_device, configure_gpus
from tff_fedss.runtime.in_process import (
    AsyncInProcessContext,
    InProcessContext,
    set_in_process_context,
    use_one_thread_per_operation,
)
from tff_fedss.runtime.native import NativeContext, set_native_context
