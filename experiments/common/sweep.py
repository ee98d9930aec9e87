"""The command `table`: runs what is missing of a table and writes its page.

    ./run.sh table 1 --data_dir=DIR                   # FedSS's Table 1; or fedss/1
    ./run.sh table leap/1 --data_dir=DIR --cells='mnist_mini/*'
    ./run.sh table moco/4 --report                    # runs nothing
    ./run.sh table 1 --data_dir=DIR --list | parallel -j2

runs every cell of the table (see experiments/PAPER/cells.py) with its seeds and writes
the table, beside the paper's numbers, and the figures into the results folder.
`--scale=paper` takes the paper's own settings.

A run that is done is skipped, one that was stopped or killed resumes from its last
checkpoint, and one that fails is reported and stops no other. So the same command
completes the table. `--list` prints a command for each run that can begin now, for a
Slurm array or GNU parallel; `--report` then writes the page.

Each run has a folder, RESULTS_DIR/CELL/seedK, and a log beside it, seedK.log.
"""

import dataclasses
import fnmatch
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence

from experiments.common import (
    cells,
    cluster_jobs,
    config,
    program,
    report,
    runtime_config,
)
from experiments.common import jobs as jobs_lib
from tff_fedss.errors import InvalidInputError

_SCALES = ("mini", "chunks", "turned", "tiny_imagenet", "paper")
_RUN_SH = pathlib.Path(__file__).parents[2] / "run.sh"


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the command."""

    scale: str | None = config.flag(
        None,
        "`paper`: the paper's data sets and settings. `mini`: for 2 cores. "
        "`tiny_imagenet`: photographs, on 2 cores; FedSS's Table 1 and `rates`. "
        "`chunks`: mini, with clients as those of SOP; FedSS's Table 2 alone. "
        "`turned`: turned characters are more classes; Tables 1, 2 and `rates`. "
        "Default: mini, where the table has that.",
        choices=_SCALES,
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
        "Only cells with these names; `*` matches anything. Default: all.",
    )
    seeds: tuple[str, ...] | None = config.flag(
        None, "The seeds of each cell. Default: the table's."
    )
    rounds: int | None = config.flag(
        None,
        "The rounds of each run (epochs, for moco) instead of its cell's; the "
        "results folder is another one then, and the table says so.",
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
        "As for the program of the cells, for those that start from no other cell: "
        "ImageNet-1k weights, say.",
    )


def main(config: Config, arguments: list[str]) -> None:
    """Runs the jobs and writes the report."""
    key, table = _table(config, arguments)
    suffix = f"_{config.rounds}_rounds" if config.rounds else ""
    results_dir = pathlib.Path(config.results_dir or f"results/{table.results}{suffix}")
    seeds = _seeds(config.seeds, table)
    jobs = _jobs(key, table, config, seeds, results_dir)
    if config.list:
        _print_commands(jobs)
        return
    if not config.report:
        _run(config, jobs)
    for job in jobs:
        if job.exit_code:
            print(
                f"FAILED: {job.name} ({job.log}): {job.why_failed()}", file=sys.stderr
            )
    if config.report or any(job.is_done for job in jobs):
        command = ["./run.sh", "table", *sys.argv[1:]]
        print(report.write_table(key, table, results_dir, len(seeds), command))
        print(f"Written to {results_dir}/")
    if any(job.exit_code for job in jobs):
        sys.exit(1)


def _print_commands(jobs: Sequence[jobs_lib.Job]) -> None:
    unfinished = [job for job in jobs if not job.is_done]
    ready = [job for job in unfinished if jobs_lib.next_job([job], unfinished)]
    for job in ready:
        print(shlex.join([str(_RUN_SH), "python", *job.command]))
    if waiting := len(unfinished) - len(ready):
        print(
            f"{waiting} more start from these: list them when these are done.",
            file=sys.stderr,
        )


def _run(config: Config, jobs: Sequence[jobs_lib.Job]) -> None:
    if config.cluster is None:
        cores = len(os.sched_getaffinity(0))
        num_slots = config.workers or len(config.gpus) or cores
        begin = jobs_lib.local(num_slots, config.gpus)
    else:
        if config.gpus:
            raise InvalidInputError(
                f"--gpus={','.join(config.gpus)} does not go with --cluster, where "
                "each run gets a GPU of its own."
            )
        runtime_config.check_address(config.cluster)
        num_slots = config.workers or len(jobs)
        begin = cluster_jobs.on_cluster(config.cluster)
    try:
        jobs_lib.run_all(jobs, num_slots, begin)
    finally:
        print(jobs_lib.status(jobs), flush=True)


def _table(config: Config, arguments: list[str]) -> tuple[tuple[str, str], cells.Table]:
    """Returns the name and scale of the table that is asked for, and the table."""
    asked = arguments[0] if len(arguments) == 1 else ""
    paper, _, name = asked.rpartition("/")
    paper = paper or "fedss"
    if paper not in cells.PAPERS:
        raise InvalidInputError(
            f"say which table: PAPER/NAME, with a PAPER of {', '.join(cells.PAPERS)}; "
            f"found {' '.join(arguments) or 'none'}."
        )
    tables = cells.tables_of(paper)
    name = name.removeprefix("table")
    scales = [scale for other, scale in tables if other == name]
    if not scales:
        names = dict.fromkeys(other for other, _ in tables)
        raise InvalidInputError(
            f"say which table of {paper}, one of {', '.join(names)}; found "
            f"{' '.join(arguments) or 'none'}."
        )
    scale = config.scale or ("mini" if "mini" in scales else scales[0])
    if scale not in scales:
        raise InvalidInputError(
            f"--scale={scale}: {paper}/{name} has cells for {' and '.join(scales)}."
        )
    return (name, scale), tables[name, scale]


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
    config: Config,
    seeds: Sequence[int],
    results_dir: pathlib.Path,
) -> list[jobs_lib.Job]:
    """Lists the runs: the first seed of every cell, then the second, and so on."""
    patterns = config.cells
    chosen = [
        name
        for name in table.cells
        if not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)
    ]
    if not chosen:
        raise InvalidInputError(
            f"--cells={','.join(patterns)} matches none of {', '.join(table.cells)}."
        )
    # A cell's start comes before it.
    needed = dict.fromkeys(
        needed
        for name in chosen
        for needed in (table.cells[name].start, name)
        if needed is not None
    )
    flags = table.config.flags()
    shared = {"data_dir": config.data_dir, "pretrained": config.pretrained}
    shared = {name: value for name, value in shared.items() if value is not None}
    if config.cluster is not None:  # Another machine has another current folder.
        for name, value in shared.items():
            shared[name] = os.path.abspath(value) if os.path.exists(value) else value
    elif "warm_start_cache" in flags:
        shared["warm_start_cache"] = results_dir / "warm_starts"
    length = "rounds" if "rounds" in flags else "epochs"
    jobs = []
    for seed in seeds:
        for cell in map(table.cells.get, needed):
            own = dict(shared, seed=seed)
            if cell.start is not None:
                own.pop("pretrained", None)
            # A cell without rounds measures only its start.
            if config.rounds and cell.settings.get(length) != 0:
                own[length] = config.rounds
            name = f"--cell={'/'.join(key)}/{cell.name}"
            jobs.append(
                jobs_lib.Job(
                    f"{cell.name} seed {seed}",
                    table.program,
                    [name, *cells.as_arguments(own)],
                    results_dir / cell.name / f"seed{seed}",
                    cell.start and results_dir / cell.start / f"seed{seed}",
                )
            )
    return jobs


if __name__ == "__main__":
    program.run(main, Config(), takes_arguments=True)
