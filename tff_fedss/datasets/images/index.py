"""Image index: a list of images with their classes, clients and places.

It is made once. Images are decoded only to check them; the cache keeps the result until
a file changes.
"""

import collections
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from tff_fedss import files, progress
from tff_fedss.datasets import fingerprint, formats, sources
from tff_fedss.datasets.federated import record_writer
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.datasets.images import layout
from tff_fedss.errors import InvalidInputError, RunStoppedError, check_choice

_CHECKED_AT_A_TIME = 256

_Image = TypeVar("_Image")


class ImageIndex:
    """A list of images, which are read one by one.

    Attributes:
        label: The start of messages about them: the argument that named them.
        class_names: A label is a position here. None without classes, which `load`
            allows only on request.
        labels: int32[N]; None if there are no classes.
        client_names: The clients' names; None without clients.
        clients: int32[N], positions in `client_names`; None without clients.
        splits: int8[N] of `layout.TRAIN`, `TEST`, `VALIDATION`; None if not given.
        note: Files that were left out, for the summary; may be empty.
        without_images: The outermost folders without images; empty if a table lists the
            images.
    """

    def __init__(
        self,
        source: sources.Source,
        what: layout.Layout,
        name: str,
        *,
        without_images: Sequence[str] = (),
        normalize: Callable[[bytes], bytes] = formats.normalized,
    ):
        """Joins a source and a layout.

        Args:
            source: The files.
            normalize: Converts a file's content for `encoded`.
        """
        self.name, self.label, self.note = name, source.label, what.note
        self.class_names, self.labels = what.class_names, what.labels
        self.client_names, self.clients = what.client_names, what.clients
        self.splits, self.without_images = what.splits, without_images
        self._source, self._files, self._normalize = source, what.files, normalize

    def __len__(self) -> int:
        return len(self._files)

    def image_name(self, row: int) -> str:
        """Returns an image's name in messages and outputs: its path below the data."""
        return self._source.names[self._files[row]]

    def encoded(self, row: int) -> bytes:
        """Returns an image as a JPEG or PNG; see `formats.normalized`.

        Raises:
            RunStoppedError: If it cannot be read any more.
        """
        return self._read(row, self._normalize)

    def pixels(self, row: int) -> np.ndarray:
        """Returns an image decoded, uint8[height, width, 3]; see `formats.pixels`.

        Raises:
            RunStoppedError: If it cannot be read any more.
        """
        return self._read(row, formats.pixels)

    def _read(self, row: int, convert: Callable[[bytes], _Image]) -> _Image:
        try:
            return convert(self._source.read(int(self._files[row])))
        except (ValueError, *sources.DAMAGED) as error:
            name, why = self.image_name(row), files.error_text(error)
            raise RunStoppedError(
                f"{self.label}: {name} can no longer be read: {why}. Restore it."
            ) from error

    def fingerprint(self, rows: np.ndarray) -> Fingerprint:
        """Returns a fingerprint of some of the images (see `fingerprint`)."""
        numbers = self._files[rows]
        sizes = self._source.sizes[numbers]
        labels = "none" if self.labels is None else self.labels[rows]
        return fingerprint.of(
            {
                "images": len(rows),
                "names of images": [self._source.names[k] for k in numbers],
                "sizes of images": sizes,
                "labels of images": labels,
                "contents of images": [
                    hashlib.blake2b(
                        self._source.read(int(k)), digest_size=8
                    ).hexdigest()
                    for k in numbers[fingerprint.sample(sizes)]
                ],
            }
        )

    def check_images(self) -> None:
        """Decodes every image once, unless the same files have been checked before."""
        numbers = np.unique(self._files)
        names, states = self._identity(numbers)
        kind = f"checked for {self._normalize.__name__}"  # It accepts other formats.
        sources.kept(kind, names, states, lambda: self._check(numbers))

    def identity(self) -> tuple[list[str], np.ndarray]:
        """Returns what `encoded` depends on: names, and states, int64[..., 2].

        The names are those of the files of all rows, and of how they are read.
        """
        names, states = self._identity(self._files)
        return [self._source.part, self._normalize.__name__, *names], states

    def _identity(self, numbers: np.ndarray) -> tuple[list[str], np.ndarray]:
        source, path = self._source, self._source.path
        states = np.stack([source.sizes, source.stamps], 1)[numbers]
        if not path.is_dir():
            # Damage within an archive need not change its list of files.
            states = np.concatenate([sources.file_states([path]), states])
        return [str(path.resolve()), *(source.names[k] for k in numbers)], states

    def mean_bytes(self) -> float:
        """Returns the mean size of the images' files."""
        return float(self._source.sizes[self._files].mean())

    def _check(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        self._source.check_names()
        # As they are, TensorFlow must decode them.
        is_converted = self._normalize is formats.normalized
        kinds = formats.ALL if is_converted else formats.OF_TENSORFLOW

        def problem(part: np.ndarray) -> str | None:
            for number in part.tolist():
                name = self._source.names[number]
                try:
                    formats.check(self._source.read(number), kinds)
                except ValueError as error:
                    return f"{name} {error}"
                except sources.DAMAGED as error:
                    return f"{name} is unreadable or damaged: {files.error_text(error)}"
            return None

        parts = np.split(
            numbers, range(_CHECKED_AT_A_TIME, len(numbers), _CHECKED_AT_A_TIME)
        )
        with progress.bar("Checking images", len(numbers)) as bar:
            for part, found in record_writer.in_threads(problem, parts):
                if found:
                    raise InvalidInputError(f"{self.label}: {found}.")
                bar.update(len(part))
        return {}


def load(
    data_dir: str | os.PathLike,
    *,
    folders: str = "auto",
    needs_labels: bool = True,
) -> ImageIndex:
    """Indexes the images of a folder, an archive or a table, and checks them all.

    `data_dir` is as in `layout`, or the path of an `images.csv`, with which `folders`
    (see `layout.from_folders`) is ignored. `needs_labels` requires two classes or more.
    Unpacked archives and results of checks are in `sources.cache_folder()`. Rows are in
    the order of the names, or of the table.
    """
    check_choice("folders", folders, layout.FOLDERS)
    path, table = pathlib.Path(data_dir), None
    label = f"data_dir={os.fspath(data_dir)}"
    if path.suffix.lower() == ".csv":
        if not path.is_file():
            raise InvalidInputError(f"{label} is not a file; expected a table.")
        path, table = path.parent, path.name
    source = sources.open_source(path, label)
    table = table or _table_of(source)
    without_images = []
    if table is None:
        what = layout.from_folders(source.names, label, folders, needs_labels)
        if needs_labels:
            without_images = _without_images(source)
    else:
        if table not in source.names:
            raise InvalidInputError(f"{label} is hidden; expected another name.")
        with sources.reading(f"{label}: {table}"):
            content = source.read(source.names.index(table))
        what = layout.from_table(content, table, source.names, label, needs_labels)
    if without_images:
        text = f"without images: {layout.shown(without_images)}"
        note = "; ".join(filter(None, [what.note, text]))
        what = dataclasses.replace(what, note=note)
    # For tables and figures, in valid UTF-8, whatever bytes the file system allows.
    name = os.fsencode(os.path.basename(os.path.abspath(data_dir)))
    name = name.decode(errors="replace")
    index = ImageIndex(source, what, name, without_images=without_images)
    if needs_labels and len(index.class_names or ()) < 2:
        raise InvalidInputError(f"{label}: all images are of one class or none.")
    index.check_images()
    return index


def _without_images(source: sources.Source) -> list[str]:
    """Returns the outermost folders without images."""
    holding = {""}
    images = filter(formats.is_image_name, source.names)
    for folder in {name.rpartition("/")[0] for name in images}:
        while folder not in holding:
            holding.add(folder)
            folder = folder.rpartition("/")[0]
    return [
        folder
        for folder in source.folders
        if folder not in holding and folder.rpartition("/")[0] in holding
    ]


def _table_of(source: sources.Source) -> str | None:
    """Returns the table at the top, or below folders shared by all; None: none."""
    found = [n for n in source.names if n.rpartition("/")[2].lower() == layout.TABLE]
    depths = collections.Counter(name.count("/") for name in found)
    top = [name for name in found if name.count("/") == min(depths)]
    if len(top) > 1:
        raise InvalidInputError(f"{source.label}: found {top}; expected one of them.")
    if not top:
        return None
    folder = "".join(top[0].rpartition("/")[:2])
    images = filter(formats.is_image_name, source.names)
    if image := next((name for name in images if not name.startswith(folder)), None):
        raise InvalidInputError(
            f"{source.label}: {top[0]} must be above all images, such as {image}: move "
            "or rename it."
        )
    return top[0]
