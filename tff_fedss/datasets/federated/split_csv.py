"""The CSV that says which image has which class and, in training, which client.

The format is that of Landmarks-User-160k (Hsu et al., 2020): `user_id,image_id,class`
for the clients' images and `image_id,class` for held-out ones. Other data sets of this
project use it for their partitions too.
"""

import csv
import io
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tff_fedss import errors, files

_CLIENT, _IMAGE, _CLASS = "user_id", "image_id", "class"
_MAX_CLASS = 2**31 - 1
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_SHOWN = 40  # characters, of what is no number
_MAX_FILE_NAME_BYTES = 200  # leaves room for a suffix; Linux allows 255


class Split(NamedTuple):
    """The rows of such a file, in its order.

    Attributes:
        image_ids: The N images, all different.
        classes: int32[N].
        clients: The client that has each image, N ids; None for held-out images.
    """

    image_ids: list[str]
    classes: np.ndarray
    clients: list[str] | None


def read(
    path: os.PathLike, num_classes: int | None = None, with_clients: bool = True
) -> Split:
    """Reads and checks a file.

    Args:
        path: The file. Its columns may be in any order; others beside them are ignored,
            and so are blank lines.
        num_classes: n: classes must be in 0..n-1. If None, in 0..2^31-1.
        with_clients: Whether there must be a column of clients; else it is not read.

    Returns:
        Its rows.

    Raises:
        errors.InvalidInputError: If the file cannot be read or a row cannot be used.
            The message names the file and the line.
    """
    try:
        content = files.read(path)
    except OSError as e:
        raise errors.InvalidInputError(
            f"{os.fspath(path)}: cannot be read: {e.strerror or e}."
        ) from e
    return parse(content, os.fspath(path), num_classes, with_clients)


def parse(
    content: bytes,
    name: str,
    num_classes: int | None = None,
    with_clients: bool = True,
) -> Split:
    """Checks the content of a file that was read from somewhere, such as an archive.

    Args:
        content: All of it, in UTF-8.
        name: What to call the file in a message.
        num_classes: As in `read`.
        with_clients: As in `read`.

    Returns:
        Its rows.

    Raises:
        errors.InvalidInputError: As `read` does.
    """
    rows = _rows(content, name)
    columns = (_IMAGE, _CLASS, _CLIENT) if with_clients else (_IMAGE, _CLASS)
    _, header = next(rows, (1, []))
    places = [_place(header, column, columns, name) for column in columns]
    largest = _MAX_CLASS if num_classes is None else num_classes - 1

    line_of = {}
    classes = []
    clients = []
    for line, row in rows:
        where = f"{name}, line {line}"
        if len(row) != len(header):
            raise errors.InvalidInputError(
                f"{where}: found {len(row)} fields; the header has {len(header)}."
            )
        image_id, class_name, *client = (row[place] for place in places)
        if not image_id.strip():
            raise errors.InvalidInputError(f"{where}: the {_IMAGE} is blank.")
        if not image_id.isprintable():
            raise errors.InvalidInputError(
                f"{where}: the {_IMAGE} {image_id!r} has a character that cannot be "
                "printed."
            )
        first = line_of.setdefault(image_id, line)
        if first != line:
            raise errors.InvalidInputError(
                f"{where}: {_IMAGE} {image_id!r} is already on line {first}; every "
                "image may be there once only."
            )
        classes.append(_to_class(class_name, largest, where))
        if with_clients:
            _check_file_name(client[0], where)
            clients.append(client[0])
    if not classes:
        raise errors.InvalidInputError(
            f"{name}: found no row; expected a line per image."
        )
    return Split(
        list(line_of), np.array(classes, np.int32), clients if with_clients else None
    )


def _rows(content: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yields every row that is not blank with the number of its (last) line."""
    try:
        text = content.decode("utf-8-sig")  # Spreadsheets write a byte order mark.
    except UnicodeDecodeError as e:
        line = content.count(b"\n", 0, e.start) + 1
        raise errors.InvalidInputError(
            f"{name}, line {line}: byte 0x{content[e.start]:02x} is not UTF-8 text."
        ) from e
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as e:
        raise errors.InvalidInputError(
            f"{name}, line {reader.line_num}: not a line of a CSV file: {e}."
        ) from e


def _place(header: list[str], column: str, columns: tuple[str, ...], name: str) -> int:
    if header.count(column) != 1:
        problem = "has more than one" if column in header else "has no"
        raise errors.InvalidInputError(
            f"{name}, line 1: the header {problem} column {column!r}; found "
            f"{', '.join(map(repr, header)) or 'nothing'}, expected "
            f"{', '.join(sorted(columns, reverse=True))}."
        )
    return header.index(column)


def _to_class(text: str, largest: int, where: str) -> int:
    # `int` alone would take " 7", "1_000" and other scripts' digits.
    if not _INTEGER.fullmatch(text):
        raise errors.InvalidInputError(
            f"{where}: the {_CLASS} {text[:_SHOWN]!r} is not an integer."
        )
    if not 0 <= int(text) <= largest:
        raise errors.InvalidInputError(
            f"{where}: the {_CLASS} {text} is not in 0..{largest}."
        )
    return int(text)


def _check_file_name(client: str, where: str) -> None:
    """Checks that a client's data can be stored in a file of the client's name."""
    safe = (
        client.strip() == client != ""
        and client.isprintable()
        and not client.startswith(".")
        and "/" not in client
        and "\\" not in client
        and len(client.encode()) <= _MAX_FILE_NAME_BYTES
    )
    if not safe:
        raise errors.InvalidInputError(
            f"{where}: the {_CLIENT} {client!r} cannot be the name of a file (no "
            "blanks at its ends, no slashes, no dot in front, at most "
            f"{_MAX_FILE_NAME_BYTES} bytes)."
        )


def write(path: os.PathLike, split: Split) -> None:
    r"""Writes a file that `read` reads: all of it or nothing.

    Args:
        path: The file; one of that name is replaced.
        split: The rows. The same rows give the same bytes; lines end with "\n".

    Raises:
        errors.InvalidInputError: If the path cannot be that of a file.
        errors.RunStoppedError: If it cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    classes = split.classes.tolist()
    if split.clients is None:
        writer.writerow([_IMAGE, _CLASS])
        writer.writerows(zip(split.image_ids, classes, strict=True))
    else:
        writer.writerow([_CLIENT, _IMAGE, _CLASS])
        writer.writerows(zip(split.clients, split.image_ids, classes, strict=True))
    files.write(path, text.getvalue().encode())
