"""Shards of ImageNet-21k: for every class a TFRecord file of training, one of test.

As shards never mix classes, their index is that of the classes, one after the other.
`preparation` writes these files; here they are named, opened and checked.
"""

import json
import os
import pathlib

import numpy as np

from tff_fedss import files
from tff_fedss.datasets import sources
from tff_fedss.datasets.federated import record_index
from tff_fedss.errors import InvalidInputError

NAME = "imagenet21k"
VERSION = "1.0.0"
SPLITS = ("train", "test")
PREPARATION_FILE = "preparation.json"
CLASS_SIZES_FILE = "class_sizes.csv"  # The last to be written.
UNDECODABLE_FILE = "undecodable.csv"
INDEX_FILE = "index.npz"  # For each split the lengths of its records, int64[N].


def shard_name(split: str, label: int, num_classes: int) -> str:
    """Returns the name of a shard's file, which is as TFDS expects it."""
    digits = max(5, len(str(num_classes)))
    return f"{NAME}-{split}.tfrecord-{label:0{digits}}-of-{num_classes:0{digits}}"


def num_test(num_images: int | np.ndarray) -> int | np.ndarray:
    """Says how many of a class's images are for the test.

    "For every class we do a random 80-20 split" (FedSS, Appendix A.4).

    Args:
        num_images: n_c, of one class or of many, int64[n].

    Returns:
        round(0.2 * n_c), in whole numbers; so a class of one or two has none.
    """
    return (2 * num_images + 5) // 10


def read_preparation(folder: os.PathLike) -> dict:
    """Returns what was prepared: `{"seed", "wnids"}`.

    Args:
        folder: Where shards are, all or some.
    """
    path = pathlib.Path(folder) / PREPARATION_FILE
    with sources.reading(f"{path}, which says what has been prepared,"):
        return json.loads(path.read_bytes())


def open_index(folder: pathlib.Path, split: str) -> record_index.RecordIndex:
    """Opens the index of a split, and checks that its shards are there, whole.

    Args:
        folder: Where all shards are.
        split: "train" or "test".

    Returns:
        The index; 24 bytes of memory a record.
    """
    folder = folder.absolute()
    sizes = read_class_sizes(folder)[split]
    path = folder / INDEX_FILE
    # It compares a checksum.
    with sources.reading(str(path)), np.load(path) as arrays:
        lengths = arrays[split]
    frame = record_index.HEADER_BYTES + record_index.FOOTER_BYTES
    ends = np.cumsum(lengths + frame)  # As if all shards were one.
    shard_ends = np.append(0, ends)[np.cumsum(sizes)]
    shard_starts = np.append(0, shard_ends[:-1])
    index = np.empty(len(lengths), record_index.DTYPE)
    index["file"] = index["label"] = np.repeat(np.arange(len(sizes)), sizes)
    index["length"] = lengths
    index["offset"] = ends - lengths - record_index.FOOTER_BYTES
    index["offset"] -= np.repeat(shard_starts, sizes)
    paths = [
        folder / shard_name(split, label, len(sizes)) for label in range(len(sizes))
    ]
    for shard, wanted in zip(paths, shard_ends - shard_starts, strict=True):
        found = shard.stat().st_size if shard.exists() else 0
        if found != wanted:
            raise InvalidInputError(
                f"{shard} has {found:,} bytes; expected {wanted:,}."
            )
    return record_index.RecordIndex(tuple(map(str, paths)), index)


def read_class_sizes(folder: os.PathLike) -> dict[str, np.ndarray]:
    """Reads how many images each class has, without touching an image.

    Args:
        folder: Where all shards are, or just CLASS_SIZES_FILE.

    Returns:
        For each split int64[n], in the order of the labels.
    """
    path = pathlib.Path(folder) / CLASS_SIZES_FILE
    where_of, sizes = {}, []
    columns = ("wnid", *SPLITS)
    for where, row in files.csv_table(files.read_bytes(path), path, columns):
        files.expect_once(where_of, row["wnid"], where, "wnid")
        sizes.append([files.whole_number(row[s], where, f"{s} size") for s in SPLITS])
    return dict(zip(SPLITS, np.array(sizes, np.int64).reshape(-1, 2).T, strict=True))
