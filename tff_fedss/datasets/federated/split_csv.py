"""The CSV file of a split: each image's class and, in training, its client.

The format is that of Landmarks-User-160k (Hsu et al., 2020): `user_id,image_id,class`
for the clients' images and `image_id,class` for held-out ones. Other data sets of this
project also use it for their partitions.
"""

import os
import re
from typing import NamedTuple

import numpy as np

from tff_fedss import files
from tff_fedss.errors import InvalidInputError

_CLIENT, _IMAGE, _CLASS = "user_id", "image_id", "class"
_MAX_CLASS = 2**31 - 1
_FILE_NAME = re.compile(r"[^./\0][^/\0]*")


class Split(NamedTuple):
    """The rows of such a file, in its order.

    Attributes:
        image_ids: The N images, all different.
        classes: int32[N].
        clients: The client of each image, N ids; None for held-out images.
    """

    image_ids: list[str]
    classes: np.ndarray
    clients: list[str] | None


def read(
    path: os.PathLike, num_classes: int | None = None, with_clients: bool = True
) -> Split:
    """Reads a file, see `parse`."""
    return parse(files.read_bytes(path), path, num_classes, with_clients)


def parse(
    content: bytes,
    name: str | os.PathLike,
    num_classes: int | None = None,
    with_clients: bool = True,
) -> Split:
    """Parses and checks the content of a file.

    Args:
        content: The whole content. Columns may be in any order; others are ignored.
        name: The file's name in messages.
        num_classes: n: classes must be in 0..n-1. If None, in 0..2^31-1.
        with_clients: Whether the column of clients is required; if not, it is not read.
    """
    columns = (_CLIENT, _IMAGE, _CLASS) if with_clients else (_IMAGE, _CLASS)
    largest = _MAX_CLASS if num_classes is None else num_classes - 1
    where_of, classes, clients = {}, [], []
    for where, row in files.csv_table(content, name, columns):
        image_id, label = row[_IMAGE], row[_CLASS]
        files.expect_once(where_of, image_id, where, _IMAGE)
        classes.append(files.whole_number(label, where, _CLASS, 0, largest))
        if with_clients:
            if not _FILE_NAME.fullmatch(row[_CLIENT]):
                found = f"the {_CLIENT} {row[_CLIENT]!r}"
                raise InvalidInputError(
                    f"{where}: {found} cannot be the name of a file."
                )
            clients.append(row[_CLIENT])
    if not classes:
        raise InvalidInputError(f"{name}: found no row; expected a line per image.")
    return Split(
        list(where_of), np.array(classes, np.int32), clients if with_clients else None
    )


def write(path: os.PathLike, split: Split) -> None:
    r"""Writes a file for `read`, whole or not at all; equal rows give equal bytes."""
    columns = {_IMAGE: split.image_ids, _CLASS: split.classes.tolist()}
    if split.clients is not None:
        columns = {_CLIENT: split.clients, **columns}
    rows = zip(*columns.values(), strict=True)
    files.write_text(path, files.csv_text([columns, *rows]))
