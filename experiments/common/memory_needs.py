"""Lower bounds of the programs' memory, by their flags.

Bytes by purpose, for `memory.check`. Only what must be in memory at the same time is
counted, once: a run that fits by these numbers may still be too large.
"""

from collections.abc import Callable

import tensorflow as tf

from tff_fedss import models

_FLOAT = 4


def matrix(title: str, num_rows: int, num_columns: int, copies: int = 1) -> dict:
    """Counts copies of float32[rows, columns], such as W and its momentum."""
    times = f"{copies} x " if copies > 1 else ""
    purpose = f"{title} ({times}{num_rows:,} x {num_columns:,} numbers)"
    return {purpose: _FLOAT * copies * num_rows * num_columns}


def images(count: int, size: int, channels: int = 1) -> dict:
    """Counts images in bytes, uint8[count, size, size, channels]."""
    return {f"images ({count:,} of {size:,} x {size:,})": count * size**2 * channels}


def network(
    title: str, model_fn: Callable[[], tf.keras.Model], batch_size: int, copies: int
) -> dict:
    """Counts a network in training: its weights, and what a gradient needs.

    The copies of the weights are the weights, their gradient, and the optimizer's
    state. The model is built without values.
    """
    size = models.model_size(model_fn)
    count = f"{copies} x {size.parameters // _FLOAT:,} numbers"
    layers = f"the layers of {title} for {batch_size:,} examples"
    return {
        f"the weights of {title} ({count})": copies * size.parameters,
        layers: batch_size * size.activations,
    }
