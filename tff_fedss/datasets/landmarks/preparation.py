"""Preparation of a landmarks data set: a file per client, and one of the test images.

`record_writer` writes the files and skips finished ones.
"""

import collections
import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tff_fedss import files, progress
from tff_fedss.datasets.federated import record_writer
from tff_fedss.datasets.landmarks import image_sources, splits
from tff_fedss.datasets.landmarks.splits import (
    CLASS_FEATURE,
    IMAGE_FEATURE,
    TEST_FILE,
    TRAIN_FOLDER,
)
from tff_fedss.errors import InvalidInputError, RunStoppedError

_REJECTED_FILE = "rejected.csv"
_REJECTED_COLUMNS = ("image_id", "user_id", "reason", "path")
_TEST_OWNER = "test"  # the user_id of rejected test images


@dataclasses.dataclass(frozen=True)
class Options:
    """The user's options; an attribute is the flag of its name.

    Attributes:
        output_dir: The output folder, for `gld160k` or `gld23k`.
        split: One of `splits.SPLITS`.
        split_dir: The folder or the zip with both CSV files of the split.
        image_dir: The folder of images.
        shard_dir: The folder of the original archives, instead of image_dir.
        threads: Number of images read at a time; None: two per core.
        allow_missing: Whether images that are missing or damaged are left out.
        allow_other_split: Whether the CSV files may differ from the published ones.
    """

    output_dir: str | None
    split: str = "160k"
    split_dir: str | None = None
    image_dir: str | None = None
    shard_dir: str | None = None
    threads: int | None = None
    allow_missing: bool = False
    allow_other_split: bool = False

    @property
    def published(self) -> splits.Published:
        """The published description of the split."""
        return splits.SPLITS[self.split]

    @property
    def folder(self) -> pathlib.Path:
        """The folder that is written."""
        return pathlib.Path(self.output_dir) / self.published.folder


def prepare(options: Options) -> None:
    """Prepares the data set and prints a summary.

    Args:
        options: The user's options.

    Raises:
        RunStoppedError: If the disk is full, the system forbids to write, or images are
            missing or damaged without `allow_missing`.
    """
    published = options.published
    if not (options.output_dir and options.split_dir) or (
        (options.image_dir is None) == (options.shard_dir is None)
    ):
        raise InvalidInputError(
            "give `output_dir`, `split_dir` and either `image_dir` or `shard_dir`."
        )
    split = splits.read_split(published, options.split_dir, options.allow_other_split)
    if options.image_dir is not None:
        images = image_sources.in_folder(pathlib.Path(options.image_dir))
    else:
        images = image_sources.in_shards(
            pathlib.Path(options.shard_dir),
            [*split.train.image_ids, *split.test.image_ids],
        )
    # Kept, so that the expected data are also known later.
    run = {published.train_csv: split.train_csv, published.test_csv: split.test_csv}
    name = f"output_dir={options.output_dir}"
    units = _units(split)
    with (
        files.writing(name),
        record_writer.open_folder(options.folder, run, name),
    ):
        rejected = _write(options, images, units)
    _report(options, split, units, rejected)


class _Unit(NamedTuple):
    """A file to write: one client's, or that of the test images.

    Attributes:
        file: Its path in the output folder.
        owner: The client, or `_TEST_OWNER`.
        image_ids: Its images, in order.
        classes: The images' classes.
    """

    file: str
    owner: str
    image_ids: list[str]
    classes: list[int]


class _Rejected(NamedTuple):
    """A row of rejected.csv, an image that could not be read."""

    image_id: str
    owner: str
    reason: str
    path: str


class _RejectedError(Exception):
    """A file is not written because images of it are rejected."""


def _units(split: splits.SplitFiles) -> list[_Unit]:
    rows_of = collections.defaultdict(list)
    for row, client_id in enumerate(split.train.clients):
        rows_of[client_id].append(row)
    clients = [
        _Unit(
            f"{TRAIN_FOLDER}/{client_id}",
            client_id,
            [split.train.image_ids[row] for row in rows],
            split.train.classes[rows].tolist(),
        )
        for client_id, rows in rows_of.items()
    ]
    test = split.test
    # First, because it takes longest.
    return [
        _Unit(TEST_FILE, _TEST_OWNER, test.image_ids, test.classes.tolist()),
        *clients,
    ]


def _write(
    options: Options, images: image_sources.Images, units: Sequence[_Unit]
) -> list[_Rejected]:
    """Writes every file that is missing, or was written without some images.

    Returns:
        The images that could not be read, in the order of the split. Without
        allow_missing, their files are not written.
    """
    folder = options.folder
    (folder / TRAIN_FOLDER).mkdir(exist_ok=True)
    listing = folder / _REJECTED_FILE
    incomplete = _read_rejected(listing)
    to_do = [
        unit
        for unit in units
        if unit.owner in incomplete or not (folder / unit.file).exists()
    ]
    rejected = {}
    if to_do:
        if not listing.exists():
            files.write_text(listing, files.csv_text([_REJECTED_COLUMNS]))
        appended = files.AppendedFile(listing)

        def work(unit: _Unit) -> list[_Rejected]:
            return _write_unit(unit, options, images, appended)

        total = sum(len(unit.image_ids) for unit in to_do)
        with progress.bar("Writing", total) as bar:
            for unit, found in record_writer.in_threads(work, to_do, options.threads):
                rejected[unit.owner] = found
                bar.update(len(unit.image_ids))
        appended.close()
    in_order = [
        row
        for unit in (*units[1:], units[0])  # The test images last.
        for row in rejected.get(unit.owner, ())
    ]
    if in_order:
        text = files.csv_text([_REJECTED_COLUMNS, *in_order])
        files.write_text(listing, text)
    else:
        listing.unlink(missing_ok=True)
    return in_order


def _write_unit(
    unit: _Unit,
    options: Options,
    images: image_sources.Images,
    listing: files.AppendedFile,
) -> list[_Rejected]:
    """Writes one file, unless images are rejected without `allow_missing`."""
    rejected = []

    def payloads() -> Iterator[bytes]:
        for image_id, label in zip(unit.image_ids, unit.classes, strict=True):
            try:
                encoded = image_sources.read_whole(images, image_id)
            except image_sources.NoImageError as e:
                rejected.append(_Rejected(image_id, unit.owner, e.reason, e.path))
                continue
            yield record_writer.example({IMAGE_FEATURE: encoded, CLASS_FEATURE: label})
        if rejected:
            if not options.allow_missing or len(rejected) == len(unit.image_ids):
                raise _RejectedError
            # Recorded before the file is written, in case the program is killed.
            listing.append(files.csv_text(rejected))

    with contextlib.suppress(_RejectedError):
        record_writer.write_records(options.folder / unit.file, payloads())
    return rejected


def _read_rejected(path: pathlib.Path) -> set[str]:
    """Reads whose images were left out in the preparation.

    Args:
        path: The file, which need not exist.

    Returns:
        Clients' ids, and `_TEST_OWNER` for the test.
    """
    content = files.read_if_there(path)
    if content is None:
        return set()
    return {row["user_id"] for _, row in files.csv_table(content, path, ["user_id"])}


def _report(
    options: Options,
    split: splits.SplitFiles,
    units: Sequence[_Unit],
    rejected: Sequence[_Rejected],
) -> None:
    """Prints a summary.

    Raises:
        RunStoppedError: If images are missing without `allow_missing`.
    """
    folder = options.folder
    num_train, num_test = len(split.train.image_ids), len(split.test.image_ids)
    if rejected:
        found = (
            f"{len(rejected):,} of {num_train + num_test:,} images are missing or "
            f"damaged: see {folder / _REJECTED_FILE}. The first: "
            f"{rejected[0].path} {rejected[0].reason}."
        )
        num_rejected = collections.Counter(row.owner for row in rejected)
        empty = [
            unit.owner
            for unit in units
            if num_rejected[unit.owner] == len(unit.image_ids)
        ]
        if empty:
            raise RunStoppedError(f"{found} No image is left of: {', '.join(empty)}.")
        if not options.allow_missing:
            owners = {row.owner for row in rejected}
            raise RunStoppedError(
                f"{found} The {len(owners):,} files that need them were not written. "
                "Add the images and run the same command again, or leave them out with "
                "`allow_missing`."
            )
        print(f"note: {found} They are left out.", file=sys.stderr)
    num_test_rejected = sum(row.owner == _TEST_OWNER for row in rejected)
    num_train_rejected = len(rejected) - num_test_rejected
    print(
        f"{folder} holds {num_train - num_train_rejected:,} images of "
        f"{len(set(split.train.clients)):,} clients and "
        f"{num_test - num_test_rejected:,} test images."
    )
