"""An index of labelled images: which there are, of what class, and whose.

It is made once and says of every image where it lies. Nothing is decoded but for the
check of `check_images`, whose outcome the cache keeps until a file changes.
"""

import abc
import collections
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import tqdm

from tff_fedss import files
from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.datasets.images import formats, layout, sources
from tff_fedss.errors import InvalidInputError, RunStoppedError

_CACHE_VERSION = 2
_CHECKED_AT_A_TIME = 256
_SAMPLED = 256  # images whose contents a fingerprint of very many digests

_Image = TypeVar("_Image")


class ImageIndex(abc.ABC):
    """Labelled images that are read one by one.

    Attributes:
        name: What to call the data.
        label: What messages about them begin with: the argument that named them.
        class_names: A label is a position here. None if nothing says the classes, which
            `load` allows only where it is asked to.
        labels: int32[N]; None likewise.
        client_names: None if nothing says whose an image is.
        clients: int32[N], positions in `client_names`; None likewise.
        splits: int8[N] of `layout.TRAIN`, `TEST`, `VALIDATION`; None if not given.
        note: What was left out, for a person; may be empty.
    """

    name: str
    label: str
    class_names: Sequence[str] | None
    labels: np.ndarray | None
    client_names: Sequence[str] | None
    clients: np.ndarray | None
    splits: np.ndarray | None
    note: str

    @abc.abstractmethod
    def image_name(self, row: int) -> str:
        """How messages and outputs call an image: its path below the data."""

    @abc.abstractmethod
    def encoded(self, row: int) -> bytes:
        """Returns an image as a JPEG or PNG; see `formats.normalized`.

        Args:
            row: Of the image, 0 <= row < N.

        Raises:
            RunStoppedError: If it cannot be read any more.
        """

    def pixels(self, row: int) -> np.ndarray:
        """Returns an image decoded, uint8[height, width, 3]; see `formats.pixels`.

        Args:
            row: As of `encoded`.

        Raises:
            RunStoppedError: Likewise.
        """
        return formats.pixels(self.encoded(row))

    @abc.abstractmethod
    def fingerprint(self, rows: np.ndarray) -> Fingerprint:
        """By what a run knows some of the images again; see `fingerprint`."""

    def __len__(self) -> int:
        return len(self.labels)


class FileIndex(ImageIndex):
    """Images in a folder, a zip or a tar.

    Attributes:
        without_images: The folders in which no image lies, of such folders in each
            other the outer ones; empty if a table says what the images are.
    """

    def __init__(
        self,
        source: sources.Source,
        what: layout.Layout,
        name: str,
        label: str,
        without_images: Sequence[str] = (),
    ):
        """Joins what was found.

        Args:
            source: Where the images lie.
            what: What is known of them.
            name: What to call the data.
            label: What messages begin with.
            without_images: See the class.
        """
        self.name, self.without_images = name, without_images
        self.class_names, self.labels = what.class_names, what.labels
        self.client_names, self.clients = what.client_names, what.clients
        self.splits, self.note = what.splits, what.note
        if without_images:
            text = f"without images: {layout.shown(without_images)}"
            self.note = "; ".join(filter(None, [self.note, text]))
        self._source, self._files, self.label = source, what.files, label

    def __len__(self) -> int:
        return len(self._files)

    def image_name(self, row: int) -> str:
        """See the base class."""
        return self._source.names[self._files[row]]

    def encoded(self, row: int) -> bytes:
        """See the base class."""
        return self._read(row, formats.normalized)

    def pixels(self, row: int) -> np.ndarray:
        """See the base class."""
        return self._read(row, formats.pixels)

    def _read(self, row: int, convert: Callable[[bytes], _Image]) -> _Image:
        number = int(self._files[row])
        try:
            return convert(self._source.read(number))
        except (OSError, ValueError) as error:
            raise RunStoppedError(
                f"{self.label}: {self._source.names[number]} can no longer be read: "
                f"{files.error_text(error)}. Put it back as it was, then give the same "
                "command again."
            ) from error

    def fingerprint(self, rows: np.ndarray) -> Fingerprint:
        """See the base class."""
        numbers = self._files[rows]
        sizes = self._source.sizes[numbers]
        sample = rows
        if sizes.sum() > fingerprint.MAX_BYTES:
            sample = rows[fingerprint.evenly_spaced(len(rows), _SAMPLED)]
        return {
            "images": len(rows),
            "names of images": fingerprint.of_text(
                self._source.names[k] for k in numbers
            ),
            "sizes of images": fingerprint.of_arrays([sizes]),
            "labels of images": (
                "none"
                if self.labels is None
                else fingerprint.of_arrays([self.labels[rows]])
            ),
            "contents of images": fingerprint.of_text(
                hashlib.blake2b(self._source.read(int(k)), digest_size=8).hexdigest()
                for k in self._files[sample]
            ),
        }

    def check_images(self, cache_dir: pathlib.Path) -> None:
        """Decodes every image once, unless the same files have been checked before.

        Args:
            cache_dir: Where it is kept that they have been.

        Raises:
            InvalidInputError: If one cannot be decoded whole (of several, one of the
                first by name), or the archive is damaged.
        """
        digest = self._listing_digest()
        record = cache_dir / f"checked_{digest}.json"
        if os.path.exists(record):  # Not if the cache is somebody else's.
            return
        if damage := self._source.damage():
            raise InvalidInputError(f"{self.label}: {damage}.")
        stop = threading.Event()

        def problem(numbers: Iterable[int]) -> str | None:
            for number in numbers:
                if stop.is_set():
                    return None
                name = self._source.names[number]
                try:
                    formats.check(self._source.read(number))
                except OSError as error:
                    return f"{name} cannot be read: {error.strerror or error}"
                except ValueError as error:
                    return f"{name} {error}"
            return None

        numbers = np.unique(self._files).tolist()
        parts = [
            numbers[k : k + _CHECKED_AT_A_TIME]
            for k in range(0, len(numbers), _CHECKED_AT_A_TIME)
        ]
        with (
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
            tqdm.tqdm(
                desc="Checking images",
                total=len(numbers),
                unit=" images",
                delay=2,
                disable=None,
            ) as bar,
        ):
            try:
                for part, found in zip(parts, pool.map(problem, parts), strict=True):
                    if found:
                        raise InvalidInputError(f"{self.label}: {found}.")
                    bar.update(len(part))
            finally:
                stop.set()
        # Without a cache it is checked again, which only costs time.
        with contextlib.suppress(InvalidInputError, RunStoppedError, OSError):
            files.make_folder(cache_dir)
            text = json.dumps({"data": self.label, "images": len(numbers)})
            files.write_text(record, text + "\n")

    def _listing_digest(self) -> str:
        digest = hashlib.sha256()
        path = self._source.path
        digest.update(_as_bytes(f"{_CACHE_VERSION} {path.resolve()}"))
        if not path.is_dir():
            # Damage within an archive need not change what it says of its files.
            status = path.stat()
            digest.update(_as_bytes(f"\0{status.st_size} {status.st_mtime_ns}\0"))
        for array in (self._files, self._source.sizes, self._source.stamps):
            digest.update(np.ascontiguousarray(array, "<i8").data)
        for name in self._source.names:
            digest.update(_as_bytes(f"{name}\0"))
        return digest.hexdigest()[:32]


def load(
    data_dir: str | os.PathLike,
    *,
    folders: str = "auto",
    needs_labels: bool = True,
    cache_dir: str | os.PathLike | None = None,
) -> FileIndex:
    """Indexes the images of a folder, an archive or a table, and checks them all.

    Args:
        data_dir: A folder or archive as in `layout`, or the path of an `images.csv`.
        folders: See `layout.from_folders`; a table says it better.
        needs_labels: Whether there must be classes, and two or more.
        cache_dir: Where unpacked archives and what was checked are kept; by default
            `sources.default_cache_dir()`.

    Returns:
        The index. Rows are in the order of the names, or of the table.

    Raises:
        InvalidInputError: If there are no images, their layout is ambiguous, or one is
            damaged.
    """
    if folders not in layout.FOLDERS:
        raise InvalidInputError(
            f"folders={folders!r} must be one of {', '.join(layout.FOLDERS)}."
        )
    path = pathlib.Path(data_dir)
    label = f"data_dir={os.fspath(data_dir)}"
    table = None
    if path.suffix.lower() == ".csv":
        if not path.is_file():
            raise InvalidInputError(f"{label} is no file; expected a table of images.")
        path, table = path.parent, path.name
    cache_dir = pathlib.Path(cache_dir or sources.default_cache_dir())
    source = sources.open_source(path, cache_dir)
    names, without_images = source.names, []
    if table is None:
        table = _table_of(names, label)
    if table is None:
        what = layout.from_folders(names, label, folders, needs_labels)
        without_images = _without_images(source, label) if needs_labels else []
    else:
        # In a folder, a table that was named may be hidden, or lie beside an archive.
        content = source.read(names.index(table))
        what = layout.from_table(content, table, names, label, needs_labels)
    name = pathlib.Path(os.path.abspath(data_dir)).name
    index = FileIndex(source, what, name, label, without_images)
    if needs_labels and index.class_names is None:
        raise InvalidInputError(
            f"{label}: folders={folders} says that the images have no class; expected "
            "classes."
        )
    if needs_labels and len(index.class_names) < 2:
        raise InvalidInputError(
            f"{label}: all images are of one class ({index.class_names[0]!r}); "
            "expected two or more."
        )
    index.check_images(cache_dir)
    return index


def _without_images(source: sources.Source, label: str) -> list[str]:
    """The folders in which no image lies, but for those in other such folders."""
    holding = {""}
    images = filter(formats.is_image_name, source.names)
    for folder in {name.rpartition("/")[0] for name in images}:
        while folder not in holding:
            holding.add(folder)
            folder = folder.rpartition("/")[0]
    result = []
    for folder in source.folders:
        if folder in holding or folder.rpartition("/")[0] not in holding:
            continue
        if formats.is_image_name(folder):
            raise InvalidInputError(
                f"{label}: {folder} is a folder; expected an image."
            )
        result.append(folder)
    return result


def _as_bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _table_of(names: Sequence[str], label: str) -> str | None:
    """The table at the top, or below folders that everything shares; None: none."""
    found = [n for n in names if n.rpartition("/")[2].lower() == layout.TABLE]
    if not found:
        return None
    depths = collections.Counter(name.count("/") for name in found)
    top = min(depths)
    if depths[top] > 1:
        raise InvalidInputError(
            f"{label}: found {found[0]} and {found[1]}; expected one."
        )
    return next(name for name in found if name.count("/") == top)
