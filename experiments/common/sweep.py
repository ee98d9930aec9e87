"""Runs what is missing of a table of any of the papers, and writes the table.

    ./run.sh table 1 --scale=mini --data_dir=DIR        # FedSS; or fedss/1
    ./run.sh table leap/1 --scale=mini --data_dir=DIR --cells='mnist_mini/*'
    ./run.sh table moco/4 --status

runs every cell of the table (they stand in experiments/PAPER/cells.py) with its seeds,
and writes the table and the figures into the results folder. Numbers of the paper stand
beside ours. `--scale=paper` takes the paper's own settings.

A run that is done is skipped; one that was stopped or killed goes on from its last
checkpoint; one that fails is reported and does not stop the others. So the same
command, given again, does what is left. `--status` runs nothing and says how far it is.
A folder with a run of other flags than its cell's stops the command before it begins.

Each run has a folder, RESULTS_DIR/CELL/seedK, and a log beside it, seedK.log.
"""

import dataclasses
import fnmatch
import pathlib
import sys
from collections.abc import Sequence

from experiments.common import (
    cells,
    cluster_jobs,
    config,
    flagfiles,
    output_files,
    program,
    results,
    runtime_config,
)
from experiments.common import jobs as jobs_lib
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

_SCALES = ("mini", "chunks", "tiny_imagenet", "paper")
# These may lie anywhere.
_PLACES = frozenset({"clients_csv", "data_dir", "flagfile"})
_LARGEST_SEED = 2**31 - 1  # Of ./run.sh train.


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    scale: str | None = config.flag(
        None,
        "`paper`: the paper's data sets and settings. `mini`: for 2 cores. "
        "`tiny_imagenet`: photographs, on 2 cores; FedSS's Table 1 and `rates`. "
        "`chunks`: mini, with clients as those of SOP; FedSS's Table 2 alone. "
        "Default: mini, where the table has that.",
        choices=_SCALES,
    )
    data_dir: str | None = config.flag(
        None, "Where the data set is, as for the program of the cells."
    )
    results_dir: str | None = config.flag(
        None,
        "Where the runs are. Default: a folder in results/. FedSS's Table 4 shares the "
        "runs of Table 2, Figure 6 stands beside those of Table 1, and MoCo's tables "
        "share theirs.",
    )
    flagfiles: str | None = config.flag(
        None,
        "A folder of flagfiles, CELL.flags, to take for the cells. Default: those of "
        "experiments/PAPER/cells.py.",
    )
    cells: tuple[str, ...] | None = config.flag(
        None,
        "Only cells with these names; `*` stands for anything. Default: all of them.",
    )
    seeds: tuple[str, ...] | None = config.flag(
        None, "The seeds of each cell. Default: the table's."
    )
    rounds: int | None = config.flag(
        None,
        "Give each run so many rounds (epochs, for moco), not those of its cell: the "
        "results folder is one of its own then, and the table says so.",
        low=1,
    )
    workers: int | None = config.flag(
        None,
        "How many runs at once. Each gets its share of the cores. Default: one for "
        "each of --gpus, else one for each core.",
        low=1,
    )
    gpus: tuple[str, ...] = config.flag(
        (), "Numbers of the GPUs to use: every run at work gets one."
    )
    cluster: str | None = config.flag(
        None,
        "Run the cells on a Ray cluster (docs/several_machines.md), each on a core or, "
        "if it has any, on a GPU of one of its machines: `auto`, the cluster that this "
        "machine is a part of, or `ray://host:port`. --data_dir is the same on all of "
        "them; what the runs leave is brought here.",
    )
    pretrained: str | None = config.flag(
        None,
        "As for the program of the cells, for those that start from no other cell: "
        "ImageNet-1k weights, say.",
    )
    status: bool = config.flag(False, "Only say how far everything is.")


def main(config: Config, arguments: list[str]) -> None:
    """Runs the jobs and writes the report."""
    name, table = _table(config, arguments)
    output_files.check_named(results_dir=config.results_dir)
    rounds = config.rounds
    results_dir = pathlib.Path(
        config.results_dir
        or f"results/{table.results}" + (f"_{rounds}_rounds" if rounds else "")
    )
    seeds = _seeds(config.seeds, table)
    jobs = _jobs(name, table, config.cells, seeds, results_dir, rounds)
    for job in jobs:
        _check_folder(job, config.pretrained)
    if not config.status:
        cluster = _cluster(config)
        try:
            jobs_lib.run_all(
                jobs,
                num_workers=config.workers,
                gpus=config.gpus,
                more_settings={
                    name: value
                    for name, value in (
                        ("data_dir", config.data_dir),
                        ("pretrained", config.pretrained),
                    )
                    if value is not None
                },
                cluster=cluster,
            )
        finally:
            print(jobs_lib.status(jobs), flush=True)
    else:
        print(jobs_lib.status(jobs))
    failed = [job for job in jobs if job.exit_code]
    for job in failed:
        print(f"FAILED: {job.name} ({job.log}): {job.why_failed()}", file=sys.stderr)
    if any(job.is_done for job in jobs):
        command = ["./run.sh", "table", *sys.argv[1:]]
        print(table.report.write_table(name, table, results_dir, len(seeds), command))
        print(f"Written to {results_dir}/")
    if failed:
        sys.exit(1)


def _cluster(config: Config) -> cluster_jobs.Cluster | None:
    if config.cluster is None:
        return None
    if config.gpus:
        raise InvalidInputError(
            f"--gpus={','.join(config.gpus)} does not go with --cluster, where each "
            "run gets a GPU of its own."
        )
    runtime_config.check_address(config.cluster)
    return cluster_jobs.Cluster(config.cluster)


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
    folder = config.flagfiles
    if scale not in scales:
        if not folder:
            raise InvalidInputError(
                f"--scale={scale}: {paper}/{name} has cells for {' and '.join(scales)}."
            )
        scale = scales[0]
    table = tables[name, scale]
    if folder:
        table = cells.of_flagfiles(table, pathlib.Path(folder))
    return (name, scale), table


def _seeds(seeds: Sequence[str] | None, table: cells.Table) -> list[int]:
    if seeds is None:
        return list(table.seeds)
    if not seeds or not all(seed.isdecimal() for seed in seeds):
        raise InvalidInputError(f"--seeds={','.join(seeds)} must be whole numbers.")
    numbers = list(map(int, seeds))
    if max(numbers) > _LARGEST_SEED:
        raise InvalidInputError(
            f"--seeds={','.join(seeds)} must be at most {_LARGEST_SEED}."
        )
    if len({*numbers}) < len(numbers):
        raise InvalidInputError(f"--seeds={','.join(seeds)} has a seed twice.")
    return numbers


def _jobs(
    key: tuple[str, str],
    table: cells.Table,
    patterns: Sequence[str] | None,
    seeds: Sequence[int],
    results_dir: pathlib.Path,
    rounds: int | None = None,
) -> list[jobs_lib.Job]:
    """Lists the runs: the first seed of every cell, then the second, and so on."""
    chosen = [
        name
        for name in table.cells
        if not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)
    ]
    if not chosen:
        raise InvalidInputError(
            f"--cells={','.join(patterns)} matches none of {', '.join(table.cells)}."
        )
    # What they start from comes before them.
    needed = dict.fromkeys(
        needed
        for name in chosen
        for needed in (table.cells[name].start, name)
        if needed is not None
    )
    found = [_with_rounds(table, table.cells[name], rounds) for name in needed]
    num_rounds = {cell.name: _num_rounds(table, cell) for cell in found}
    return [
        jobs_lib.Job(
            table,
            cell,
            _arguments(key, table, cell),
            seed,
            results_dir / cell.name / f"seed{seed}",
            num_rounds[cell.name],
        )
        for seed in seeds
        for cell in found
    ]


def _arguments(key: tuple[str, str], table: cells.Table, cell: cells.Cell) -> list[str]:
    """Returns what gives a program the flags of a cell: if published, its name."""
    published = f"--cell={'/'.join(key)}/{cell.name}"
    argument = f"--flagfile={cell.flagfile}" if cell.flagfile else published
    known = table.cells[cell.name].settings
    own = {n: v for n, v in cell.settings.items() if known.get(n) != v}
    return [argument, *cells.as_arguments(own)]


def _with_rounds(
    table: cells.Table, cell: cells.Cell, rounds: int | None
) -> cells.Cell:
    """Gives a cell the rounds of --rounds, unless it is to have none."""
    length = table.report.KIND.length
    if not rounds or str(cell.settings.get(length)) == "0":
        return cell
    return dataclasses.replace(cell, settings={**cell.settings, length: rounds})


def _num_rounds(table: cells.Table, cell: cells.Cell) -> int:
    """How many rounds a cell has, by its settings or by its data set."""
    length = table.report.KIND.length
    found = cell.settings.get(length)
    if found is None:
        return table.report.default_rounds(cell)
    if not str(found).isdecimal():
        raise InvalidInputError(f"{cell.title}: --{length}={found} is no whole number.")
    return int(found)


def _check_folder(job: jobs_lib.Job, pretrained: str | None) -> None:
    """Checks that what is in the folder of a run is this run.

    Args:
        job: The run.
        pretrained: --pretrained of this command.

    Raises:
        InvalidInputError: If it is another run, or it is done and a file is damaged.
    """
    parts = len(pathlib.PurePath(job.cell.name).parts)
    for folder in (*reversed(job.folder.parents[: parts + 1]), job.folder):
        if folder.exists() and not folder.is_dir():
            raise InvalidInputError(f"{folder} is a file, expected a folder of runs.")
    if not results.has_begun(job.folder):
        return
    theirs = run_files.read_flags(job.folder / "flags.txt")
    # A run keeps what decides its results.
    known = job.table.config.flags()
    free = _PLACES | {name for name, own in known.items() if not own.decides}
    kind = job.table.report.KIND
    ours = {
        **cells.as_texts(job.cell.settings),
        kind.length: str(job.num_rounds),
        "seed": str(job.seed),
    }
    if ours.get("runtime") == "auto":  # Its meaning depends on the machine.
        del ours["runtime"]
    there = [
        f"--{name}={theirs.get(name, '(unset)')} instead of {value}"
        for name, value in sorted(ours.items())
        if name not in {*free, "pretrained"}
        and not flagfiles.same_value(theirs.get(name), value)
    ]
    ours_pretrained = job.start or pretrained or ours.get("pretrained")
    if bool(theirs.get("pretrained")) != bool(ours_pretrained):
        there.append(
            f"--pretrained={theirs.get('pretrained', '(unset)')} instead of "
            f"{ours_pretrained or '(unset)'}"
        )
    if there:
        raise InvalidInputError(
            f"{job.folder} is not a run of {job.cell.name} with seed {job.seed}: it "
            f"has {', '.join(there)}. Take it away, or name another --results_dir."
        )
    if job.is_done:
        jobs_lib.read(job)


if __name__ == "__main__":
    program.run(main, Config(), takes_arguments=True)
