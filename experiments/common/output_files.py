"""The files that reports and benchmarks leave, each whole or not at all."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.common import table
from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.files import write_text

__all__ = [
    "check_named",
    "create_folder",
    "drawing_afterwards",
    "write_csv",
    "write_text",
]


def create_folder(path: str | os.PathLike, flag: str = "output_dir") -> pathlib.Path:
    """Creates a folder, unless it is there.

    Args:
        path: The folder.
        flag: Which one names it.

    Raises:
        InvalidInputError: If there can be no such folder.
        RunStoppedError: If it cannot be created.
    """
    files.make_folder(path, f"--{flag}={path}")
    return pathlib.Path(path)


def check_named(**folders: str | os.PathLike | None) -> None:
    """Refuses an empty folder name, by the flags that give them; None is left open."""
    for flag, path in folders.items():
        if path is not None and not os.fspath(path):
            raise InvalidInputError(f"--{flag}= is empty; expected a folder.")


@contextlib.contextmanager
def drawing_afterwards(draw: Callable[[], None]) -> Iterator[None]:
    """Draws at the end of the body, and if possible also where that is stopped."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            draw()
        raise
    draw()


def write_csv(
    path: pathlib.Path,
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
) -> None:
    """Writes rows of values by column, with a header.

    Args:
        path: The file.
        rows: What a row lacks stays empty.
        columns: By default those of the first row, which must be there then.
    """
    write_text(path, table.as_csv(rows, columns))
