"""ImageNet-21k as TFRecord shards: for every class one of training, one of test images.

As shards never mix classes, their index is that of the classes, one after the other.
`preparation` writes these files; here they are named, opened and checked.
"""

import csv
import io
import json
import os
import pathlib
import re
import tempfile

import numpy as np

from tff_fedss import errors, files
from tff_fedss.datasets.federated import record_index

NAME = "imagenet21k"
VERSION = "1.0.0"
SPLITS = ("train", "test")
PREPARATION_FILE = "preparation.json"
CLASS_SIZES_FILE = "class_sizes.csv"
UNDECODABLE_FILE = "undecodable.csv"
_NUMBER = re.compile("[0-9]{1,9}")  # of images of a class

_ROWS_AT_A_TIME = 1 << 20


def shard_name(split: str, label: int, num_classes: int) -> str:
    """Returns the name of a shard's file, which is as TFDS expects it."""
    digits = max(5, len(str(num_classes)))
    return f"{NAME}-{split}.tfrecord-{label:0{digits}}-of-{num_classes:0{digits}}"


def index_name(split: str) -> str:
    """Returns the name of the file that says where each record of a split is.

    It is an array of `record_index.DTYPE`, in the order of the labels and, in a class,
    of the file names. `file` is the label too: the number of the shard.
    """
    return f"{split}.index"


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
    """Returns what was prepared: `{"format", "seed", "wnids"}`.

    Args:
        folder: Where shards are, all or some.

    Raises:
        errors.InvalidInputError: If nothing was prepared there.
    """
    path = pathlib.Path(folder) / PREPARATION_FILE
    try:
        preparation = json.loads(files.read(path))
        if not isinstance(preparation.get("wnids"), list):
            raise ValueError("it has no list of wnids")
        return preparation
    except (OSError, ValueError, AttributeError) as e:
        reason = files.error_text(e)
        raise errors.InvalidInputError(
            f"{path}, which says what has been prepared, cannot be read: {reason}."
        ) from e


def verify(folder: os.PathLike) -> None:
    """Reads all shards again and compares their checksums, which takes hours.

    Args:
        folder: Where all shards are.

    Raises:
        errors.InvalidInputError: If a record is damaged or is not where it should be.
    """
    folder = pathlib.Path(folder)
    num_classes = len(read_preparation(folder)["wnids"])
    for split in SPLITS:
        expected = open_index(folder, split).records
        labels = np.unique(expected["label"])
        paths = [folder / shard_name(split, label, num_classes) for label in labels]
        with tempfile.TemporaryDirectory() as temporary:
            found = record_index.build_index(
                paths,
                record_index.example_parser("image", "label", num_classes),
                what=f"{NAME} {split}",
                cache_dir=temporary,
            ).records
            for field in ("offset", "length", "label"):
                if not np.array_equal(found[field], expected[field]):
                    raise errors.InvalidInputError(
                        f"{folder}: the {split} shards are not those of "
                        f"{index_name(split)}: prepare them again."
                    )


def open_index(folder: os.PathLike, split: str) -> record_index.RecordIndex:
    """Opens the index of a split, and checks that its shards are there, whole.

    Args:
        folder: Where all shards are.
        split: "train" or "test".

    Returns:
        The index: a view of a file, so nothing per image is in memory.

    Raises:
        errors.InvalidInputError: If a file is missing or has another size than it was
            written with.
    """
    folder = pathlib.Path(folder).absolute()
    sizes = read_class_sizes(folder)[split]
    path = folder / index_name(split)
    found = _size(path)
    wanted = int(sizes.sum()) * record_index.DTYPE.itemsize
    if found != wanted or not wanted:
        raise errors.InvalidInputError(
            f"{path} has {found} bytes; expected {wanted:,}, for {sizes.sum():,} "
            "images, at least one."
        )
    index = np.memmap(path, record_index.DTYPE, mode="r")
    _check_index(path, index, sizes)
    last = index[np.cumsum(sizes)[sizes > 0] - 1]
    file_sizes = np.zeros(len(sizes), np.int64)
    file_sizes[sizes > 0] = last["offset"] + last["length"] + record_index.FOOTER_BYTES
    paths = [
        folder / shard_name(split, label, len(sizes)) for label in range(len(sizes))
    ]
    for shard, wanted in zip(paths, file_sizes, strict=True):
        if (found := _size(shard)) != wanted:
            raise errors.InvalidInputError(
                f"{shard} is missing."
                if found is None
                else f"{shard} has {found:,} bytes; expected {wanted:,}: it is cut off "
                "or was changed."
            )
    return record_index.RecordIndex(tuple(map(str, paths)), index)


def _check_index(path: pathlib.Path, index: np.ndarray, sizes: np.ndarray) -> None:
    """Checks what an index must be: shard after shard, record after record in each."""
    header, footer = record_index.HEADER_BYTES, record_index.FOOTER_BYTES
    ends = np.cumsum(sizes)
    for start in range(0, len(index), _ROWS_AT_A_TIME):
        rows = np.arange(start, min(start + _ROWS_AT_A_TIME, len(index)))
        found = index[rows]
        label = np.searchsorted(ends, rows, "right")
        before = index[np.maximum(rows - 1, 0)]
        follows = before["offset"] + before["length"] + footer + header
        is_first = rows == ends[label] - sizes[label]
        is_good = (
            (found["label"] == label)
            & (found["file"] == label)
            & (found["length"] > 0)
            & (found["offset"] == np.where(is_first, header, follows))
        )
        if not is_good.all():
            row = rows[np.argmin(is_good)]
            raise errors.InvalidInputError(
                f"{path} is damaged: record {row:,} is not where it should be. Prepare "
                "the data set again."
            )


def read_class_sizes(folder: os.PathLike) -> dict[str, np.ndarray]:
    """Reads how many images each class has, without touching an image.

    Args:
        folder: Where all shards are, or just CLASS_SIZES_FILE.

    Returns:
        For each split int64[n], in the order of the labels.

    Raises:
        errors.InvalidInputError: If the file is missing or not as it was written.
    """
    path = pathlib.Path(folder) / CLASS_SIZES_FILE
    header = ("wnid", *SPLITS)
    try:
        text = files.read(path).decode()
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (OSError, ValueError, csv.Error) as e:
        reason = files.error_text(e)
        raise errors.InvalidInputError(f"{path} cannot be read: {reason}.") from e
    if not rows or tuple(rows[0]) != header or len(rows) < 2:
        raise errors.InvalidInputError(
            f"{path}, line 1: expected the columns {','.join(header)}, and classes "
            "below."
        )
    sizes, lines = np.empty((len(rows) - 1, len(SPLITS)), np.int64), {}
    for number, row in enumerate(rows[1:]):
        if len(row) != len(header) or not all(map(_NUMBER.fullmatch, row[1:])):
            raise errors.InvalidInputError(
                f"{path}, line {number + 2}: found {','.join(row)!r}; expected a wnid "
                "and two numbers of images."
            )
        if row[0] in lines:
            raise errors.InvalidInputError(
                f"{path}, line {number + 2}: the class {row[0]!r} is already in line "
                f"{lines[row[0]]}."
            )
        lines[row[0]] = number + 2
        sizes[number] = train, test = int(row[1]), int(row[2])
        if test != num_test(train + test):
            raise errors.InvalidInputError(
                f"{path}, line {number + 2}: {test} of {train + test} images are for "
                f"the test; expected {num_test(train + test)}."
            )
    return dict(zip(SPLITS, sizes.T.copy(), strict=True))


def _size(path: pathlib.Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
