"""Files in a run's folder: their names, formats and readers.

All code that resumes or reports a run reads it here. Errors name the file and the line:
a number from a damaged file must not get into a table.
"""

import csv
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training.run import Metrics

FLAGS = "flags.txt"
RUN = "run.json"
DATA = "data.json"
METRICS = "metrics.csv"
SPEED = "speed.csv"
DONE = "done.json"

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
# A line break, or text that is not UTF-8.
_NOT_IN_A_LINE = re.compile("[\n\r\ud800-\udfff]")
_LONGEST_VALUE = 60


def short(value: object) -> str:
    """Shortens a value for a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def missing(path: str | os.PathLike) -> InvalidInputError:
    """Returns the error for a missing file that the run must have."""
    return InvalidInputError(
        f"{path} is missing: restore it, or remove the run's folder."
    )


def _whole(content: bytes | None, path: str | os.PathLike) -> bytes:
    """Returns the content of a file of lines; raises an error if it is truncated."""
    if content is None:
        raise missing(path)
    if not content.endswith(b"\n"):
        line = content.count(b"\n") + 1
        what = "the file is empty or ends within a line"
        raise InvalidInputError(f"{path}:{line}: {what}.")
    return content


# --- Flags ------------------------------------------------------------------------


def as_flagfile(flags: Mapping[str, str]) -> str:
    """Writes flags for `parse_flags`; raises InvalidInputError where it cannot."""
    for name, value in flags.items():
        if _NOT_IN_A_LINE.search(value):
            why = f"a line break or no UTF-8, which {FLAGS} cannot store"
            raise InvalidInputError(f"--{name}={value!r} has {why}.")
    return "".join(f"--{name}={value}\n" for name, value in flags.items())


def parse_flags(content: bytes | None, path: str | os.PathLike) -> dict[str, str]:
    """Returns the flags of a flags.txt by name; `content` is None if there is none.

    Raises InvalidInputError if it is not there or damaged; it names the line.
    """
    content = _whole(content, path)
    flags: dict[str, str] = {}
    for number, line in enumerate(files.decoded_lines(content, path), 1):
        name, equals, value = line.removeprefix("--").partition("=")
        if not line.startswith("--") or not equals or name in flags:
            found = f"found {short(line)}, expected --name=value, each name once"
            raise InvalidInputError(f"{path}:{number}: {found}.")
        flags[name] = value
    return flags


def read_flags(path: str | os.PathLike) -> dict[str, str]:
    """Reads a flags.txt, see `parse_flags`; RunStoppedError if it cannot be read."""
    return parse_flags(files.read_if_there(path), path)


# --- JSON -------------------------------------------------------------------------


def parse_json(content: bytes, path: str | os.PathLike) -> dict[str, Any]:
    """Returns the JSON object of finite numbers that a file holds.

    Raises InvalidInputError if it is something else; it names the line.
    """
    text = files.decoded(content, path)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise InvalidInputError(f"{path}:{line}: not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path}:1: expected a JSON object.")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"found {text}, expected finite numbers")


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        _refuse_constant(text)
    return float(text)


def read_json(path: str | os.PathLike) -> dict[str, Any] | None:
    """Reads a JSON object, see `parse_json`; None if there is no such file."""
    content = files.read_if_there(path)
    return None if content is None else parse_json(content, path)


# --- Rows -------------------------------------------------------------------------


def parse_rows(
    content: bytes | None,
    path: str | os.PathLike,
    is_done: bool,
    name: str | None = None,
) -> list[Metrics]:
    """Returns the rows of a CSV file with a row for each round.

    Args:
        content: Content of the file; None if there is none.
        path: The file, for messages.
        is_done: Whether the run is done; if not, the file may be missing or empty, or
            end with a partial row, left by a killed program, which is ignored.
        name: Name of the run that all rows must be of, from round 0 on; None: rows of
            any runs and rounds.

    Returns:
        Values by column, with parsed numbers, without columns not measured.

    Raises:
        InvalidInputError: If the file is damaged, a number is invalid or not finite, or
            a row is of another run or round; it names the line.
    """
    if not is_done:
        content = content and content[: content.rfind(b"\n") + 1]
        if not content:
            return []
    rows: list[Metrics] = []
    content = _whole(content, path)
    for where, texts in files.csv_table(content, path, ("method", "round")):
        row = Metrics(method=texts.pop("method"))
        for column, text in texts.items():
            if text != "":
                row[column] = _number(text, column, where)
        if name is not None and row["method"] != name:
            found = f"found the method {short(row['method'])}"
            raise InvalidInputError(f"{where}: {found}, expected {name!r}.")
        expected = len(rows) if name is not None else "a whole number"
        number = row.get("round")
        if not isinstance(number, int) or name is not None and number != expected:
            found = f"found round {number}, expected {expected}"
            raise InvalidInputError(f"{where}: {found}.")
        rows.append(row)
    return rows


def _number(text: str, column: str, where: str) -> int | float:
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        found = f"{column} is {short(text)}"
        raise InvalidInputError(f"{where}: {found}, expected a finite number.")
    # A whole number stays an int, so that a rewritten row is the same.
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else float(text)


def as_csv(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], header: bool = True
) -> str:
    """Writes rows by column as CSV; missing values are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
