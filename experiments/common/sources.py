"""Where the runs of a table are: folders CELL/seedK/, or an archive of them."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from experiments.common import archive
from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

_SEED_FOLDER = re.compile(r"seed(\d+)", re.ASCII)


class RunFolder:
    """The folder of a run, on the disk or in an archive.

    Attributes:
        path: The folder; in an archive, ARCHIVE/CELL/seedK.
    """

    def __init__(self, path: pathlib.Path, contents: Mapping[str, bytes] | None = None):
        self.path = path
        self._contents = contents  # Of a run in an archive: that of each file by name.

    def at(self, name: str, line: int | None = None) -> str:
        """Says for a message where a file of the run, or a line of it, stands."""
        return f"{self.path / name}" + (f":{line}" if line else "")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Reads a JSON file, see `run_files.parse_json`; None if it is not there."""
        content = self.read(name)
        return None if content is None else run_files.parse_json(content, self.at(name))

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file of the run; None if it is not there."""
        if self._contents is None:
            return files.read_if_there(self.path / name)
        return self._contents.get(name)


def has_begun(path: pathlib.Path) -> bool:
    """Returns whether a run has left anything in a folder that tells of it."""
    names = (run_files.FLAGS, run_files.METRICS, run_files.DONE)
    return any((path / name).exists() for name in names)


def seed_of(path: pathlib.PurePath) -> int | None:
    """Returns K of a folder seedK; None if it has another name."""
    match = _SEED_FOLDER.fullmatch(path.name)
    return match and int(match[1])


def seed_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """Lists the folders seed0, seed1, ... in which a run has begun, in this order."""
    if not folder.is_dir():
        return []
    numbered = [path for path in folder.iterdir() if seed_of(path) is not None]
    return [path for path in sorted(numbered, key=seed_of) if has_begun(path)]


def find_cells(results_dir: pathlib.Path, depth: int = 1) -> dict[str, list[RunFolder]]:
    """Finds the runs of a table, by the name of the cell.

    Args:
        results_dir: Holds CELL/seedK/, or an archive of them; or the archive.
        depth: How many parts the name of a cell has.

    Raises:
        InvalidInputError: If it is no folder, the archive is damaged, or it holds both,
            or nothing.
        RunStoppedError: If it cannot be read.
    """
    path = results_dir
    if results_dir.is_dir():
        found = {
            folder.relative_to(results_dir).as_posix(): seed_folders(folder)
            for folder in sorted(results_dir.glob("/".join("*" * depth)))
        }
        folders = {cell: paths for cell, paths in found.items() if paths}
        path = results_dir / archive.NAME
        if folders and path.exists():
            raise InvalidInputError(
                f"--results_dir={results_dir} holds {archive.NAME} and the folder "
                f"{next(iter(folders))}, both with runs: take away one of them."
            )
        if folders:
            return {cell: [*map(RunFolder, paths)] for cell, paths in folders.items()}
    if path.is_file():
        return _archived_cells(path)
    if not results_dir.is_dir():
        raise InvalidInputError(f"--results_dir={results_dir} is no folder.")
    raise InvalidInputError(
        f"--results_dir={results_dir} holds no run: expected folders "
        f"{'PART/' * (depth - 1)}CELL/seedK/ with a flags.txt, as ./run.sh table "
        f"leaves them, or {archive.NAME}."
    )


def _archived_cells(path: pathlib.Path) -> dict[str, list[RunFolder]]:
    """Returns the runs in an archive by the name of the cell, by increasing seed."""
    runs: dict[pathlib.PurePosixPath, dict[str, bytes]] = {}
    for name, content in archive.read(path).items():
        parts = pathlib.PurePosixPath(name)
        runs.setdefault(parts.parent, {})[parts.name] = content
    cells: dict[str, list[RunFolder]] = {}
    for folder in sorted(runs, key=lambda x: (str(x.parent), seed_of(x) or 0)):
        if seed_of(folder) is None:
            raise InvalidInputError(
                f"{path}: found {folder}, expected files CELL/seedK/NAME."
            )
        cells.setdefault(str(folder.parent), []).append(
            RunFolder(path / folder, runs[folder])
        )
    return cells
