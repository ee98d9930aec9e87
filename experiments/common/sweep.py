"""The command `table`: runs what is missing of a table and writes its page.

    ./run.sh table 1 --data_dir=DIR                   # FedSS's Table 1; or fedss/1
    ./run.sh table leap/1 --data_dir=DIR --cells='mnist_mini/*'
    ./run.sh table moco/4 --report                    # runs nothing
    ./run.sh table 1 --data_dir=DIR --list | parallel -j2

runs every cell of the table (see experiments/PAPER/cells.py) with its seeds and writes
the table, beside the paper's numbers, and the figures into the results folder.
`--scale=paper` takes the paper's own settings; the start of FedSS's Tables 1, 2 and 4
from ImageNet-1k is --pretrained.

A run that is done is skipped, one that was stopped or killed resumes from its last
checkpoint, and one that fails is reported and stops no other. So the same command
completes the table. `--list` prints a command for each run that can begin now, for a
Slurm array or GNU parallel; `--report` then writes the page.

Each run has a folder, RESULTS_DIR/CELL/seedK, and a log beside it, seedK.log.
"""

# Quick to import, since `answers` lists the runs of a table without TensorFlow.

import dataclasses
import fnmatch
import os
import pathlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from experiments.common import cells as cells_lib
from experiments.common import config, jobs
from experiments.common.cells import Table
from tff_fedss.errors import InvalidInputError

_RUN_SH = pathlib.Path(__file__).parents[2] / "run.sh"


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the command."""

    scale: str | None = config.flag(
        None,
        "`paper`: the paper's data sets and settings. `mini`: for 2 cores. "
        "`tiny_imagenet`: photographs, on 2 cores; FedSS's Table 1 and `rates`. "
        "`chunks`: mini, with clients as those of SOP; FedSS's Table 2 alone. "
        "`turned`: turned characters are more classes; Tables 1 to 3 and their rates. "
        "`long`: 1,000 rounds; `headline` alone. Default: mini, where the table has "
        "that.",
    )
    report: bool = config.flag(False, "Run nothing; write the page of what is done.")
    list: bool = config.flag(
        False, "Run nothing; print the command of each run that can begin now."
    )
    data_dir: str | None = config.flag(
        None, "The folder of the data set, as for the program of the cells."
    )
    results_dir: str | None = config.flag(
        None,
        "The folder of the runs; with --report also that of their runs.tar.xz. "
        "Default: a folder in results/. FedSS's Table 4 shares the runs of Table 2, "
        "Figure 6 stands beside those of Table 1, and MoCo's tables share theirs.",
    )
    cells: tuple[str, ...] | None = config.flag(
        None,
        "Only cells with these names, separated by commas; `*` matches anything. "
        "Default: all.",
    )
    seeds: tuple[int, ...] | None = config.flag(
        None, "The seeds of each cell. Default: the table's.", low=0
    )
    rounds: int | None = config.flag(
        None,
        "The rounds of each run (epochs, for moco) instead of its cell's. The page "
        "says so, and the default results folder has them in its name.",
        low=1,
    )
    workers: int | None = config.flag(
        None,
        "How many runs at once. Each gets its share of the cores. Default: one for "
        "each of --gpus, else one for each core; with --cluster, as many as fit.",
        low=1,
    )
    gpus: tuple[str, ...] = config.flag(
        (), "Numbers of the GPUs to use: each running cell gets one."
    )
    cluster: str | None = config.flag(
        None,
        "Run the cells on a Ray cluster (docs/several_machines.md), each on a core or, "
        "with GPUs, on a GPU of one of its machines: `auto`, the cluster that this "
        "machine is a part of, or `ray://host:port`. --data_dir is the same on all of "
        "them; the files of a run come here when it ends.",
    )
    pretrained: str | None = config.flag(
        None,
        "Weights to start from, such as ImageNet-1k's: --pretrained of the cells that "
        "start from no other cell.",
    )

    def flags(self) -> dict[str, config.Flag]:
        """Returns the flags; --scale is one of those that any table has."""
        own = super().flags()
        of_papers = map(cells_lib.tables_of, cells_lib.PAPERS)
        scales = dict.fromkeys(scale for tables in of_papers for _, scale in tables)
        scale = dataclasses.replace(own["scale"], choices=tuple(scales))
        return own | {"scale": scale}


class TableRuns(NamedTuple):
    """A table that is asked for, and its runs.

    Attributes:
        key: Its name and scale.
        jobs: The runs: the first seed of every cell, then the second, and so on.
    """

    key: tuple[str, str]
    table: Table
    folder: pathlib.Path
    num_seeds: int
    jobs: list[jobs.Job]


def main(config: Config, arguments: list[str]) -> None:
    """Runs the jobs and writes the report."""
    asked = find(config, arguments)
    if config.list:
        print_commands(asked.jobs)
        return
    from experiments.common import report

    if config.cluster is not None and config.gpus:
        raise InvalidInputError(
            f"--gpus={','.join(config.gpus)} does not go with --cluster, where each "
            "run gets a GPU of its own."
        )
    if not config.report:
        jobs.run(asked.jobs, config.workers, config.gpus, config.cluster)
    if config.report or any(job.is_done for job in asked.jobs):
        command = ["./run.sh", "table", *sys.argv[1:]]
        print(report.write_table(*asked[:4], command))
        print(f"Written to {report.folder_of(asked.folder)}/")
    if any(job.exit_code for job in asked.jobs):
        sys.exit(1)


def find(
    config: Config,
    arguments: Sequence[str],
    tables_of: Callable[[str], Mapping[tuple[str, str], Table]] = cells_lib.tables_of,
) -> TableRuns:
    """Returns the table that is asked for, and its runs.

    Args:
        arguments: The other arguments: the name of the table.
        tables_of: Returns the tables of a paper.

    Raises:
        InvalidInputError: If the table, the scale or a cell is not there, or its runs
            are published ones.
    """
    asked = arguments[0] if len(arguments) == 1 else ""
    paper, _, name = asked.rpartition("/")
    paper = paper or "fedss"
    found = f"found {' '.join(arguments) or 'none'}."
    if paper not in cells_lib.PAPERS:
        papers = ", ".join(cells_lib.PAPERS)
        raise InvalidInputError(
            f"say which table: PAPER/NAME, with a PAPER of {papers}; {found}"
        )
    tables = tables_of(paper)
    name = name.removeprefix("table")
    scales = [scale for other, scale in tables if other == name]
    if not scales:
        names = ", ".join(dict.fromkeys(other for other, _ in tables))
        raise InvalidInputError(f"say which table of {paper}, one of {names}; {found}")
    scale = config.scale or ("mini" if "mini" in scales else scales[0])
    if scale not in scales:
        raise InvalidInputError(
            f"--scale={scale}: {paper}/{name} has cells for {' and '.join(scales)}."
        )
    key = name, scale
    table = tables[key]
    suffix = f"_{config.rounds}_rounds" if config.rounds else ""
    folder = pathlib.Path(config.results_dir or f"results/{table.results}{suffix}")
    # See `sources`, which takes long to import, and `report.read`.
    for published in ("runs.tar.xz", table.results):
        if not config.report and (folder / published).exists():
            raise InvalidInputError(
                f"--results_dir={folder} holds {published}, whose runs the page would "
                "show: give --report, or another folder."
            )
    seeds = list(dict.fromkeys(config.seeds or table.seeds))
    return TableRuns(
        key, table, folder, len(seeds), _jobs(key, table, config, seeds, folder)
    )


def _jobs(
    key: tuple[str, str],
    table: Table,
    config: Config,
    seeds: Sequence[int],
    folder: pathlib.Path,
) -> list[jobs.Job]:
    patterns = config.cells or ("*",)
    for pattern in patterns:
        if not fnmatch.filter(table.cells, pattern):
            names = ", ".join(table.cells)
            raise InvalidInputError(f"--cells={pattern} matches none of {names}.")
    chosen = [
        name
        for name in table.cells
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]
    # A cell's start comes before it.
    needed = dict.fromkeys(
        needed
        for name in chosen
        for needed in (table.cells[name].start, name)
        if needed is not None
    )
    shared = {"data_dir": config.data_dir, "pretrained": config.pretrained}
    shared = {name: value for name, value in shared.items() if value is not None}
    if config.cluster is not None:  # Another machine has another current folder.
        for name, value in shared.items():
            shared[name] = os.path.abspath(value) if os.path.exists(value) else value
    elif table.kind.has_warm_starts:
        shared["warm_start_cache"] = folder / "warm_starts"
    length, found = table.kind.length, []
    for seed in seeds:
        for cell in map(table.cells.get, needed):
            own = dict(shared, seed=seed)
            if cell.start is not None:
                own.pop("pretrained", None)
            # A cell without rounds measures only its start.
            if config.rounds and cell.settings.get(length) != 0:
                own[length] = config.rounds
            of_cell = f"--cell={'/'.join(key)}/{cell.name}"
            job = jobs.Job(
                f"{cell.name} seed {seed}",
                f"experiments.{table.kind.paper}.train",
                [of_cell, *cells_lib.as_arguments(own)],
                folder / cell.name / f"seed{seed}",
                cell.start and folder / cell.start / f"seed{seed}",
            )
            expected = own.get(length, cell.settings.get(length))
            _check_finished(job, length, expected, "pretrained" in own)
            found.append(job)
    return found


def _check_finished(
    job: jobs.Job, length: str, expected: int | None, is_pretrained: bool
) -> None:
    """Raises InvalidInputError if a finished run has another length, or start."""
    if not job.is_done:
        return
    flags = (job.folder / "flags.txt").read_text("utf-8", "replace").splitlines()
    theirs = next((flag for flag in flags if flag.startswith(f"--{length}=")), None)
    if expected is not None and theirs not in (None, f"--{length}={expected}"):
        found = f"{theirs}, but its cell now has {length}={expected}"
    elif is_pretrained and not any(x.startswith("--pretrained=") for x in flags):
        found = "no --pretrained, which is given now"
    else:
        return
    raise InvalidInputError(f"{job.folder} has {found}: give another --results_dir.")


def print_commands(of_table: Sequence[jobs.Job]) -> None:
    """Prints the command of each run that can begin now."""
    unfinished = [job for job in of_table if not job.is_done]
    ready = [job for job in unfinished if jobs.next_job([job], unfinished)]
    for job in ready:
        print(shlex.join([str(_RUN_SH), "python", *job.command]))
    if waiting := len(unfinished) - len(ready):
        print(
            f"{waiting} more start from these: list them when these are done.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    from experiments.common import program

    program.run(main, Config(), takes_arguments=True)
