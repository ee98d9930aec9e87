"""Sources of a table's runs: folders CELL/seedK/, or an archive of them.

Runs are published as the archive, runs.tar.xz: it has CELL/seedK/NAME like the results
folder of the table, without weights and checkpoints. `tar -xf runs.tar.xz -C FOLDER`
makes the folder again, which `./run.sh table` then continues. The project itself reads
it in memory and never extracts it. The same files give the same bytes.
"""

import io
import lzma
import os
import pathlib
import re
import tarfile
from collections.abc import Mapping
from typing import Any

from tff_fedss import files, unpacking
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

ARCHIVE = "runs.tar.xz"

# The files of a run that are published.
_OF_A_RUN = (
    run_files.FLAGS,
    run_files.RUN,
    run_files.DATA,
    run_files.METRICS,
    run_files.SPEED,
    run_files.DONE,
)
_MOST_BYTES = 64 * 2**20  # Limit of all files together, decompressed.
_MOST_MEMBERS = 10_000
_PRESET = 9
_SEED_FOLDER = re.compile(r"seed(\d+)", re.ASCII)


class RunFolder:
    """The folder of a run, on the disk or in an archive.

    Attributes:
        path: The folder; in an archive, ARCHIVE/CELL/seedK.
    """

    def __init__(self, path: pathlib.Path, contents: Mapping[str, bytes] | None = None):
        self.path = path
        self._contents = contents  # Of each file in the archive, by name.

    def at(self, name: str, line: int | None = None) -> str:
        """Returns the place of the run's file, or of a line of it, for messages."""
        return f"{self.path / name}" + (f":{line}" if line else "")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Reads a JSON file, see `run_files.parse_json`; None if it is missing."""
        content = self.read(name)
        return None if content is None else run_files.parse_json(content, self.at(name))

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file of the run; None if it is missing."""
        if self._contents is None:
            return files.read_if_there(self.path / name)
        return self._contents.get(name)


def has_begun(path: pathlib.Path) -> bool:
    """Returns whether a folder has files of a run."""
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
        depth: Number of parts of a cell's name.

    Raises:
        InvalidInputError: If it is no folder, the archive is damaged, or it holds both
            or neither.
        RunStoppedError: If it cannot be read.
    """
    path = results_dir
    if results_dir.is_dir():
        found = {
            folder.relative_to(results_dir).as_posix(): seed_folders(folder)
            for folder in sorted(results_dir.glob("/".join("*" * depth)))
        }
        folders = {cell: paths for cell, paths in found.items() if paths}
        path = results_dir / ARCHIVE
        if folders and path.exists():
            raise InvalidInputError(
                f"--results_dir={results_dir} holds {ARCHIVE} and the folder "
                f"{next(iter(folders))}, both with runs: remove one of them."
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
        f"leaves them, or {ARCHIVE}."
    )


def _archived_cells(path: pathlib.Path) -> dict[str, list[RunFolder]]:
    """Returns the runs in an archive by the name of the cell, by increasing seed."""
    runs: dict[pathlib.PurePosixPath, dict[str, bytes]] = {}
    for name, content in read_archive(path).items():
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


# --- Archives -----------------------------------------------------------------------


def read_archive(path: str | os.PathLike) -> dict[str, bytes]:
    """Returns the content of each file of an archive, by its path in there.

    Raises:
        InvalidInputError: If the archive is missing, damaged or too large, or a member
            is no plain file inside of it.
        RunStoppedError: If it cannot be read.
    """
    packed = files.read_if_there(path)
    if packed is None:
        raise InvalidInputError(f"{path} is missing.")
    try:
        with lzma.open(io.BytesIO(packed)) as stream:
            # Larger contents are not decompressed.
            unpacked = stream.read(_MOST_BYTES + 1)
        if len(unpacked) > _MOST_BYTES:
            raise InvalidInputError(
                f"{path} holds more than {_MOST_BYTES // 2**20} MiB, expected the "
                "text files of runs."
            )
        with tarfile.open(
            fileobj=io.BytesIO(unpacked), mode="r:", tarinfo=unpacking.TarHeader
        ) as archive:
            contents = _contents(archive, path)
    except (
        lzma.LZMAError,
        tarfile.TarError,
        EOFError,
        unpacking.UnpackingError,
    ) as error:
        raise InvalidInputError(
            f"{path} is damaged: {files.error_text(error)}."
        ) from error
    return contents


def _contents(archive: tarfile.TarFile, path: str | os.PathLike) -> dict[str, bytes]:
    contents = {}
    for number, member in enumerate(archive):
        if number == _MOST_MEMBERS:
            raise InvalidInputError(f"{path} holds more than {_MOST_MEMBERS:,} files.")
        if member.isdir():
            continue
        parts = pathlib.PurePosixPath(member.name).parts
        is_plain = member.isreg() and not member.issparse()
        if not is_plain or {"/", ".."} & {*parts}:
            raise InvalidInputError(
                f"{path}: found {run_files.short(member.name)}, expected plain files "
                "with a path inside of the archive."
            )
        if member.name in contents:
            raise InvalidInputError(f"{path}: {member.name} is there twice.")
        contents[member.name] = archive.extractfile(member).read()
    return contents


def write_archive(path: str | os.PathLike, contents: Mapping[str, bytes]) -> None:
    """Writes an archive whole or not at all; the same contents give the same bytes."""
    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(contents):
            member = tarfile.TarInfo(name)  # Owner, group and time are 0.
            member.size = len(contents[name])
            tar.addfile(member, io.BytesIO(contents[name]))
    files.write(path, lzma.compress(unpacked.getvalue(), preset=_PRESET))


def write_runs(path: str | os.PathLike, results_dir: str | os.PathLike) -> None:
    """Writes the finished runs of a results folder, CELL/seedK/, as an archive."""
    results_dir = pathlib.Path(results_dir)
    runs = sorted(done.parent for done in results_dir.rglob(run_files.DONE))
    write_archive(
        path,
        {
            (run / name).relative_to(results_dir).as_posix(): (run / name).read_bytes()
            for run in runs
            for name in _OF_A_RUN
            if (run / name).exists()
        },
    )
