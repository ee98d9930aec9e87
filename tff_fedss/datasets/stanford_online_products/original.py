"""The files of the original: where they are, and what their listings say."""

import contextlib
import csv
import io
import os
import pathlib
import re
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tff_fedss import files
from tff_fedss.datasets import archives, image_files
from tff_fedss.errors import InvalidInputError

FOLDER = "Stanford_Online_Products"
ARCHIVE = f"{FOLDER}.zip"
LISTINGS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
BUILDER = "stanford_online_products"  # TFDS's
NUM_TRAIN_IMAGES, NUM_TRAIN_CLASSES = 59_551, 11_318
NUM_TEST_IMAGES, NUM_TEST_CLASSES = 60_502, 11_316
NUM_CLASSES = NUM_TRAIN_CLASSES + NUM_TEST_CLASSES
_NUM_SUPER_CLASSES = 12

_COLUMNS = ("image_id", "class_id", "super_class_id", "path")
_NO_FILE = "there is no such file"
_INTEGER = re.compile(r"[0-9]{1,9}")


class Listing(NamedTuple):
    """The rows of Ebay_train.txt or Ebay_test.txt, in their order.

    Attributes:
        image_ids: str[N], all different.
        labels: `class_id` - 1, as in TFDS, int32[N]. In the original, 0..11317 in
            training and 11318..22633 in the test.
        paths: The images' files, relative to the folder of the listing.
        lines: The lines of the file in which the rows are.
        name: What to call the file in a message.
    """

    image_ids: list[str]
    labels: np.ndarray
    paths: list[str]
    lines: list[int]
    name: str

    def where(self, row: int) -> str:
        """Names the line of a row, for a message."""
        return f"{self.name}, line {self.lines[row]}"


class Place(NamedTuple):
    """What was found in a data_dir.

    Attributes:
        source: The data_dir, as messages are to name it.
        tfds_dir: The folder in which TFDS is to keep its data set; None: its own.
        archive: The zip, if there is one.
        folder: The unpacked folder, if there is one and no zip.
    """

    source: str
    tfds_dir: pathlib.Path | None
    archive: pathlib.Path | None = None
    folder: pathlib.Path | None = None


def find(data_dir: os.PathLike | None) -> Place:
    """Looks for the data; `load` says where.

    Raises:
        InvalidInputError: If it is not there.
    """
    if data_dir is None:
        return Place("Without `data_dir`", None)
    source = f"data_dir={os.fspath(data_dir)}"
    path = pathlib.Path(data_dir).absolute()
    layout = (
        f"expected {ARCHIVE}, or a folder that holds it, or {FOLDER}/Ebay_train.txt, "
        f"or TFDS's {BUILDER}"
    )
    if path.is_file():
        if path.suffix.lower() != ".zip":
            raise InvalidInputError(f"{source} is a file but no zip; {layout}.")
        return Place(source, path.parent, archive=path)
    if not path.is_dir():
        raise InvalidInputError(f"{source} does not exist; {layout}.")
    if (path / ARCHIVE).is_file():
        return Place(source, path, archive=path / ARCHIVE)
    for folder, parent in ((path / FOLDER, path), (path, path.parent)):
        if any((folder / name).is_file() for name in LISTINGS.values()):
            return Place(source, parent, folder=folder)
    if (path / BUILDER).is_dir():
        return Place(source, path)
    found = sorted(entry.name for entry in path.iterdir())
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    raise InvalidInputError(f"{source}: {layout}; found {shown or 'an empty folder'}.")


class Files:
    """The files of the original, in the zip or unpacked."""

    def __init__(self, root: str, names: set[str] | None, read: Callable[[str], bytes]):
        self._root = root
        self._names = names
        self._read = read

    def name(self, path: str) -> str:
        """What to call a file in a message."""
        return f"{self._root}/{path}"

    def has(self, path: str) -> bool:
        """Whether there is a file of this path, relative to the listings' folder."""
        if self._names is not None:
            return path in self._names
        return os.path.isfile(self.name(path))

    def read(self, path: str) -> bytes:
        """Returns the content of a file; raises ValueError with the reason if not."""
        if not self.has(path):
            raise ValueError(_NO_FILE)
        try:
            return self._read(path)
        except archives.DAMAGED as e:
            raise ValueError(f"cannot be read: {files.error_text(e)}") from e


@contextlib.contextmanager
def open_original(place: Place) -> Iterator[Files]:
    """Opens the archive of a place, or its unpacked folder.

    Raises:
        InvalidInputError: If the archive is damaged.
    """
    if place.folder is not None:
        yield Files(
            os.fspath(place.folder),
            None,
            lambda path: files.read(place.folder / path),
        )
        return
    try:
        zipped = zipfile.ZipFile(place.archive)
    except archives.DAMAGED as e:
        raise InvalidInputError(
            f"{place.source}: {place.archive.name} is not a whole zip: "
            f"{files.error_text(e)} (it has {place.archive.stat().st_size:,} bytes)."
        ) from e
    prefix = f"{FOLDER}/"
    with zipped:
        names = {
            name.removeprefix(prefix)
            for name in zipped.namelist()
            if name.startswith(prefix)
        }
        yield Files(
            os.fspath(place.archive / FOLDER),
            names,
            lambda path: zipped.read(prefix + path),
        )


def read_train_listing(data_dir: os.PathLike) -> Listing:
    """Reads and checks Ebay_train.txt alone; needs no image.

    Args:
        data_dir: As for `load`, but not None, and with the zip or its unpacked folder;
            of the latter, Ebay_train.txt is enough.

    Returns:
        The listing.

    Raises:
        InvalidInputError: If it is not there or damaged.
    """
    place = find(data_dir)
    if place.archive is None and place.folder is None:
        raise InvalidInputError(
            f"{place.source}: found no {ARCHIVE} and no {FOLDER}/Ebay_train.txt; "
            "one of them is needed for the images' ids."
        )
    with open_original(place) as original:
        return read_train(original)


def read_train(original: Files) -> Listing:
    """Reads and checks Ebay_train.txt.

    Raises:
        InvalidInputError: If it is not there or damaged. It names the line.
    """
    train = _read_listing(original, LISTINGS["train"])
    present = np.unique(train.labels)
    gaps = np.flatnonzero(present != np.arange(len(present)))
    if len(gaps):
        row = int(np.flatnonzero(train.labels == present[gaps[0]])[0])
        raise InvalidInputError(
            f"{train.where(row)}: class_id {present[gaps[0]] + 1}, but no row has "
            f"class_id {gaps[0] + 1}; training classes must be numbered from 1 without "
            "gaps."
        )
    return train


def read_test(original: Files, train: Listing) -> Listing:
    """Reads and checks Ebay_test.txt, likewise.

    Args:
        original: The files.
        train: The training images' listing; no product is in both.
    """
    test = _read_listing(original, LISTINGS["test"])
    for row in np.flatnonzero(np.isin(test.labels, train.labels))[:1]:
        other = int(np.flatnonzero(train.labels == test.labels[row])[0])
        raise InvalidInputError(
            f"{test.where(row)}: class_id {test.labels[row] + 1} is a training class "
            f"too ({train.where(other)}); test classes must be others."
        )
    return test


def _read_listing(original: Files, file_name: str) -> Listing:
    name = original.name(file_name)
    try:
        text = original.read(file_name).decode("utf-8")
    except UnicodeDecodeError as e:
        raise InvalidInputError(f"{name}: is not UTF-8 text: {e.reason}.") from e
    except ValueError as e:
        raise InvalidInputError(f"{name}: {e}.") from e
    # As TFDS reads it: what is a row, and so the number of each row, must be the same.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=" ")
    rows = ((reader.line_num, row) for row in _csv_rows(reader, name) if row)
    _, header = next(rows, (1, []))
    missing = [column for column in _COLUMNS if header.count(column) != 1]
    if missing:
        raise InvalidInputError(
            f"{name}, line 1: expected the columns {' '.join(_COLUMNS)}, once each; "
            f"found {' '.join(header) or 'nothing'}."
        )
    places = [header.index(column) for column in _COLUMNS]

    line_of_image, line_of_path, labels = {}, {}, []
    for line, row in rows:
        where = f"{name}, line {line}"
        if len(row) != len(header):
            raise InvalidInputError(
                f"{where}: found {len(row)} fields; the header has {len(header)}."
            )
        image_id, class_id, super_class_id, path = (row[place] for place in places)
        if not image_id.strip():
            raise InvalidInputError(f"{where}: the image_id is blank.")
        if not image_id.isprintable():
            raise InvalidInputError(
                f"{where}: the image_id {image_id!r} has a character that cannot be "
                "printed."
            )
        labels.append(_to_number(class_id, "class_id", NUM_CLASSES, where) - 1)
        _to_number(super_class_id, "super_class_id", _NUM_SUPER_CLASSES, where)
        if not _is_below(path):
            raise InvalidInputError(
                f"{where}: the path {path!r} is not one below {FOLDER}."
            )
        for what, value, line_of in (
            ("image_id", image_id, line_of_image),
            ("path", path, line_of_path),
        ):
            if line_of.setdefault(value, line) != line:
                raise InvalidInputError(
                    f"{where}: the {what} {value!r} is already on line "
                    f"{line_of[value]}; every image may be there once only."
                )
    if not labels:
        raise InvalidInputError(f"{name}: found no row; expected a line per image.")
    return Listing(
        list(line_of_image),
        np.array(labels, np.int32),
        list(line_of_path),
        list(line_of_image.values()),
        name,
    )


def _csv_rows(reader: Any, name: str) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as e:
        raise InvalidInputError(f"{name}, line {reader.line_num}: {e}.") from e


def _to_number(text: str, column: str, largest: int, where: str) -> int:
    if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= largest:
        raise InvalidInputError(
            f"{where}: the {column} {text!r} is not an integer in 1..{largest}."
        )
    return int(text)


def _is_below(path: str) -> bool:
    parts = path.split("/")
    return all(parts) and not {".", ".."} & set(parts)


def check_images(original: Files, listing: Listing) -> None:
    """Reads every image of a listing and checks that it decodes, several at a time."""

    def problem(row: int) -> str | None:
        path = listing.paths[row]
        try:
            image_files.check(original.read(path))
        except ValueError as e:
            return f"{listing.where(row)}: the image {path}: {e}."
        return None

    # Found at once, where reading them takes minutes.
    for row, path in enumerate(listing.paths):
        if not original.has(path):
            raise InvalidInputError(
                f"{listing.where(row)}: the image {path}: {_NO_FILE}."
            )
    what = listing.name.rpartition("/")[2]
    image_files.check_all(range(len(listing.paths)), problem, what)
