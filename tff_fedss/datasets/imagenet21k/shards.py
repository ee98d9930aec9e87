"""Shards of ImageNet-21k: for every class a TFRecord file of training, one of test.

As shards never mix classes, their index is that of the classes, one after the other.
`preparation` writes these files; here they are named, opened and checked.
"""

import json
import os
import pathlib
import tempfile

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

    Raises:
        InvalidInputError: If nothing was prepared there.
    """
    path = pathlib.Path(folder) / PREPARATION_FILE
    try:
        found = json.loads(files.read_bytes(path))
        return {"seed": found["seed"], "wnids": list(found["wnids"])}
    except (ValueError, KeyError, TypeError) as e:
        raise InvalidInputError(
            f"{path}, which says what has been prepared, cannot be read: "
            f"{files.error_text(e)}."
        ) from e


def verify(folder: pathlib.Path) -> None:
    """Reads all shards again and compares their checksums, which takes hours.

    Args:
        folder: Where all shards are.

    Raises:
        InvalidInputError: If a record is damaged or is not where it should be.
    """
    num_classes = len(read_preparation(folder)["wnids"])
    for split in SPLITS:
        expected = open_index(folder, split).records
        labels = np.unique(expected["label"])
        with tempfile.TemporaryDirectory() as temporary:
            found = record_index.build_index(
                [folder / shard_name(split, label, num_classes) for label in labels],
                record_index.example_parser("image", "label", num_classes),
                what=f"{NAME} {split}",
                cache_dir=temporary,
            ).records
        for field in ("offset", "length", "label"):
            if not np.array_equal(found[field], expected[field]):
                raise InvalidInputError(
                    f"{folder}: the {split} shards are not those of {INDEX_FILE}: "
                    "prepare them again."
                )


def open_index(folder: pathlib.Path, split: str) -> record_index.RecordIndex:
    """Opens the index of a split, and checks that its shards are there, whole.

    Args:
        folder: Where all shards are.
        split: "train" or "test".

    Returns:
        The index; 24 bytes of memory a record.

    Raises:
        InvalidInputError: If a file is missing, damaged, or has another size than it
            was written with.
    """
    folder = folder.absolute()
    sizes = read_class_sizes(folder)[split]
    path = folder / INDEX_FILE
    try:
        with np.load(path) as arrays:  # It compares a checksum.
            lengths = arrays[split]
    except (ValueError, KeyError, *sources.DAMAGED) as e:
        raise InvalidInputError(
            f"{path} cannot be read: {files.error_text(e)}. Prepare the data set again."
        ) from e
    if len(lengths) != sizes.sum() or not len(lengths):
        raise InvalidInputError(
            f"{path} has {len(lengths):,} {split} images; expected {sizes.sum():,}, at "
            "least one."
        )
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
        found = shard.stat().st_size if shard.exists() else None
        if found != wanted:
            raise InvalidInputError(
                f"{shard} is missing."
                if found is None
                else f"{shard} has {found:,} bytes; expected {wanted:,}: it is cut off "
                "or was changed."
            )
    return record_index.RecordIndex(tuple(map(str, paths)), index)


def read_class_sizes(folder: os.PathLike) -> dict[str, np.ndarray]:
    """Reads how many images each class has, without touching an image.

    Args:
        folder: Where all shards are, or just CLASS_SIZES_FILE.

    Returns:
        For each split int64[n], in the order of the labels.

    Raises:
        InvalidInputError: If the file is missing or not as it was written.
    """
    path = pathlib.Path(folder) / CLASS_SIZES_FILE
    where_of, sizes = {}, []
    columns = ("wnid", *SPLITS)
    for where, row in files.csv_table(files.read_bytes(path), path, columns):
        wnid, *numbers = (row[column] for column in columns)
        if wnid in where_of or not all(number.isdecimal() for number in numbers):
            raise InvalidInputError(
                f"{where}: found {wnid},{','.join(numbers)}; expected each wnid once, "
                "and two numbers of images."
            )
        where_of[wnid] = where
        sizes.append([int(number) for number in numbers])
    return dict(zip(SPLITS, np.array(sizes, np.int64).reshape(-1, 2).T, strict=True))
