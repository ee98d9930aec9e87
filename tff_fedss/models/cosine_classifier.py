"""The classifier W, kept outside of the Keras model as one matrix [n, d].

A row of W is a class (the paper writes classes as columns). Logits are cosines times a
fixed scale (FedSS, A.2: scale 20, after NormFace), so that only directions matter.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

# The least squared norm that is divided by, so that a zero vector has cosine 0 with all
# vectors and a finite gradient.
UNIT_EPSILON = 1e-12
# tau of FedSS (A.2).
LOGIT_SCALE = 20.0
# Norm of a row of W, for every n and d.
INITIAL_NORM = 0.3


def unit(vectors: tf.Tensor) -> tf.Tensor:
    """Brings vectors, float32[..., d], to length 1."""
    return tf.math.l2_normalize(vectors, axis=-1, epsilon=UNIT_EPSILON)


def cosine_logits(
    features: tf.Tensor, classifier: tf.Tensor, scale: float = LOGIT_SCALE
) -> tf.Tensor:
    """Computes logits o_ij = scale * cos(f_i, w_j), in [-scale, scale].

    Args:
        features: float32[examples, d], the outputs of the feature extractor.
        classifier: float32[classes, d], rows of W.

    Returns:
        float32[examples, classes].
    """
    cosines = tf.matmul(unit(features), unit(classifier), transpose_b=True)
    # Rounding may bring a cosine above 1.
    return scale * tf.clip_by_value(cosines, -1.0, 1.0)


def adacos_scale(num_classes: int) -> float:
    """Returns the fixed scale of AdaCos for n classes, sqrt(2) log(n - 1).

    With it, softmax gives a class at an angle of 45 degrees a probability of 1/2 if all
    others are at 90 (Zhang et al., AdaCos, CVPR 2019, section 3.2). FedSS's 20 is for
    thousands of classes and a pretrained phi. Below 10 classes the scale is 3.
    """
    return max(3.0, math.sqrt(2) * math.log(max(num_classes - 1, 1)))


def initial_classifier(
    num_classes: int,
    embedding_dim: int,
    seed: tf.Tensor,
    norm: float = INITIAL_NORM,
) -> tf.Tensor:
    """Draws a random W, float32[n, d], whose rows have about the given norm.

    Cosine logits do not depend on the length of a row, but its speed does: a step turns
    a row by about learning rate / norm^2. So rows are initially short, with the same
    length for every n and d; Glorot's rule would shorten them as n grows. (On the
    demo's glyphs with phi from the warm start, FullSoftmax is at 46 % after 20 rounds
    from a norm of 0.3, at 41 % from 0.1 and at 7 % from 1.)

    Args:
        num_classes: n.
        embedding_dim: d.
        seed: int32[2], the key of the stateless generator.
        norm: The root of the mean squared norm of rows; FedSS does not state it.
    """
    return tf.random.stateless_normal(
        [num_classes, embedding_dim],
        seed,
        stddev=norm * embedding_dim**-0.5,
        alg="philox",
    )


# Rows that are read, written or drawn at a time: 16 MiB at d = 64. It decides the
# initial rows: never change it.
_BLOCK_ROWS = 65_536


class ShardedMatrix:
    """float32[n, d] in consecutive shards of rows, a `tf.Variable` on each device.

    Attributes:
        shape: (n, d).
        bounds: int64[shards + 1]: shard i has the rows bounds[i]..bounds[i + 1]-1.
        shards: The variables, float32[rows, d].

    Args:
        devices: One for each shard.
        num_columns: d. The matrix is initially zero.
    """

    def __init__(self, devices: Sequence[str], bounds: np.ndarray, num_columns: int):
        self.bounds = bounds
        self.shape = (int(bounds[-1]), num_columns)
        self.shards = []
        for device, rows in zip(devices, np.diff(bounds), strict=True):
            with tf.device(device):
                self.shards.append(tf.Variable(tf.zeros([rows, num_columns])))

    def draw_normal(self, stddev: float, seed: int) -> None:
        """Fills it with normal draws, which do not depend on the shards."""
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
                # A slice of a variable would first copy all of it; `gather` does not.
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
        """Copies an object with `shape` and `read`; ValueError if the shape differs."""
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
    """Replaces rows, [N, d], of a variable in place; ids are int32[N], distinct.

    No other row is read or written.
    """
    tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=tf.cast(ids, tf.int64), updates=rows
    )


def row_indices(ids: tf.Tensor) -> tf.Tensor:
    """Returns ids of rows, int32[N], as indices of `tf.scatter_nd`, int64[N, 1].

    A GPU multiplies id and d in the type of the indices: int32 is too small for
    matrices of 2^31 numbers.
    """
    return tf.cast(ids, tf.int64)[:, tf.newaxis]
