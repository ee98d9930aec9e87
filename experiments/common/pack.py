"""Packs the runs of a table into two files, to publish them.

    ./run.sh pack --results_dir=results/table1_mini --output_dir=docs/results/new

reads the folders CELL/seedK/ that `./run.sh table` has left, and writes runs.csv.gz (a
row for each run and round, with all that was measured and how long it took) and
runs.json (flags, commands, versions, machines, data and outcomes). Weights, checkpoints
and TensorBoard files are not packed. `./run.sh report --results_dir=DIR` makes the same
table from the two files as from the folders.

All runs must be done, unless --only_done leaves the others out. Nothing that was run is
changed or removed.
"""

import dataclasses
import os
import pathlib

from experiments.common import archive, config, output_files, program, results
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files


def pack(
    results_dir: str | os.PathLike,
    output_dir: str | os.PathLike,
    only_done: bool = False,
) -> int:
    """Packs the runs of a table, see `archive`.

    Args:
        results_dir: Holds CELL/seedK/, the folders of the runs.
        output_dir: Where to write; another folder.
        only_done: Whether to leave out runs that are not done.

    Returns:
        How many runs there are.

    Raises:
        InvalidInputError: If there is no run, one is not done, a file of one is
            damaged, or there can be no such folder. Nothing is written then.
        RunStoppedError: If a file cannot be read or written.
    """
    output_files.check_named(results_dir=results_dir, output_dir=output_dir)
    results_dir, output_dir = pathlib.Path(results_dir), pathlib.Path(output_dir)
    if archive.is_in(results_dir):
        raise InvalidInputError(f"--results_dir={results_dir} is packed already.")
    if output_dir.is_dir() and _folders(output_dir):
        raise InvalidInputError(
            f"--output_dir={output_dir} holds folders of runs: nobody could tell which "
            "of them count. Name another folder."
        )
    runs = {}
    for cell, folders in _folders(results_dir).items():
        if only_done:
            folders = [path for path in folders if (path / run_files.DONE).exists()]
        if folders:
            runs[cell] = {results.seed_of(path): _read(path) for path in folders}
    if not runs:
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no run: expected folders CELL/seedK/ "
            "with a flags.txt, as ./run.sh table leaves them."
        )
    output_files.create_folder(output_dir)
    archive.write(output_dir, runs)
    return sum(map(len, runs.values()))


def _folders(path: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """The folders of runs by cell, whose names have two parts in LEAP's tables."""
    return results.folders_of_cells(path) or results.folders_of_cells(path, depth=2)


def _read(path: pathlib.Path) -> archive.Content:
    """Reads a run, whichever program it is of."""
    documents = {run_files.FLAGS: run_files.read_flags(path / run_files.FLAGS)}
    for name in (run_files.RUN, run_files.DATA, run_files.DONE):
        value = run_files.read_json(path / name)
        if value is not None:
            documents[name] = value
    if run_files.DONE not in documents:
        raise InvalidInputError(
            f"{path} is not done: there is no {run_files.DONE}. Give the command that "
            "began it once more, or take the folder away."
        )
    tables = {
        name: run_files.read_table(path / name, is_done=True)
        for name in (run_files.METRICS, run_files.SPEED)
    }
    for table in tables.values():
        rows = run_files.parse_rows(table)
        if not rows:
            raise InvalidInputError(f"{table.path}:2: there is no row.")
        run_files.parse_rows(table, rows[0]["method"])
    return archive.Content(documents, tables)


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    results_dir: str = config.flag(
        None,
        "Where the runs are: CELL/seedK/.",
        needed="DIR is needed.",
    )
    output_dir: str = config.flag(
        None,
        "Where runs.csv.gz and runs.json go: another folder.",
        needed="DIR is needed.",
    )
    only_done: bool = config.flag(False, "Leave out runs that are not done.")


def main(config: Config) -> None:
    """Packs, and says what."""
    count = pack(config.results_dir, config.output_dir, config.only_done)
    print(
        f"{count} runs of {config.results_dir} are packed: "
        f"{config.output_dir}/{archive.CSV} and {archive.JSON}."
    )


if __name__ == "__main__":
    program.run(main, Config())
