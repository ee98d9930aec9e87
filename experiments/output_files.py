"""The files that reports and benchmarks leave, each whole or not at all."""

import contextlib
import csv
import io
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib.figure

from tff_fedss.errors import InvalidInputError


def create_folder(path: str | os.PathLike) -> pathlib.Path:
    """Creates the folder that --output_dir names, unless it is there.

    Raises:
        InvalidInputError: If it cannot be created.
    """
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"--output_dir={folder} cannot be created: {error.strerror}."
        ) from error
    return folder


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields where to write a file, which takes its place unless the body fails.

    Args:
        path: The file, in a folder that exists.

    Raises:
        InvalidInputError: If it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written: {error.strerror}."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text, see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def write_csv(
    path: pathlib.Path,
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
) -> None:
    """Writes rows of values by column, with a header, see `replacing`.

    Args:
        path: The file.
        rows: What a row lacks stays empty.
        columns: By default those of the first row, which must be there then.
    """
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_png(
    path: pathlib.Path, figure: matplotlib.figure.Figure, dpi: int = 120
) -> None:
    """Writes a figure, see `replacing`."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
