"""TensorFlow's use of this machine's GPUs: which, their memory and precision.

All settings hold for the whole process, and most must be made before TensorFlow
computes in it.
"""

import functools
import os
import subprocess
from collections.abc import Sequence

import tensorflow as tf
from absl import logging
from tensorflow.python.framework import config as tf_config
from tensorflow.python.framework import kernels as registered_kernels

from tff_fedss.errors import InvalidInputError, check_at_least

# The part of a GPU's memory left to the CUDA context and libraries.
_RESERVED = 0.1


def configure_gpus(
    num_gpus: int | None = None,
    *,
    clients_per_gpu: int = 1,
    deterministic: bool = False,
    tf32: bool = False,
    mixed_precision: bool = False,
) -> None:
    """Sets how this process uses GPUs, and its precision.

    Settings of earlier calls are replaced, except that a GPU that is cut into parts
    stays so. GPU memory is allocated on demand, but with several clients on a GPU each
    gets a fixed part.

    Args:
        num_gpus: Number of GPUs to use, the first ones; None: all that TensorFlow sees.
            The others are not touched.
        clients_per_gpu: Number of clients that train on a GPU at once. Each gets its
            own logical device: work on one device is queued in one stream, so that only
            one of its clients would compute at a time.
        deterministic: Whether kernels must add in the same order each time, so that the
            same seed gives the same bytes also on a GPU. Some kernels are slower, and
            computations made from now on have other operations, also on CPUs.
        tf32: Whether float32 products may be computed with 10 bits of their factors'
            mantissas, on GPUs that support it (Ampere and later).
        mixed_precision: Whether Keras layers made from now on compute in bfloat16, with
            weights in float32.

    Raises:
        InvalidInputError: If there are fewer GPUs, or TensorFlow already uses others.
    """
    seen = tf.config.list_physical_devices("GPU")
    if num_gpus is not None:
        check_at_least(0, num_gpus=num_gpus)
        if num_gpus > len(seen):
            raise InvalidInputError(
                f"num_gpus={num_gpus}, but TensorFlow sees {len(seen)}. (docs/gpus.md "
                "says what TensorFlow needs to see them.)"
            )
    used = seen[:num_gpus]
    try:
        if used != tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices(used, "GPU")
        _share_memory(used, clients_per_gpu)
    except RuntimeError as error:
        raise InvalidInputError(
            f"num_gpus={num_gpus}, clients_per_gpu={clients_per_gpu}: TensorFlow "
            f"already uses GPUs in this process, with other settings: {error}"
        ) from error
    if deterministic != tf_config.is_op_determinism_enabled():
        if deterministic:
            tf.config.experimental.enable_op_determinism()
        else:
            tf_config.disable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    policy = "mixed_bfloat16" if mixed_precision else "float32"
    if policy != tf.keras.mixed_precision.global_policy().name:
        tf.keras.mixed_precision.set_global_policy(policy)


def let_memory_grow(gpus: Sequence[tf.config.PhysicalDevice]) -> None:
    """Keeps TensorFlow from allocating all memory of undivided GPUs at once."""
    for gpu in gpus:
        if tf.config.get_logical_device_configuration(gpu):
            continue
        if not tf.config.experimental.get_memory_growth(gpu):
            try:
                tf.config.experimental.set_memory_growth(gpu, True)
            except RuntimeError as error:  # TensorFlow already uses the GPU.
                logging.warning("The memory of %s cannot grow: %s", gpu.name, error)


def clients_per_device(clients_per_gpu: int) -> int | None:
    """Returns how many clients share a logical device, after `configure_gpus`.

    It is 1 if each client of a GPU has a device; None without GPUs.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    is_cut = all(map(tf.config.get_logical_device_configuration, gpus))
    return 1 if is_cut else clients_per_gpu


@functools.cache
def variable_device(dtype: tf.DType, device: str) -> str:
    """Returns the device of a variable that a computation on a device uses.

    It is the same device, or the CPU for types without GPU variables in TensorFlow,
    such as int32.
    """
    if "GPU" not in device:
        return device
    found = registered_kernels.get_registered_kernels_for_op("VarHandleOp").kernel
    for kernel in found:
        # Kernels of the DEFAULT kind are for all devices.
        if kernel.device_type in ("GPU", "DEFAULT") and all(
            dtype.as_datatype_enum in constraint.allowed_values.list.type
            for constraint in kernel.constraint
            if constraint.name == "dtype"
        ):
            return device
    return "/device:CPU:0"


def _share_memory(gpus: Sequence[tf.config.PhysicalDevice], parts: int) -> None:
    """Cuts GPUs into logical devices, or lets the memory of whole ones grow."""
    free = _free_memory_mib(len(gpus)) if gpus and parts > 1 else None
    if free is None:
        let_memory_grow(gpus)
        return
    limit = int(free * (1 - _RESERVED)) // parts
    devices = [tf.config.LogicalDeviceConfiguration(memory_limit=limit)] * parts
    for gpu in gpus:
        there = tf.config.get_logical_device_configuration(gpu) or []
        if len(there) != parts:
            # TensorFlow supports growing memory or logical devices, but not both.
            tf.config.experimental.set_memory_growth(gpu, False)
            tf.config.set_logical_device_configuration(gpu, devices)


def _free_memory_mib(num_gpus: int) -> float | None:
    """Returns the free memory of the fullest of the first GPUs; None if unknown.

    It asks nvidia-smi: TensorFlow reports it only for GPUs that it already uses.
    """
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=30
        ).stdout
        return min(map(float, output.split()[:num_gpus]))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logging.warning(
            "nvidia-smi does not report the memory of the GPUs (%s): the clients of "
            "a GPU share one device and take turns.",
            error,
        )
        return None
