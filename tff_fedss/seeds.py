"""Independent, stateless random streams from one client's seed.

A client has one seed per round, int32[2]. Each kind of draw (its negatives, the order
of its examples, the crops of its images) has a stream of that seed, so that no draw
changes when another is added, and a resumed run draws the same as an uninterrupted one.
"""

import enum

import numpy as np
import tensorflow as tf


class Stream(enum.IntEnum):
    """Streams of a client's draws. The numbers decide results: never reuse one."""

    NEGATIVES = 0
    ORDER = 1
    CROP = 2
    RESPONSES = 3
    NUM_NEGATIVES = 4
    DROPOUT = 5


def fold_in(seed: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Returns the seed, int32[2], of a `Stream`, or of one item of a stream.

    It is the same on every device: the generator is Philox.
    """
    return tf.random.experimental.stateless_fold_in(
        seed, tf.cast(number, tf.int32), alg="philox"
    )


def generator(seed: int, number: int) -> np.random.Generator:
    """Returns Philox, keyed by a run's seed, below 2^64, and the number of a step."""
    key = np.array([seed, number], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
