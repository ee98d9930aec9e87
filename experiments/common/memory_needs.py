"""Lower bounds of the programs' memory, by their flags.

Bytes by purpose, for `memory.check`. Only what must be in memory at the same time is
counted, once: a run that fits by these numbers may still be too large.
"""

import itertools
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from tff_fedss import models
from tff_fedss.datasets.federated.dataset import FederatedDataset

_FLOAT = 4
# Number of clients whose images are counted.
_MAX_CLIENTS = 1000


def matrix(title: str, num_rows: int, num_columns: int, copies: int = 1) -> dict:
    """Counts copies of float32[rows, columns], such as W and its momentum."""
    times = f"{copies} x " if copies > 1 else ""
    return {
        f"{title} ({times}{num_rows:,} x {num_columns:,} numbers)": _FLOAT
        * copies
        * num_rows
        * num_columns
    }


def images(count: int, size: int, channels: int = 1, title: str = "images") -> dict:
    """Counts images in bytes, uint8[count, size, size, channels]."""
    return {f"{title} ({count:,} of {size:,} x {size:,})": count * size**2 * channels}


def network(
    title: str,
    model_fn: Callable[[], tf.keras.Model],
    batch_size: int,
    copies: int,
) -> dict:
    """Counts a network in training: its weights, and what a gradient needs.

    The copies of the weights are the weights, their gradient, and the optimizer's
    state. The model is built without values.
    """
    size = models.model_size(model_fn)
    return {
        f"the weights of {title} ({copies} x {size.parameters // _FLOAT:,} numbers)": (
            copies * size.parameters
        ),
        f"the layers of {title} for {batch_size:,} examples": (
            batch_size * size.activations
        ),
    }


def classifiers(methods: Collection[Any], num_classes: int, embedding_dim: int) -> dict:
    """Counts the W of `fedss.methods` that run side by side, and their momentums."""
    copies = sum(2 if method.has_clients else 1 for method in methods)
    return matrix("W and its momentum", num_classes, embedding_dim, copies)


def round_of_clients(
    methods: Collection[Any],
    dataset: FederatedDataset,
    model_fn: Callable[[], tf.keras.Model],
    *,
    embedding_dim: int,
    num_negatives: int,
    clients_per_round: int,
    batch_size: int,
) -> dict:
    """Counts the memory of a round of `fedss.methods`, one after another, besides W.

    It is the rows of the clients, and phi.
    """
    needs = {}
    num_classes = dataset.num_classes
    federated = [method for method in methods if method.has_clients]
    if not all(method.asks_for_rows for method in federated):
        needs |= matrix("a client's W and its change", num_classes, embedding_dim, 2)
    if any(method.asks_for_rows for method in federated):
        draws = any(method.draws_negatives for method in methods)
        num_rows = dataset.max_positives + (num_negatives if draws else 0)
        num_rows = min(num_rows, num_classes)
        needs |= matrix(
            "the rows of W that the clients send",
            clients_per_round * num_rows,
            embedding_dim,
        )
    count = batch_size
    if not federated:
        if count > dataset.num_clients:
            every = map(dataset.num_examples, dataset.train.client_ids)
            count = min(count, sum(every))
    else:
        some = itertools.islice(dataset.train.client_ids, _MAX_CLIENTS)
        smallest = min(map(dataset.num_examples, some))
        count = min(count, smallest)
        height, _, channels = dataset.image_shape
        needs |= images(smallest, height, channels, "the images of a client")
    return needs | network("phi", model_fn, count, copies=2)


def sampling_tree(
    sampler: str,
    num_classes: int,
    embedding_dim: int,
    num_frequencies: int,
    leaf_size: int | None,
) -> dict:
    """Counts the tree of a kernel-based sampler, and the inputs of its features.

    A leaf size of None is the sampler's default, which keeps the tree small.
    """
    if sampler == "rff":
        num_features = 2 * num_frequencies
        needs = matrix("frequencies", embedding_dim, num_frequencies, copies=2)
    elif sampler == "quadratic":
        num_features = embedding_dim * (embedding_dim + 1) // 2 + 1
        needs = matrix("pairs of numbers", num_features, 2, copies=2)
    else:
        return {}
    num_buckets = -(-num_classes // leaf_size) if leaf_size else 1
    return needs | matrix("the tree of the sampler", num_buckets, num_features)
