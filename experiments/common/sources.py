"""Sources of a table's runs: folders CELL/seedK/, or an archive of them.

Runs are published as the archive, runs.tar.xz: it has CELL/seedK/NAME like the results
folder of the table, without weights and checkpoints, or, of several tables,
RESULTS/CELL/seedK/NAME with the name of each one's results folder. `tar -xf runs.tar.xz
-C FOLDER` makes the folders again, which `./run.sh table` then continues. The project
itself reads it in memory and never extracts it. The same files give the same bytes.
"""

import glob
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
_SEED_FOLDER = re.compile(r"seed(0|[1-9]\d*)", re.ASCII)


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


def seed_of(path: pathlib.PurePath) -> int | None:
    """Returns K of a folder seedK; None if it has another name."""
    match = _SEED_FOLDER.fullmatch(path.name)
    return match and int(match[1])


def find_cells(path: pathlib.Path) -> dict[str, list[RunFolder]]:
    """Finds runs by the name of their cell, those of a cell by increasing seed.

    Args:
        path: Holds CELL/seedK/ with a flags.txt, or an archive of them; or the archive.

    Raises:
        InvalidInputError: If the archive is damaged, or there are both or neither.
        RunStoppedError: If it cannot be read.
    """
    runs: dict[pathlib.Path, dict[str, bytes] | None] = dict.fromkeys(
        _folders_with(path, f"seed*/{run_files.FLAGS}")
    )
    archive = path / ARCHIVE if path.is_dir() else path
    if archive.exists():
        if runs:
            raise InvalidInputError(
                f"--results_dir={path} holds {ARCHIVE} and the folder "
                f"{min(runs).relative_to(path)}, both with runs: remove one of them."
            )
        path = archive
        for name, content in read_archive(archive).items():
            file = archive / name
            runs.setdefault(file.parent, {})[file.name] = content
    cells: dict[str, list[RunFolder]] = {}
    for folder in sorted(runs, key=lambda x: (x.parent, seed_of(x) or 0)):
        if seed_of(folder) is not None:
            name = folder.parent.relative_to(path).as_posix()
            cells.setdefault(name, []).append(RunFolder(folder, runs[folder]))
    if not cells:
        raise InvalidInputError(
            f"--results_dir={path} holds no run: expected folders CELL/seedK/ with a "
            f"flags.txt, as ./run.sh table leaves them, or {ARCHIVE}."
        )
    return cells


def _folders_with(path: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Returns the folders with a file, also in links to other disks, unlike `rglob`."""
    found = glob.glob(f"**/{name}", root_dir=path, recursive=True)
    return [(path / file).parent for file in found]


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
            raise unpacking.UnpackingError(f"more than {_MOST_BYTES // 2**20} MiB")
        with tarfile.open(
            fileobj=io.BytesIO(unpacked), mode="r:", tarinfo=unpacking.TarHeader
        ) as tar:
            return _contents(tar)
    except (
        lzma.LZMAError,
        tarfile.TarError,
        EOFError,
        unpacking.UnpackingError,
    ) as error:
        raise InvalidInputError(
            f"{path} is damaged: {files.error_text(error)}."
        ) from error


def _contents(tar: tarfile.TarFile) -> dict[str, bytes]:
    contents = {}
    for number, member in enumerate(unpacking.tar_members(tar)):
        if number == _MOST_MEMBERS:
            raise unpacking.UnpackingError(f"more than {_MOST_MEMBERS:,} members")
        if member.isdir():
            continue
        if {"/", ".."} & {*pathlib.PurePosixPath(member.name).parts}:
            raise unpacking.UnpackingError(
                f"found {run_files.short(member.name)}, expected a path inside of the "
                "archive"
            )
        if member.name in contents:
            raise unpacking.UnpackingError(f"{member.name} is there twice")
        contents[member.name] = tar.extractfile(member).read()
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
    runs = sorted(_folders_with(results_dir, run_files.DONE))
    write_archive(
        path,
        {
            (run / name).relative_to(results_dir).as_posix(): (run / name).read_bytes()
            for run in runs
            for name in _OF_A_RUN
            if (run / name).exists()
        },
    )
