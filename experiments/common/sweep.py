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
import os
import sys
from collections.abc import Sequence

from experiments.common import (
    config,
    program,
    report,
    table_runs,
)
from experiments.common import jobs as jobs_lib
from tff_fedss.errors import InvalidInputError

_SCALES = ("mini", "chunks", "turned", "tiny_imagenet", "paper")


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
        "Only cells with these names, separated by commas; `*` matches anything. "
        "Default: all.",
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
    asked = table_runs.find(config, arguments)
    jobs = asked.jobs
    if config.list:
        table_runs.print_commands(jobs)
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
        page = (asked.key, asked.table, asked.folder, asked.num_seeds, command)
        print(report.write_table(*page))
        print(f"Written to {asked.folder}/")
    if any(job.exit_code for job in jobs):
        sys.exit(1)


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
        num_slots = config.workers or len(jobs)
        begin = jobs_lib.on_cluster(config.cluster)
    try:
        jobs_lib.run_all(jobs, num_slots, begin)
    finally:
        print(jobs_lib.status(jobs), flush=True)


if __name__ == "__main__":
    program.run(main, Config(), takes_arguments=True)
