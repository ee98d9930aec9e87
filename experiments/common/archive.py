"""Published runs: all files of a table's runs in one runs.tar.xz.

The archive holds CELL/seedK/NAME, as the results folder of the table does, without
weights and checkpoints. `tar -xf runs.tar.xz -C FOLDER` makes the folder again, which
`./run.sh table` then continues. The project itself reads it in memory and never
extracts it. The same files give the same bytes.
"""

import io
import lzma
import os
import pathlib
import tarfile
from collections.abc import Mapping

from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

NAME = "runs.tar.xz"

# The files of a run that are published.
_OF_A_RUN = (
    run_files.FLAGS,
    run_files.RUN,
    run_files.DATA,
    run_files.METRICS,
    run_files.SPEED,
    run_files.DONE,
)
_MOST_BYTES = 64 * 2**20  # Of all files together, decompressed.
_MOST_MEMBERS = 10_000
_PRESET = 9


def read(path: str | os.PathLike) -> dict[str, bytes]:
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
            # What would decompress to more is not decompressed.
            unpacked = stream.read(_MOST_BYTES + 1)
        if len(unpacked) > _MOST_BYTES:
            raise InvalidInputError(
                f"{path} holds more than {_MOST_BYTES // 2**20} MiB, expected the "
                "text files of runs."
            )
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as archive:
            contents = _contents(archive, path)
    except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
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
        if not member.isreg() or {"/", ".."} & {*parts}:
            raise InvalidInputError(
                f"{path}: found {run_files.short(member.name)}, expected plain files "
                "with a path inside of the archive."
            )
        if member.name in contents:
            raise InvalidInputError(f"{path}: {member.name} is there twice.")
        contents[member.name] = archive.extractfile(member).read()
    return contents


def write(path: str | os.PathLike, contents: Mapping[str, bytes]) -> None:
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
    write(
        path,
        {
            (run / name).relative_to(results_dir).as_posix(): (run / name).read_bytes()
            for run in runs
            for name in _OF_A_RUN
            if (run / name).exists()
        },
    )
