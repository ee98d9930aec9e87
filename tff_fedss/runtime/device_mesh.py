"""Several devices of one process, and the collectives between them.

The devices are GPUs, or logical devices of the CPU, which compute the same on its
cores, so that everything except the speed can be tested without a GPU. A collective
takes and returns a tensor for each device, inside or outside of a `tf.function`;
TensorFlow copies between devices.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tff_fedss.errors import InvalidInputError


def balanced_bounds(total: int, parts: int) -> np.ndarray:
    """Cuts 0..total-1 into consecutive parts whose sizes differ by at most one.

    Cutting into k parts keeps some of the bounds of any multiple of k.

    Args:
        total: The number to cut.

    Returns:
        int64[parts + 1]: part i is bounds[i]..bounds[i + 1]-1.
    """
    return np.arange(parts + 1, dtype=np.int64) * total // parts


class DeviceMesh:
    """A line of devices.

    Attributes:
        devices: Their names. A name may be repeated: that device then does the work of
            several.
    """

    def __init__(self, devices: Sequence[str]):
        self.devices = tuple(devices)

    def __len__(self) -> int:
        return len(self.devices)

    def map(self, fn: Callable[..., tf.Tensor], *parts: Sequence) -> list:
        """Calls a function on every device, with the device's own arguments."""
        results = []
        for device, *arguments in zip(self.devices, *parts, strict=True):
            with tf.device(device):
                results.append(fn(*arguments))
        return results

    def scatter(self, value: tf.Tensor) -> list[tf.Tensor]:
        """Cuts a tensor along its first axis: sizes differ by at most one."""
        sizes = self._sizes(tf.shape(value)[0])
        return self.map(tf.identity, tf.split(value, sizes, num=len(self)))

    def all_gather(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenates the parts, on every device."""
        return self.map(lambda: tf.concat(parts, 0))

    def all_reduce(
        self,
        reduce: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        parts: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Reduces the parts, always in the order of the devices, on every device."""
        return self.map(lambda: functools.reduce(reduce, parts))

    def reduce_scatter(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds the parts and cuts the sum like `scatter`, a piece for each device."""
        sizes = self._sizes(tf.shape(parts[0])[0])
        pieces = [tf.split(part, sizes, num=len(self)) for part in parts]
        return self.map(lambda *own: functools.reduce(tf.add, own), *pieces)

    def _sizes(self, total: tf.Tensor) -> tf.Tensor:
        """Returns the sizes of `balanced_bounds` for a total known only at run time."""
        bounds = tf.range(len(self) + 1) * total // len(self)
        return bounds[1:] - bounds[:-1]


def local_mesh(num_devices: int | None = None) -> DeviceMesh:
    """Makes a mesh of this machine's GPUs, or else of logical devices of its CPU.

    Logical devices must be made before TensorFlow is used in this process.

    Args:
        num_devices: Number of devices. None: all GPUs of this process, or one CPU
            device.

    Raises:
        InvalidInputError: If there are fewer GPUs (but some), or if TensorFlow already
            runs with fewer logical devices.
    """
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        num_devices = num_devices or len(gpus)
        names = [device.name for device in tf.config.list_logical_devices("GPU")]
        if num_devices > len(names):
            raise InvalidInputError(
                f"num_devices={num_devices}, but TensorFlow uses {len(names)} GPUs. "
                "(With num_gpus=0, logical devices of the CPU are made, as many as you "
                "like.)"
            )
        return DeviceMesh(names[:num_devices])
    num_devices = num_devices or 1
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * num_devices
    try:
        tf.config.set_logical_device_configuration(cpu, logical)
    except RuntimeError as error:  # TensorFlow already runs.
        if num_devices > len(tf.config.list_logical_devices("CPU")):
            raise InvalidInputError(
                f"num_devices={num_devices}: TensorFlow runs in this process already,"
                f" with {len(tf.config.list_logical_devices('CPU'))} devices."
            ) from error
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    return DeviceMesh(names[:num_devices])
