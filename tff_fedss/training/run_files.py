"""The files in the folder of a run: their names, and how they are read and checked.

Whoever reads a run, to go on with it or to report of it, reads it here. Errors name the
file and the line: a number from a damaged file must not get into a table.
"""

import csv
import io
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training.run import Metrics

FLAGS = "flags.txt"
RUN = "run.json"
DATA = "data.json"
METRICS = "metrics.csv"
SPEED = "speed.csv"
DONE = "done.json"

# Columns that hold parts of a whole.
_SHARES = frozenset(
    "accuracy top1 map_at_10 train_top1 map_at_r r_precision tar_at_far pair_accuracy "
    "precision_at_1 precision_at_3 precision_at_5 linear_accuracy trained_share "
    "clipped_share clipped_mass selected_share mislabelled_share rare_share "
    "copied_share cluster_share rare_top1 lfw_accuracy unseen_map_at_10".split()
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf(inity)?)", re.IGNORECASE)
_LONGEST_VALUE = 60


class Table(NamedTuple):
    """The cells of a CSV file, as they stand there.

    Attributes:
        path: The file.
        columns: The names of the columns.
        rows: For each row the number of its line in the file, and its cells: as many as
            there are columns.
    """

    path: str | os.PathLike
    columns: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]


def short(value: object) -> str:
    """Writes a value for a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def is_number(text: str) -> bool:
    """Returns whether a text is a finite number."""
    return bool(_NUMBER.fullmatch(text)) and math.isfinite(float(text))


# --- Flags ------------------------------------------------------------------------


def check_for_flagfile(name: str, value: str) -> None:
    """Refuses what a line of a flagfile cannot hold.

    Raises:
        InvalidInputError: If the value of the flag has a line break or is not UTF-8.
    """
    if "\n" in value or "\r" in value:
        raise InvalidInputError(
            f"--{name}={value!r} holds a line break, which flags.txt cannot keep: use "
            "another name, such as that of a link."
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"--{name}={value!r} is not UTF-8, so that flags.txt cannot keep it: use "
            "another name, such as that of a link."
        ) from error


def parse_flags(text: str | None, path: str | os.PathLike) -> dict[str, str]:
    """Returns the flags, name to value, that a flags.txt holds.

    Args:
        text: Its text; None if it is not there.
        path: The file, for messages.

    Raises:
        InvalidInputError: If it is not there or damaged; it names the line.
    """
    if text is None:
        raise InvalidInputError(
            f"{path} is missing, so that nobody can tell which run this folder is of."
        )
    flags: dict[str, str] = {}
    *lines, rest = re.split(r"\r?\n", text)
    if rest or not lines:
        raise InvalidInputError(
            f"{path}:{len(lines) + 1}: the file is empty or ends within a line."
        )
    for number, line in enumerate(lines, 1):
        name, equals, value = line.removeprefix("--").partition("=")
        if not line.startswith("--") or not equals or not name:
            raise InvalidInputError(
                f"{path}:{number}: found {short(line)}, expected --name=value."
            )
        if name in flags:
            raise InvalidInputError(f"{path}:{number}: --{name} is there twice.")
        flags[name] = value
    return flags


def as_flagfile(flags: Mapping[str, str]) -> str:
    """Writes flags as `parse_flags` reads them."""
    return "".join(f"--{name}={value}\n" for name, value in flags.items())


def read_flags(path: str | os.PathLike) -> dict[str, str]:
    """Reads a flags.txt, see `parse_flags`.

    Raises:
        RunStoppedError: If it cannot be read.
    """
    return parse_flags(files.read_text(path), path)


# --- JSON -------------------------------------------------------------------------


def parse_json(text: str, path: str | os.PathLike) -> dict[str, Any]:
    """Returns the JSON object of finite numbers that a text holds.

    Args:
        text: The text.
        path: The file, for messages.

    Raises:
        InvalidInputError: If it is something else; it names the line.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        what = error.msg if text.strip() else "the file is empty"
        raise InvalidInputError(f"{path}:{error.lineno}: not JSON: {what}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path}: not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path}:1: expected a JSON object.")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"found {text}, expected finite numbers")


def read_json(path: str | os.PathLike) -> dict[str, Any] | None:
    """Reads a JSON object, see `parse_json`; None if there is no such file.

    Raises:
        InvalidInputError: If it is something else; it names the line.
        RunStoppedError: If it cannot be read.
    """
    text = files.read_text(path)
    return None if text is None else parse_json(text, path)


# --- Rows -------------------------------------------------------------------------


def parse_table(text: str, path: str | os.PathLike) -> Table:
    """Takes the text of a CSV file with a row for each round apart.

    Args:
        text: The text.
        path: The file, for messages.

    Raises:
        InvalidInputError: If it has no header with `method` and `round`, or a row is
            not as long as the header; it names the line.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    rows = []
    try:
        header = next(reader, None)
        if header is None:
            raise InvalidInputError(f"{path}:1: the file is empty.")
        for column in ("method", "round"):
            if column not in header:
                raise InvalidInputError(f"{path}:1: no column {column!r} in {header}.")
        for column in header:
            if header.count(column) > 1:
                raise InvalidInputError(f"{path}:1: two columns are called {column!r}.")
        for cells in reader:
            if len(cells) != len(header):
                raise InvalidInputError(
                    f"{path}:{reader.line_num}: {len(cells)} cells, expected "
                    f"{len(header)} as in the header."
                )
            rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise InvalidInputError(f"{path}:{reader.line_num}: {error}.") from error
    return Table(path, header, rows)


def whole_table(
    text: str | None, path: str | os.PathLike, is_done: bool
) -> Table | None:
    """Takes the text of a CSV file of a run apart, see `parse_table`.

    Args:
        text: The text; None if there is no such file.
        path: The file, for messages.
        is_done: Whether the run is; if not, the file may be missing or empty, or end
            with half a row, which does not count: a killed program leaves it.

    Returns:
        The table; None if nothing is there yet.

    Raises:
        InvalidInputError: If the file is damaged; it names the line.
    """
    if text is None:
        if is_done:
            raise InvalidInputError(f"{path} is missing, though the run is done.")
        return None
    whole = text[: text.rfind("\n") + 1]
    if is_done and whole != text:
        line = text.count("\n") + 1
        raise InvalidInputError(f"{path}:{line}: the file ends within a line.")
    return parse_table(whole, path) if whole or is_done else None


def parse_rows(table: Table | None, name: str | None = None) -> list[Metrics]:
    """Returns rows by column, numbers as numbers, without what was not measured.

    Args:
        table: The table; None has no rows.
        name: Of the run that all rows must be of, from round 0 on; None: rows of any
            runs and rounds.

    Raises:
        InvalidInputError: If a number is none, or not finite, or a row is another one;
            it names the line.
    """
    if table is None:
        return []
    rows: list[Metrics] = []
    for line, cells in table.rows:
        where = f"{table.path}:{line}"
        texts = dict(zip(table.columns, cells, strict=True))
        row = Metrics(method=texts.pop("method"))
        for column, text in texts.items():
            if text != "":
                row[column] = _number(text, column, where)
        if name is not None and row["method"] != name:
            raise InvalidInputError(
                f"{where}: found the method {short(row['method'])}, expected {name!r}."
            )
        expected = len(rows) if name is not None else "a whole number"
        round_num = row.get("round")
        if not isinstance(round_num, int) or name is not None and round_num != expected:
            raise InvalidInputError(
                f"{where}: found round {round_num}, expected {expected}."
            )
        rows.append(row)
    return rows


def _number(text: str, column: str, where: str) -> int | float:
    if _NOT_FINITE.fullmatch(text):
        raise InvalidInputError(
            f"{where}: {column} is {text}: this run has diverged. Take its folder "
            "away, or train it anew with a smaller learning rate."
        )
    if not _NUMBER.fullmatch(text):
        raise InvalidInputError(
            f"{where}: {column} is {short(text)}, expected a number."
        )
    value = float(text)
    if not math.isfinite(value) or column in _SHARES and not 0 <= value <= 1 + 1e-6:
        expected = "a share of 0 to 1" if column in _SHARES else "a finite number"
        raise InvalidInputError(f"{where}: {column} is {text}, expected {expected}.")
    # A whole number stays one, so that rows that are written again are the same.
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else value


def as_csv(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], header: bool = True
) -> str:
    """Writes rows by column as CSV; what a row lacks stays empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# --- Arrays -----------------------------------------------------------------------


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads what `ResultsFolder.write_arrays` wrote.

    Args:
        path: The .npz file.

    Raises:
        InvalidInputError: If it is not there or damaged.
    """
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    # What NumPy raises on files that are no whole archive. TypeError: on one array.
    except (
        OSError,
        ValueError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InvalidInputError(f"{path} is damaged: {error}.") from error
