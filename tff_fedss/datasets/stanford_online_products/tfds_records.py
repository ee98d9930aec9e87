"""TFDS's `stanford_online_products`: made from the original, and its records' rows.

TFDS drops the `image_id`, and none of what it offers to read with gives it back:
`tfds.ReadConfig(add_tfds_id=True)` adds the shard and the place in it, and
`tfds.data_source` reads no TFRecord files. But the order of its records is a function
of the row of an image in its listing alone: they are sorted by the MD5 of the split's
name and the row's number. So every record's row, and with it the image_id by which a
user's partition names it, is known exactly; that the classes of all records agree with
their rows is checked.
"""

import hashlib
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_fedss import files
from tff_fedss.datasets.federated import record_index
from tff_fedss.datasets.stanford_online_products.original import (
    ARCHIVE,
    BUILDER,
    FOLDER,
    LISTINGS,
    NUM_CLASSES,
    Listing,
    Place,
    check_images,
    open_original,
    read_test,
    read_train,
)
from tff_fedss.errors import InvalidInputError

IMAGE_FEATURE = "image"
_CLASS_FEATURE = "class_id"
_TITLE = "Stanford Online Products"


class Prepared(NamedTuple):
    """TFDS's data set, ready, and what its rows are.

    Attributes:
        builder: The `tfds.core.DatasetBuilder`.
        train: The listing of the training images; None if only TFDS's files are there.
        test: That of the test images, likewise.
    """

    builder: Any
    train: Listing | None
    test: Listing | None


def prepare(place: Place) -> Prepared:
    """Has TFDS make its files where that has not been done."""
    # Imported here: it takes seconds, and a partition needs none of it.
    import tensorflow_datasets as tfds

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    builder = _builder(tfds, place.tfds_dir)
    is_ready = builder.data_path.exists()
    if place.archive is None and place.folder is None:
        if not is_ready:
            if place.tfds_dir is not None:
                raise InvalidInputError(
                    f"{place.source}: {builder.data_dir} does not exist; expected "
                    f"TFDS's {BUILDER} there, or {ARCHIVE} in {place.tfds_dir}."
                )
            _run_tfds(
                place,
                builder,
                tfds.download.DownloadConfig(force_checksums_validation=True),
            )
        return Prepared(builder, None, None)

    with open_original(place) as original:
        train = read_train(original)
        test = read_test(original, train)
        if not is_ready and not os.access(place.tfds_dir, os.W_OK):
            builder = _builder(tfds, None)
            is_ready = builder.data_path.exists()
            print(
                f"TFDS keeps its files in {builder.data_dir}: nothing can be written "
                f"to {place.tfds_dir}.",
                file=sys.stderr,
            )
        if not is_ready:
            check_images(original, train)
            check_images(original, test)
    if not is_ready:
        _prepare_from(place, builder)
    return Prepared(builder, train, test)


def _builder(tfds: Any, tfds_dir: pathlib.Path | None) -> Any:
    return tfds.builder(BUILDER, data_dir=tfds_dir and os.fspath(tfds_dir))


def _prepare_from(place: Place, builder: Any) -> None:
    """Has TFDS make its files from the user's, which stay as they are."""
    import tensorflow_datasets as tfds

    os.makedirs(builder.data_dir_root, exist_ok=True)
    # Unpacked here and not where TFDS would, because TFDS takes what was unpacked from
    # another zip of this name for the zip at hand.
    with tempfile.TemporaryDirectory(
        prefix=f".{BUILDER}_", dir=builder.data_dir_root
    ) as scratch:
        root = pathlib.Path(scratch)
        manual = root / "manual"
        manual.mkdir()
        config = tfds.download.DownloadConfig(
            manual_dir=manual, extract_dir=root / "extracted", try_download_gcs=False
        )
        if place.archive is not None:
            # The name by which TFDS knows it.
            (manual / ARCHIVE).symlink_to(place.archive)
            config.force_checksums_validation = _is_as_large_as_published(
                place, builder
            )
        else:
            (manual / FOLDER).symlink_to(place.folder, target_is_directory=True)
            make = builder._split_generators
            builder._split_generators = lambda _: make(_Unpacked(manual))
        _run_tfds(place, builder, config, root / "downloads")


class _Unpacked:
    """Stands in for TFDS's download manager where there is nothing left to do."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def download_and_extract(self, url: str) -> str:
        """Returns the folder in which the archive's content lies already."""
        del url
        return os.fspath(self._folder)


def _is_as_large_as_published(place: Place, builder: Any) -> bool:
    (published,) = builder.url_infos.values()
    size = place.archive.stat().st_size
    if size == published.size:
        return True
    print(
        f"{place.archive} is not the published {ARCHIVE}: it has {size:,} bytes, "
        f"expected {int(published.size):,}. Each of its images was checked instead.",
        file=sys.stderr,
    )
    return False


def _run_tfds(
    place: Place,
    builder: Any,
    config: Any,
    download_dir: pathlib.Path | None = None,
) -> None:
    from tensorflow_datasets.core.download import download_manager

    try:
        builder.download_and_prepare(
            download_dir=download_dir and os.fspath(download_dir),
            download_config=config,
        )
    except download_manager.NonMatchingChecksumError as e:
        raise InvalidInputError(
            f"{place.source}: {ARCHIVE} has not the checksum of the published one, "
            "though its size: it is damaged. Get it again."
        ) from e
    # TFDS raises what its parts raise: a full disk, a failed connection, a zip that
    # changes under its hands.
    except Exception as e:
        hint = (
            f" Name a folder that has {ARCHIVE} with `data_dir`."
            if place.tfds_dir is None
            else ""
        )
        raise InvalidInputError(
            f"{place.source}: TFDS could not prepare {BUILDER} "
            f"({type(e).__name__}: {files.error_text(e)}).{hint}"
        ) from e


def _rows_of_records(split: str, num_records: int) -> np.ndarray:
    """Returns the row of the listing that each record of a TFDS split was made from.

    TFDS sorts the records by the MD5 of the name of the split followed by the key of
    the example, which is here the number of its row.

    Args:
        split: "train" or "test".
        num_records: N.

    Returns:
        int64[N], a permutation.
    """
    salt = hashlib.md5(split.encode(), usedforsecurity=False)

    def digest(row: int) -> bytes:
        md5 = salt.copy()
        md5.update(str(row).encode())
        return md5.digest()

    return np.array(sorted(range(num_records), key=digest), np.int64)


def index_of(builder: Any) -> tuple[record_index.RecordIndex, Mapping[str, int]]:
    """Returns the index, train before test, and how many records each split has."""
    info = builder.info
    if info.file_format.value != "tfrecord" or not set(LISTINGS) <= set(info.splits):
        raise InvalidInputError(
            f"{builder.data_dir}: has the splits {', '.join(info.splits)} in TFDS's "
            f"format {info.file_format.value}; expected train and test in tfrecord."
        )
    splits = [info.splits[split] for split in LISTINGS]
    paths = [os.fspath(path) for split in splits for path in split.filepaths]
    lengths = [length for split in splits for length in split.shard_lengths]
    index = record_index.build_index(
        paths,
        record_index.example_parser(IMAGE_FEATURE, _CLASS_FEATURE, NUM_CLASSES),
        what=_TITLE,
    )
    # A file that ends between two records looks whole.
    found = np.bincount(index.records["file"], minlength=len(paths))
    for path, expected, count in zip(paths, lengths, found, strict=True):
        if count != expected:
            raise InvalidInputError(
                f"{path}: found {count:,} records; expected {expected:,}."
            )
    return index, {
        name: sum(split.shard_lengths)
        for name, split in zip(LISTINGS, splits, strict=True)
    }


def find_records(
    builder: Any,
    index: record_index.RecordIndex,
    first: int,
    num_records: int,
    listing: Listing,
    split: str,
) -> np.ndarray:
    """Finds the record of every row of a listing.

    Args:
        builder: Where the records come from, for a message.
        index: The records of all splits.
        first: The position of the split's first record in the index.
        num_records: How many records the split has.
        listing: What the split was made from.
        split: "train" or "test".

    Returns:
        Positions in the index, int64[N].

    Raises:
        InvalidInputError: If the split was not made from this listing.
    """
    num_rows = len(listing.labels)
    remedy = f"Remove {builder.data_dir} to have it made again."
    if num_records != num_rows:
        raise InvalidInputError(
            f"{builder.data_dir}: was made from another archive: its {split} split has "
            f"{num_records:,} records; expected {num_rows:,}, by {listing.name}. "
            f"{remedy}"
        )
    row_of_record = _rows_of_records(split, num_rows)
    labels = index.records["label"][first : first + num_rows]
    differ = np.flatnonzero(labels != listing.labels[row_of_record])
    if len(differ):
        record, row = differ[0], row_of_record[differ[0]]
        raise InvalidInputError(
            f"{builder.data_dir}: was made from another archive: record {record:,} of "
            f"its {split} split has the class_id {labels[record] + 1}; expected "
            f"{listing.labels[row] + 1}, by {listing.where(row)}. {remedy}"
        )
    return first + np.argsort(row_of_record)


def infer_train_listing(
    builder: Any, index: record_index.RecordIndex, num_records: int
) -> Listing:
    """Finds the rows of Ebay_train.txt again where only TFDS's files are there.

    In the original, the image_id is the number of the row, from 1, and class_ids
    increase from row to row.

    Raises:
        InvalidInputError: If the records' class_ids do not.
    """
    labels = np.empty(num_records, np.int32)
    labels[_rows_of_records("train", num_records)] = index.records["label"][
        :num_records
    ]
    steps = np.diff(labels, prepend=-1)
    if steps[0] != 1 or not np.isin(steps, (0, 1)).all():
        raise InvalidInputError(
            f"{builder.data_dir}: the images' ids cannot be told from these files, as "
            "they are not in TFDS's order of the original. Put the archive from which "
            f"they were made, {ARCHIVE}, beside them in {builder.data_dir_root}."
        )
    rows = range(num_records)
    return Listing(
        [str(row + 1) for row in rows],
        labels,
        [],
        [row + 2 for row in rows],
        LISTINGS["train"],
    )
