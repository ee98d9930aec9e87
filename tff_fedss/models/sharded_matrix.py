"""A matrix whose rows lie on several devices, too large to be anywhere as a whole."""

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

# Rows that are read, written or drawn at a time: 16 MiB of them at d = 64. The initial
# rows follow from it: never change it.
_BLOCK_ROWS = 65_536


class ShardedMatrix:
    """float32[n, d] in consecutive shards of rows, a `tf.Variable` on each device.

    Attributes:
        shape: (n, d).
        bounds: int64[shards + 1]: shard i has the rows bounds[i]..bounds[i + 1]-1.
        shards: The variables, float32[rows, d].

    Args:
        devices: One for each shard.
        bounds: See above.
        num_columns: d. The matrix is zero at first.
    """

    def __init__(self, devices: Sequence[str], bounds: np.ndarray, num_columns: int):
        self.bounds = bounds
        self.shape = (int(bounds[-1]), num_columns)
        self.shards = []
        for device, rows in zip(devices, np.diff(bounds), strict=True):
            with tf.device(device):
                self.shards.append(tf.Variable(tf.zeros([rows, num_columns])))

    def draw_normal(self, stddev: float, seed: int) -> None:
        """Fills it with normal draws, which do not depend on the shards.

        Args:
            stddev: Their standard deviation.
            seed: Of the draws.
        """
        for i, first in enumerate(range(0, self.shape[0], _BLOCK_ROWS)):
            rows = tf.random.stateless_normal(
                [_BLOCK_ROWS, self.shape[1]], [seed, i], stddev=stddev, alg="philox"
            )
            self.write(first, rows[: self.shape[0] - first])

    def row_blocks(self, first: int = 0, end: int | None = None) -> Iterator:
        """Yields rows first..end-1 as arrays float32[<= 65,536, d], in their order."""
        end = self.shape[0] if end is None else end
        for shard, start, stop in self._pieces(first, end):
            for block in range(start, stop, _BLOCK_ROWS):
                ids = tf.range(block, min(block + _BLOCK_ROWS, stop))
                # A slice of a variable would copy all of it first; `gather` does not.
                yield tf.gather(self.shards[shard], ids).numpy()

    def read(self, first: int, end: int) -> np.ndarray:
        """Returns rows first..end-1, float32[end - first, d]."""
        blocks = list(self.row_blocks(first, end))
        empty = np.zeros([0, self.shape[1]], np.float32)
        return np.concatenate([empty, *blocks])

    def write(self, first: int, rows: np.ndarray | tf.Tensor) -> None:
        """Replaces the rows from `first` on, in place."""
        taken = 0
        for shard, start, stop in self._pieces(first, first + len(rows)):
            part = rows[taken : taken + stop - start]
            with tf.device(self.shards[shard].device):
                scatter_rows(self.shards[shard], tf.range(start, stop), part)
            taken += stop - start

    def copy_from(self, other: "ShardedMatrix") -> None:
        """Takes the rows of a matrix of the same shape.

        Args:
            other: Anything with a `shape` and a `read`, in whatever shards.

        Raises:
            ValueError: If its shape is another.
        """
        if tuple(other.shape) != self.shape:
            raise ValueError(f"a matrix of shape {other.shape}, not {self.shape}")
        for first in range(0, self.shape[0], _BLOCK_ROWS):
            end = min(first + _BLOCK_ROWS, self.shape[0])
            self.write(first, other.read(first, end))

    def _pieces(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields the parts of a range: shard, and first and end row within it."""
        for i, (a, b) in enumerate(
            zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True)
        ):
            start, stop = max(first, a), min(end, b)
            if start < stop:
                yield i, start - a, stop - a


def scatter_rows(variable: tf.Variable, ids: tf.Tensor, rows: tf.Tensor) -> None:
    """Replaces some rows of a variable in place: no other row is read or written.

    Args:
        variable: [n, d].
        ids: int32[N], distinct.
        rows: [N, d].
    """
    tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=ids, updates=rows
    )
