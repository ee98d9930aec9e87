"""Reads flagfiles, which say what the cells of a table are."""

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

# As absl reads them.
_BOOLEANS = {"true": True, "t": True, "false": False, "f": False}


def read(path: pathlib.Path) -> dict[str, str]:
    """Reads the flagfile of a cell, as a person writes it.

    Args:
        path: The file: `--name=value`, `--name` or `--noname` in each line; lines that
            begin with # are comments.

    Returns:
        Name to value; of `--name` the value is "true", of `--noname` it has no `no` and
        is "false".

    Raises:
        InvalidInputError: If it is not there or a line has another form.
    """
    text = files.read_text(path)
    if text is None:
        raise InvalidInputError(f"{path} is missing.")
    flags = {}
    for number, line in enumerate(re.split(r"\r?\n", text), 1):
        line = line.strip()
        if not line or line.startswith(("#", "//")):
            continue
        name, equals, value = line.lstrip("-").partition("=")
        if not line.startswith("-") or not re.fullmatch(r"\w+", name):
            raise InvalidInputError(
                f"{path}:{number}: found {run_files.short(line)}, expected "
                "--name=value."
            )
        if not equals:
            value = "false" if name.startswith("no") else "true"
            name = name.removeprefix("no") if value == "false" else name
        flags[name] = value
    return flags


def same_value(first: str | None, second: str | None) -> bool:
    """Returns whether two texts stand for one value of a flag: 0.10 and 0.1, say."""
    if first is None or second is None:
        return first == second
    if first.lower() in _BOOLEANS and second.lower() in _BOOLEANS:
        return _BOOLEANS[first.lower()] == _BOOLEANS[second.lower()]
    try:
        return float(first) == float(second)
    except ValueError:
        return first == second


def differing_flags(flagfiles: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """Yields the flags that are not the same in all flagfiles: they are meant so."""
    flagfiles = list(flagfiles)
    for name in sorted({name for flags in flagfiles for name in flags}):
        values = [flags.get(name) for flags in flagfiles]
        if not all(same_value(value, values[0]) for value in values):
            yield name
