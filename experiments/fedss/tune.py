"""Searches the learning rate of the clients, and m, on validation clients.

    ./run.sh tune --dataset=omniglot --data_dir=DIR --results_dir=results/tuned
    ./run.sh train --flagfile=results/tuned/tuned.flags --dataset=omniglot ...

Some of the clients are held out for validation. Each learning rate (with each m of
--num_negatives_grid, if given) has a short run on the other clients, several runs side
by side, and is measured on the images of the validation clients. The test is not used.
Most other flags are those of `./run.sh train`, and every run is one of `train`: the
same command resumes it after a kill.

The results folder gets the page of a table, tuning.md with tuning.csv and tuning.png
(the metric of each run by round), and tuned.flags, with the flags of the highest
metric, for `train --flagfile`. A run that diverges is a result, and stops no other.
"""

import contextlib
import dataclasses
import math
import sys

from experiments.common import cells, config, jobs, page, program, report
from experiments.fedss import methods, pages, run_config, train
from tff_fedss import files, tasks, training
from tff_fedss.errors import InvalidInputError, RunStoppedError
from tff_fedss.training import run_files

_TOPIC = "The search"
# Flags that the search sets for each run.
_SEARCHED = frozenset({"client_learning_rate", "on_validation", "keep", "patience"})
# Flags of a search to which the same folder may add.
_GRID = frozenset({"client_learning_rates", "num_negatives_grid"})
# A run of the search has the data set's rounds, divided by this.
_SHORTER = 4
_DIVERGED = "has diverged in round"


@dataclasses.dataclass(frozen=True)
class Config(train.Config):
    """The flags of the program."""

    client_learning_rates: tuple[float, ...] = config.flag(
        (0.01, 0.03, 0.1, 0.3, 1.0), "The rates (eta) to try.", group=_TOPIC, low=1e-30
    )
    num_negatives_grid: tuple[int, ...] | None = config.flag(
        None,
        "The values of m to try, each with each rate. Default: --num_negatives alone.",
        low=1,
    )
    rounds: int | None = config.flag(
        None, "The rounds of each run. Default: a quarter of those of `train`.", low=1
    )
    validation_share: float = config.flag(
        0.1, "The share of validation clients.", low=1e-6, high=0.999999
    )
    jobs: int | None = config.flag(
        None,
        "How many runs at once. Each gets its share of the cores. Default: one for "
        "each of --gpus, else one for each core.",
        low=1,
        decides=False,
    )
    gpus: tuple[str, ...] = config.flag(
        (),
        "Numbers of the GPUs to use: each run gets one.",
        decides=False,
    )

    def flags(self) -> dict[str, config.Flag]:
        """Returns the flags of `train`, without those that are searched."""
        return {k: v for k, v in super().flags().items() if k not in _SEARCHED}


def main(config: Config) -> None:
    """Runs the missing runs, and writes the results of the search."""
    table = _table(config)
    flags = {k: v for k, v in config.deciding().items() if k not in _GRID}
    with contextlib.closing(training.ResultsFolder(config.results_dir, flags)) as own:
        own.open()
    folder = own.path
    grid = [
        jobs.Job(
            f"{name} seed {config.seed}",
            "experiments.fedss.train",
            cells.as_arguments(cell.settings),
            folder / name / f"seed{config.seed}",
        )
        for name, cell in table.cells.items()
    ]

    def has_diverged(job: jobs.Job) -> bool:
        return not job.is_done and _DIVERGED in job.why_failed()

    jobs.run(grid, config.jobs, config.gpus, skips=has_diverged)
    failed = [job for job in grid if not job.is_done and not has_diverged(job)]
    if failed:
        raise RunStoppedError(
            f"{len(failed)} of {len(grid)} runs have failed, and not by diverging, so "
            "that nothing is chosen; the same command tries them again."
        )
    if not any(job.is_done for job in grid):
        raise RunStoppedError(
            "all runs have diverged: give smaller --client_learning_rates."
        )
    runs = report.read(table, folder)
    command = ["./run.sh", "tune", *sys.argv[1:]]
    print(report.write_table(("tuning", ""), table, folder, 1, command))
    _, flags = _best(table, runs)
    files.write_text(folder / "tuned.flags", run_files.as_flagfile(flags))
    print(f"Written to {folder}/")


def _table(config: Config) -> cells.Table:
    """Returns the runs of the grid as a table, by m and then by rate.

    Raises:
        InvalidInputError: If the flags do not suit each other or the data set.
    """
    rates = sorted(set(config.client_learning_rates))
    sizes: list[int | None] = [None]
    if config.num_negatives_grid:
        if not methods.METHODS[methods.name_of(config.method)].draws_negatives:
            raise InvalidInputError(
                f"--num_negatives_grid: --method={config.method} draws no negatives."
            )
        if config.num_negatives is not None:
            raise InvalidInputError(
                f"--num_negatives={config.num_negatives} and --num_negatives_grid do "
                "not go together: give one of them."
            )
        sizes = sorted(set(config.num_negatives_grid))
    common = {
        name: getattr(config, name)
        for name, own in train.Config().flags().items()
        if name not in {*_SEARCHED, "results_dir"}
        and getattr(config, name) != own.default
    }
    common["on_validation"] = True
    common.setdefault("warm_start_cache", f"{config.results_dir}/warm_starts")
    run = run_config.with_defaults(train.Config(**common))
    if config.rounds is None:
        common["rounds"] = max(1, run.rounds // _SHORTER)
    task, is_of_m = tasks.KINDS[run.task], sizes != [None]
    grid = []
    for m in sizes:
        for rate in rates:
            name = f"m{m}_rate_{rate}" if is_of_m else f"rate_{rate}"
            settings = {**common, "client_learning_rate": rate}
            if m is not None:
                settings["num_negatives"] = m
            column = f"m = {m}" if is_of_m else ""
            grid.append(
                cells.Cell(name, settings, name, row=f"rate {rate:g}", column=column)
            )
    return cells.table(
        "Search on validation clients",
        grid,
        "tuned",
        seeds=(config.seed,),
        kind=pages.KIND,
        metrics=(cells.Metric(task.metric, f"{task.metric_title} %", ".2f"),),
        is_pivot=is_of_m,
        notes=(
            "Measured on validation clients. `-`: the run has diverged.",
            _conclusion,
        ),
    )


def _shares(table: cells.Table, runs: page.Runs) -> dict[str, float]:
    """Returns the metric of each finished run after its last round."""
    metric = table.metrics[0].name
    return {
        name: own[0].final(metric, scale=1)
        for name, own in runs.items()
        if own and own[0].is_done
    }


def _best(table: cells.Table, runs: page.Runs) -> tuple[str, dict[str, str]]:
    """Returns the name and the flags of the run with the highest metric.

    Ties are broken by fewer negatives, then by the lower rate.
    """
    shares = _shares(table, runs)
    best = max(shares, key=shares.get)
    settings = table.cells[best].settings
    names = ["client_learning_rate", *(["num_negatives"] if table.is_pivot else [])]
    return best, {name: str(settings[name]) for name in names}


def _conclusion(table: cells.Table, runs: page.Runs, *_: object) -> list[str]:
    """Writes the gain of each run, and the choice with its precision.

    The standard error is that of a proportion p of N images, sqrt(p (1 - p) / N). The
    mean of values between 0 and 1, such as MAP@10, has at most that. It does not
    include the variation between seeds.
    """
    metric, shares = table.metrics[0], _shares(table, runs)
    best, flags = _best(table, runs)
    # Of all runs, also of those that have diverged.
    start = max(own[0].rows[0][metric.name] for own in runs.values() if own)
    gains = "; ".join(f"{n} {100 * (x - start):+.1f}" for n, x in shares.items())
    share, num_images = shares[best], runs[best][0].origin["data"]["test images"]
    error = 100 * math.sqrt(share * (1 - share) / num_images)
    lines = [
        f"Before training: {metric.title} {100 * start:.2f}. Gain in points: {gains}.",
        f"Taken: {' '.join(cells.as_arguments(flags))}, the highest {metric.title}: "
        f"{100 * share:.2f}, with a standard error of {error:.2f} on {num_images:,} "
        "images; another seed may differ by more.",
    ]
    if share <= start:
        lines.append(
            "Do not train with these flags: no run ends above the start. Try smaller "
            "rates or more rounds."
        )
    return lines


if __name__ == "__main__":
    program.run(main, Config())
