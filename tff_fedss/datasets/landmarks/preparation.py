"""Preparation of a landmarks data set: a file per client, and one of the test images.

`record_writer` writes the files and skips finished ones.
"""

import collections
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tff_fedss import files, progress
from tff_fedss.datasets import formats, sources
from tff_fedss.datasets.federated import record_writer, split_csv
from tff_fedss.datasets.landmarks import dataset
from tff_fedss.datasets.landmarks.dataset import (
    CLASS_FEATURE,
    IMAGE_FEATURE,
    TEST_FILE,
    TRAIN_FOLDER,
)
from tff_fedss.errors import InvalidInputError, RunStoppedError

_REJECTED_FILE = "rejected.csv"
_REJECTED_COLUMNS = ("image_id", "user_id", "reason", "path")
_TEST_OWNER = "test"  # the user_id of rejected test images

# A function from an image's id to its path, for messages, and the function that reads
# its content; it raises NoImageError if the image is missing.
Images = Callable[[str], tuple[str, Callable[[], bytes]]]


def prepare(
    *,
    output_dir: str | None,
    split: str = "160k",
    split_dir: str | None = None,
    image_dir: str | None = None,
    shard_dir: str | None = None,
    threads: int | None = None,
    allow_missing: bool = False,
    allow_other_split: bool = False,
) -> None:
    """Prepares the data set and prints a summary.

    Args:
        output_dir: The output folder, for `gld160k` or `gld23k`.
        split: One of `dataset.SPLITS`.
        split_dir: The folder or the zip with both CSV files of the split.
        shard_dir: The folder of the original archives, instead of image_dir.
        threads: Number of images read at a time; None: two per core.
        allow_missing: Whether images that are missing or damaged are left out.
        allow_other_split: Whether the CSV files may differ from the published ones; a
            line on stderr reports the differences.

    Raises:
        RunStoppedError: If the disk is full, the system forbids to write, or images are
            missing or damaged without `allow_missing`.
    """
    if not (output_dir and split_dir) or (image_dir is None) == (shard_dir is None):
        wanted = "`output_dir`, `split_dir` and either `image_dir` or `shard_dir`"
        raise InvalidInputError(f"give {wanted}.")
    published = dataset.SPLITS[split]
    # Kept in the folder, so that the expected data are also known later.
    run, train, test = _read_split(published, split_dir, allow_other_split)
    if image_dir is not None:
        images = in_folder(pathlib.Path(image_dir))
    else:
        ids = [*train.image_ids, *test.image_ids]
        images = in_shards(pathlib.Path(shard_dir), ids)
    folder = pathlib.Path(output_dir) / published.folder
    name = f"output_dir={output_dir}"
    units = _units(train, test)
    with files.writing(name), record_writer.open_folder(folder, run, name):
        rejected = _write(folder, images, units, threads, allow_missing)
    _report(folder, units, rejected, allow_missing)


def _read_split(
    published: dataset.Published, split_dir: str, allow_other_split: bool
) -> tuple[dict[str, bytes], split_csv.Split, split_csv.Split]:
    """Reads and checks the two CSV files of a split.

    Returns:
        The files' contents by name, the clients' rows and the test's.
    """
    source = sources.open_source(split_dir, f"split_dir={split_dir}")
    names = published.train_csv, published.test_csv
    (train_path, train_csv), (test_path, test_csv) = map(source.read_only, names)
    n = published.num_classes
    train = split_csv.parse(train_csv, f"{split_dir}/{train_path}", n)
    test = split_csv.parse(test_csv, f"{split_dir}/{test_path}", n, with_clients=False)
    problems = list(_count_problems(train, test, published))
    if problems:
        message = f"This is not the published {published.title}: {'; '.join(problems)}."
        if not allow_other_split:
            cure = "If that is intended, give `allow_other_split`"
            raise InvalidInputError(f"{message} {cure}.")
        print(f"note: {message}", file=sys.stderr)
    return dict(zip(names, (train_csv, test_csv), strict=True)), train, test


def _count_problems(
    train: split_csv.Split, test: split_csv.Split, published: dataset.Published
) -> Iterator[str]:
    counts = [
        ("clients", len(set(train.clients)), published.num_clients),
        ("classes of clients", len(np.unique(train.classes)), published.num_classes),
        ("images of clients", len(train.image_ids), published.num_train_images),
    ]
    if published.num_test_images is not None:
        counts.append(("test images", len(test.image_ids), published.num_test_images))
    for what, found, expected in counts:
        if found != expected:
            yield f"it has {found:,} {what}, expected {expected:,}"
    in_both = len(set(train.image_ids) & set(test.image_ids))
    if in_both:
        yield f"{in_both:,} test images are clients' images too"


class _Unit(NamedTuple):
    """A file to write: one client's, or that of the test images."""

    file: str
    owner: str  # The client, or `_TEST_OWNER`.
    image_ids: list[str]  # Its images, in order.
    classes: list[int]


class _Rejected(NamedTuple):
    """A row of rejected.csv, an image that could not be read."""

    image_id: str
    owner: str
    reason: str
    path: str


class _RejectedError(Exception):
    """A file is not written because images of it are rejected."""


def _units(train: split_csv.Split, test: split_csv.Split) -> list[_Unit]:
    rows_of = collections.defaultdict(list)
    for row, client_id in enumerate(train.clients):
        rows_of[client_id].append(row)
    clients = [
        _Unit(
            f"{TRAIN_FOLDER}/{client_id}",
            client_id,
            [train.image_ids[row] for row in rows],
            train.classes[rows].tolist(),
        )
        for client_id, rows in rows_of.items()
    ]
    # First, because it takes longest.
    return [
        _Unit(TEST_FILE, _TEST_OWNER, test.image_ids, test.classes.tolist()),
        *clients,
    ]


def _write(
    folder: pathlib.Path,
    images: Images,
    units: Sequence[_Unit],
    threads: int | None,
    allow_missing: bool,
) -> list[_Rejected]:
    """Writes every file that is missing, or was written without some images.

    Returns:
        The images that could not be read, in the order of the split. Without
        allow_missing, their files are not written.
    """
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
            return _write_unit(unit, folder, images, appended, allow_missing)

        total = sum(len(unit.image_ids) for unit in to_do)
        with progress.bar("Writing", total) as bar:
            for unit, found in record_writer.in_threads(work, to_do, threads):
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
    folder: pathlib.Path,
    images: Images,
    listing: files.AppendedFile,
    allow_missing: bool,
) -> list[_Rejected]:
    """Writes one file, unless images are rejected without `allow_missing`."""
    rejected = []

    def payloads() -> Iterator[bytes]:
        for image_id, label in zip(unit.image_ids, unit.classes, strict=True):
            try:
                encoded = read_whole(images, image_id)
            except NoImageError as e:
                rejected.append(_Rejected(image_id, unit.owner, e.reason, e.path))
                continue
            yield record_writer.example({IMAGE_FEATURE: encoded, CLASS_FEATURE: label})
        if rejected:
            if not allow_missing or len(rejected) == len(unit.image_ids):
                raise _RejectedError
            # Recorded before the file is written, in case the program is killed.
            listing.append(files.csv_text(rejected))

    with contextlib.suppress(_RejectedError):
        record_writer.write_records(folder / unit.file, payloads())
    return rejected


def _read_rejected(path: pathlib.Path) -> set[str]:
    """Returns the clients, or `_TEST_OWNER`, of which images were left out."""
    content = files.read_if_there(path)
    if content is None:
        return set()
    return {row["user_id"] for _, row in files.csv_table(content, path, ["user_id"])}


def _report(
    folder: pathlib.Path,
    units: Sequence[_Unit],
    rejected: Sequence[_Rejected],
    allow_missing: bool,
) -> None:
    """Prints a summary.

    Raises:
        RunStoppedError: If images are missing without `allow_missing`.
    """
    expected = {unit.owner: len(unit.image_ids) for unit in units}
    num_rejected = collections.Counter(row.owner for row in rejected)
    if rejected:
        found = (
            f"{len(rejected):,} of {sum(expected.values()):,} images are missing or "
            f"damaged: see {folder / _REJECTED_FILE}. The first: "
            f"{rejected[0].path} {rejected[0].reason}."
        )
        empty = [owner for owner in expected if num_rejected[owner] == expected[owner]]
        if empty:
            raise RunStoppedError(f"{found} No image is left of: {', '.join(empty)}.")
        if not allow_missing:
            raise RunStoppedError(
                f"{found} The {len(num_rejected):,} files that need them were not "
                "written: add the images, or leave them out with `allow_missing`."
            )
        print(f"note: {found} They are left out.", file=sys.stderr)
    num_test = expected.pop(_TEST_OWNER) - num_rejected.pop(_TEST_OWNER, 0)
    print(
        f"{folder} holds {sum(expected.values()) - num_rejected.total():,} images of "
        f"{len(expected):,} clients and {num_test:,} test images."
    )


# The images: files, or the original tars.


class NoImageError(Exception):
    """An image that is missing or that cannot be read.

    Attributes:
        reason: The reason, to follow the path: "is missing".
    """

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def read_whole(images: Images, image_id: str) -> bytes:
    """Returns the content of an undamaged image.

    Raises:
        NoImageError: If it is missing or damaged.
    """
    path, read = images(image_id)
    try:
        encoded = read()
    except sources.DAMAGED as e:
        reason = f"cannot be read: {files.error_text(e)}"
        is_missing = isinstance(e, FileNotFoundError)
        raise NoImageError(path, "is missing" if is_missing else reason) from e
    try:
        formats.check(encoded)
    except ValueError as e:
        raise NoImageError(path, str(e)) from e
    return encoded


def in_folder(folder: pathlib.Path) -> Images:
    """Finds images in files, flat or in the tree of the original archives."""
    if not folder.is_dir():
        expected = "<id>.jpg or a/b/c/<id>.jpg"
        raise InvalidInputError(f"image_dir={folder} is no folder of {expected}.")

    def find(image_id: str) -> tuple[str, Callable[[], bytes]]:
        tree = folder / "/".join(image_id[:3]) / f"{image_id}.jpg"
        path = tree if os.path.exists(tree) else folder / f"{image_id}.jpg"
        return str(path), path.read_bytes

    return find


def in_shards(folder: pathlib.Path, image_ids: Collection[str]) -> Images:
    """Finds images in the original `images_NNN.tar`, which are not unpacked.

    Args:
        folder: Folder of the archives; there may be fewer than 500.
    """
    shards = sorted(folder.glob("images_*.tar"))
    if not shards:
        raise InvalidInputError(
            f"shard_dir={folder} has no images_000.tar to _499.tar."
        )
    image_ids, found = frozenset(image_ids), {}

    def listed(shard: pathlib.Path) -> sources.Tar:
        with sources.reading(str(shard)):
            return sources.Tar(shard)

    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        progress.bar(
            "Looking into the shards", len(shards), "shards", pool.map(listed, shards)
        ) as tars,
    ):
        for tar in tars:
            for row, name in enumerate(tar.names):
                image_id = name.rpartition("/")[2].removesuffix(".jpg")
                if image_id in image_ids:
                    place = tar.path, tar.starts[row], tar.sizes[row]
                    found.setdefault(image_id, place)

    def find(image_id: str) -> tuple[str, Callable[[], bytes]]:
        if image_id not in found:
            path = f"{folder}/*/{image_id}.jpg"
            raise NoImageError(path, f"is in none of the {len(shards)} shards")
        place = found[image_id]
        read = functools.partial(sources.read_part, *place)
        return f"{place[0]}:{image_id}.jpg", read

    return find
