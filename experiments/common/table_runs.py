"""Which runs a table has, from the flags of the command `table`.

This module and its imports are quick to import: `answers` lists the runs of a table
without TensorFlow, from tables that it has kept.
"""

import dataclasses
import fnmatch
import os
import pathlib
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from experiments.common import cells, config
from experiments.common import jobs as jobs_lib
from tff_fedss.errors import InvalidInputError

Tables = Mapping[tuple[str, str], cells.Table]

_RUN_SH = pathlib.Path(__file__).parents[2] / "run.sh"


@dataclasses.dataclass(frozen=True)
class TableRuns:
    """A table that is asked for, and its runs.

    Attributes:
        key: Its name and scale.
        table: The table.
        num_seeds: The number of seeds of each cell.
        folder: The folder of the runs.
        jobs: The runs: the first seed of every cell, then the second, and so on.
    """

    key: tuple[str, str]
    table: cells.Table
    num_seeds: int
    folder: pathlib.Path
    jobs: list[jobs_lib.Job]


def find(
    flags: config.Config,
    arguments: Sequence[str],
    papers: Collection[str] = cells.PAPERS,
    tables_of: Callable[[str], Tables] = cells.tables_of,
    flags_of: Callable[[cells.Table], Collection[str]] = lambda t: t.config().flags(),
) -> TableRuns:
    """Returns the table that is asked for, and its runs.

    Args:
        flags: The flags of the command `table`.
        arguments: Its other arguments: the name of the table.
        papers: The papers that have tables.
        tables_of: Returns the tables of a paper.
        flags_of: Returns the names of the flags of a table's program.

    Raises:
        InvalidInputError: If the table, the scale, a cell or a seed is not there.
    """
    asked = arguments[0] if len(arguments) == 1 else ""
    paper, _, name = asked.rpartition("/")
    paper = paper or "fedss"
    if paper not in papers:
        raise InvalidInputError(
            f"say which table: PAPER/NAME, with a PAPER of {', '.join(papers)}; "
            f"found {' '.join(arguments) or 'none'}."
        )
    tables = tables_of(paper)
    name = name.removeprefix("table")
    scales = [scale for other, scale in tables if other == name]
    if not scales:
        names = dict.fromkeys(other for other, _ in tables)
        raise InvalidInputError(
            f"say which table of {paper}, one of {', '.join(names)}; found "
            f"{' '.join(arguments) or 'none'}."
        )
    scale = flags.scale or ("mini" if "mini" in scales else scales[0])
    if scale not in scales:
        raise InvalidInputError(
            f"--scale={scale}: {paper}/{name} has cells for {' and '.join(scales)}."
        )
    table = tables[name, scale]
    suffix = f"_{flags.rounds}_rounds" if flags.rounds else ""
    folder = pathlib.Path(flags.results_dir or f"results/{table.results}{suffix}")
    seeds = _seeds(flags.seeds, table)
    jobs = _jobs((name, scale), table, flags, flags_of(table), seeds, folder)
    return TableRuns((name, scale), table, len(seeds), folder, jobs)


def print_commands(jobs: Sequence[jobs_lib.Job]) -> None:
    """Prints the command of each run that can begin now."""
    unfinished = [job for job in jobs if not job.is_done]
    ready = [job for job in unfinished if jobs_lib.next_job([job], unfinished)]
    for job in ready:
        print(shlex.join([str(_RUN_SH), "python", *job.command]))
    if waiting := len(unfinished) - len(ready):
        print(
            f"{waiting} more start from these: list them when these are done.",
            file=sys.stderr,
        )


def _seeds(seeds: Sequence[str] | None, table: cells.Table) -> list[int]:
    if seeds is None:
        return list(table.seeds)
    if not seeds or not all(seed.isdecimal() for seed in seeds):
        raise InvalidInputError(f"--seeds={','.join(seeds)} must be whole numbers.")
    numbers = list(map(int, seeds))
    if len({*numbers}) < len(numbers):
        raise InvalidInputError(f"--seeds={','.join(seeds)} has a seed twice.")
    return numbers


def _jobs(
    key: tuple[str, str],
    table: cells.Table,
    flags: config.Config,
    own_flags: Collection[str],
    seeds: Sequence[int],
    folder: pathlib.Path,
) -> list[jobs_lib.Job]:
    """Lists the runs: the first seed of every cell, then the second, and so on."""
    chosen = [
        name
        for name in table.cells
        if not flags.cells or any(fnmatch.fnmatch(name, p) for p in flags.cells)
    ]
    if not chosen:
        raise InvalidInputError(
            f"--cells={','.join(flags.cells)} matches none of {', '.join(table.cells)}."
        )
    # A cell's start comes before it.
    needed = dict.fromkeys(
        needed
        for name in chosen
        for needed in (table.cells[name].start, name)
        if needed is not None
    )
    shared = {"data_dir": flags.data_dir, "pretrained": flags.pretrained}
    shared = {name: value for name, value in shared.items() if value is not None}
    if flags.cluster is not None:  # Another machine has another current folder.
        for name, value in shared.items():
            shared[name] = os.path.abspath(value) if os.path.exists(value) else value
    elif "warm_start_cache" in own_flags:
        shared["warm_start_cache"] = folder / "warm_starts"
    length = "rounds" if "rounds" in own_flags else "epochs"
    jobs = []
    for seed in seeds:
        for cell in map(table.cells.get, needed):
            own = dict(shared, seed=seed)
            if cell.start is not None:
                own.pop("pretrained", None)
            # A cell without rounds measures only its start.
            if flags.rounds and cell.settings.get(length) != 0:
                own[length] = flags.rounds
            name = f"--cell={'/'.join(key)}/{cell.name}"
            jobs.append(
                jobs_lib.Job(
                    f"{cell.name} seed {seed}",
                    table.program,
                    [name, *cells.as_arguments(own)],
                    folder / cell.name / f"seed{seed}",
                    cell.start and folder / cell.start / f"seed{seed}",
                )
            )
    return jobs
