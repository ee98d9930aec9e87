"""Shared memory: NumPy arrays that several processes see at once."""

from collections.abc import Iterator, Mapping
from multiprocessing import shared_memory

import numpy as np

_ALIGNMENT = 64  # bytes

# Of each array: its name, dtype and shape.
Specs = tuple[tuple[str, str, tuple[int, ...]], ...]


class SharedArrays(Mapping[str, np.ndarray]):
    """Arrays by name in one block of shared memory.

    Pickling it, as an argument of a process, passes a reference: the other process sees
    the same memory. Nothing keeps two processes from writing at once; that needs a
    lock.
    """

    def __init__(self, specs: Specs, _attach_to: str | None = None):
        """Allocates the arrays, filled with zeros.

        Args:
            specs: Name, dtype and shape of each.
        """
        self._specs = specs
        offsets, size = [], 0
        for _, dtype, shape in specs:
            offsets.append(size)
            num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self._is_owner = _attach_to is None
        self._memory = shared_memory.SharedMemory(
            _attach_to, create=self._is_owner, size=max(size, 1)
        )
        self._arrays = {
            name: np.ndarray(shape, dtype, self._memory.buf, offset)
            for (name, dtype, shape), offset in zip(specs, offsets, strict=True)
        }

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "SharedArrays":
        """Allocates copies of arrays.

        Args:
            arrays: By name.
        """
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
        shared = cls(tuple((name, a.dtype.str, a.shape) for name, a in arrays.items()))
        for name, array in arrays.items():
            shared[name][...] = array
        return shared

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __reduce__(self):
        return SharedArrays, (self._specs, self._memory.name)

    def close(self) -> None:
        """Lets go of the memory; where it was allocated, frees it.

        If the process that allocated it is killed, Python's resource tracker frees it.
        The arrays must not be used any more.
        """
        self._arrays.clear()
        self._memory.close()
        if self._is_owner:
            self._memory.unlink()
