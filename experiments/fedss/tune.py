"""Searches the learning rate of the clients, and m, on validation clients.

    ./run.sh tune --dataset=omniglot --data_dir=DIR --results_dir=results/tuned
    ./run.sh train --flagfile=results/tuned/tuned.flags --dataset=omniglot ...

Some of the clients are held out for validation. Each learning rate (with each m of
--num_negatives_grid, if given) has a short run on the other clients, several runs side
by side, and is measured on the images of the validation clients. The test is not used.
The other flags are those of `./run.sh train`, and every run is one of `train`: the same
command resumes it after a kill.

The results folder gets the page of a table, tuning.md with tuning.csv, tuning.png (the
metric of each run by round) and rates.png (after the last round, by rate, with the
value before training), and tuned.flags, with the flags of the highest metric, for
`train --flagfile`. A run that diverges is a result, and stops no other.
"""

import dataclasses
import math
import os
import pathlib
import sys
from collections.abc import Sequence

from experiments.common import (
    cells,
    config,
    jobs,
    page,
    plots,
    program,
    report,
)
from experiments.common import results as results_lib
from experiments.fedss import methods, run_config, train
from tff_fedss import files, tasks
from tff_fedss.errors import InvalidInputError, RunStoppedError
from tff_fedss.training import run_files

_TOPIC = "The search"
# Flags that the search sets for each run.
_SEARCHED = frozenset({"client_learning_rate", "on_validation", "keep", "patience"})
# A run of the search has the data set's rounds, divided by this.
_SHORTER = 4
_PLOT = "rates.png"
_DIVERGED = "has diverged in round"
_KIND = results_lib.RunKind(
    "train",
    lambda flags: methods.name_of(flags["method"]),
    check_result=lambda run: None,
)


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of the program."""

    client_learning_rates: tuple[str, ...] = config.flag(
        ("0.01", "0.03", "0.1", "0.3", "1"),
        "The rates (eta) to try.",
        group=_TOPIC,
    )
    num_negatives_grid: tuple[str, ...] | None = config.flag(
        None,
        "The values of m to try, each with each rate. Default: --num_negatives alone.",
    )
    method: str = config.flag("fedss", "The method to train.", words=methods.METHODS)
    rounds: int | None = config.flag(
        None,
        "The rounds of each run. Default: a quarter of those of `train`.",
        low=1,
    )
    validation_share: float = config.flag(
        0.1,
        "The share of validation clients.",
        low=1e-6,
        high=0.999999,
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
        "Numbers of the GPUs to use: each running search run gets one.",
        decides=False,
    )

    @classmethod
    def flags(cls) -> dict:
        """Returns the flags of `train`, without those that are searched."""
        return {k: v for k, v in super().flags().items() if k not in _SEARCHED}


def main(config: Config) -> None:
    """Runs the missing runs, and writes the results of the search."""
    folder = pathlib.Path(config.results_dir)
    table = _table(config)
    grid = [
        jobs.Job(
            f"{name} seed {config.seed}",
            table.program,
            cells.as_arguments(cell.settings),
            folder / name / f"seed{config.seed}",
        )
        for name, cell in table.cells.items()
    ]
    num_slots = config.jobs or len(config.gpus) or len(os.sched_getaffinity(0))
    begin = jobs.local(num_slots, config.gpus)
    try:
        jobs.run_all([job for job in grid if not _has_diverged(job)], num_slots, begin)
    finally:
        print(jobs.status(grid), flush=True)
    failed = [job for job in grid if not job.is_done and not _has_diverged(job)]
    for job in failed:
        print(f"FAILED: {job.name} ({job.log}): {job.why_failed()}", file=sys.stderr)
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
    _plot(table, runs, folder / _PLOT)
    command = ["./run.sh", "tune", *sys.argv[1:]]
    print(report.write_table(("tuning", ""), table, folder, 1, command))
    chosen = _chosen(table, runs)
    files.write_text(folder / "tuned.flags", run_files.as_flagfile(chosen))
    print(f"Written to {folder}/")


def _table(config: Config) -> cells.Table:
    """Returns the runs of the grid as a table, by m and then by rate.

    Raises:
        InvalidInputError: If the flags do not suit each other or the data set.
    """
    runs = _runs(config)
    task = tasks.KINDS[run_config.with_defaults(next(iter(runs.values()))).task]
    is_of_m = config.num_negatives_grid is not None
    return cells.table(
        "Search on validation clients",
        "experiments.fedss.train",
        [
            cells.Cell(
                name,
                _settings(run),
                name,
                row=f"rate {run.client_learning_rate:g}",
                column=f"m = {run.num_negatives}" if is_of_m else "",
            )
            for name, run in runs.items()
        ],
        "tuned",
        seeds=(config.seed,),
        kind=_KIND,
        metrics=(cells.Metric(task.metric, f"{task.metric_title} %", ".2f"),),
        is_pivot=is_of_m,
        notes=(
            "Measured on validation clients. `-`: the run has diverged.",
            _gains,
            _note,
            f"![By rate]({_PLOT})",
        ),
    )


def _runs(config: Config) -> dict[str, train.Config]:
    """Returns the runs of the grid, by m and then by rate.

    Raises:
        InvalidInputError: If the flags do not suit each other or the data set.
    """
    rates = _numbers("client_learning_rates", config.client_learning_rates, float)
    sizes: list[int | None] = [config.num_negatives]
    if config.num_negatives_grid is not None:
        if methods.name_of(config.method) not in methods.drawing():
            raise InvalidInputError(
                f"--num_negatives_grid: --method={config.method} draws no negatives."
            )
        if config.num_negatives is not None:
            raise InvalidInputError(
                f"--num_negatives={config.num_negatives} and --num_negatives_grid do "
                "not go together: give one of them."
            )
        sizes = _numbers("num_negatives_grid", config.num_negatives_grid, int)
    names = train.Config.flags().keys() - _SEARCHED
    given = {name: getattr(config, name) for name in names}
    common = train.Config(**given, on_validation=True)
    rounds = run_config.with_defaults(common).rounds
    if common.rounds is None:
        common = dataclasses.replace(common, rounds=max(1, rounds // _SHORTER))
    return {
        f"rate_{rate}" if len(sizes) == 1 else f"m{m}_rate_{rate}": dataclasses.replace(
            common, client_learning_rate=rate, num_negatives=m
        )
        for m in sizes
        for rate in rates
    }


def _settings(run: train.Config) -> dict[str, object]:
    """Returns the flags of a run that are not their defaults."""
    defaults = train.Config()
    return {
        flag: value
        for flag in run.flags()
        if flag != "results_dir"
        and (value := getattr(run, flag)) != getattr(defaults, flag)
    }


def _numbers(flag: str, texts: Sequence[str], kind: type) -> list:
    """Reads a list of distinct numbers above 0, and sorts them."""
    try:
        numbers = sorted(map(kind, texts))
    except ValueError:
        numbers = []
    in_range = all(0 < number < math.inf for number in numbers)
    if not numbers or not in_range or len({*numbers}) < len(numbers):
        what = "whole numbers" if kind is int else "numbers"
        raise InvalidInputError(
            f"--{flag}={','.join(texts)}: expected different {what} above 0."
        )
    return numbers


def _has_diverged(job: jobs.Job) -> bool:
    """Returns whether the log of a run ends with the message that it has diverged."""
    return not job.is_done and _DIVERGED in job.why_failed()


def _chosen(table: cells.Table, runs: page.Runs) -> dict[str, str]:
    """Returns the flags of the highest metric.

    Ties are broken by fewer negatives, then by the lower rate.
    """
    best = table.cells[_best(table, runs)]
    names = ["client_learning_rate", *(["num_negatives"] if table.is_pivot else [])]
    return {name: str(best.settings[name]) for name in names}


def _best(table: cells.Table, runs: page.Runs) -> str:
    shares = _shares(table, runs)
    return max(shares, key=shares.get)


def _shares(table: cells.Table, runs: page.Runs) -> dict[str, float]:
    """Returns the metric of each finished run after its last round."""
    metric = table.metrics[0].name
    return {
        name: own[0].final(metric, scale=1)
        for name, own in runs.items()
        if own and own[0].is_done
    }


def _rate(cell: cells.Cell) -> float:
    return float(cell.settings["client_learning_rate"])


def _start(table: cells.Table, runs: page.Runs) -> float:
    """Returns the highest metric that a run had before its first round."""
    metric = table.metrics[0].name
    return max(own[0].rows[0][metric] for own in runs.values() if own and own[0].rows)


def _gains(table: cells.Table, runs: page.Runs, *_: object) -> list[str]:
    """Describes the gain of training, and the rates that make the metric worse."""
    metric, start = table.metrics[0], _start(table, runs)
    best = _best(table, runs)
    gains = {n: 100 * (x - start) for n, x in _shares(table, runs).items()}
    each = "; ".join(f"{name} {gain:+.1f}" for name, gain in gains.items())
    lines = [
        f"Before training: {metric.title} {100 * start:.2f}. Gain in points: {each}."
    ]
    worse = [name for name, gain in gains.items() if gain < 0]
    if gains[best] <= 0:
        lowest = min(map(_rate, table.cells.values()))
        lines.append(
            "Recommendation: do not train with these flags: no run ends above the "
            f"start. Try rates below {lowest:g} or more rounds."
        )
    else:
        chosen = ", ".join(f"{k}={v}" for k, v in _chosen(table, runs).items())
        lines.append(
            f"Recommendation: train with {chosen}: {gains[best]:+.1f}."
            + (f" Worse than the start: {', '.join(worse)}." if worse else "")
        )
    return lines


def _plot(table: cells.Table, runs: page.Runs, path: pathlib.Path) -> None:
    """Draws the metric after the last round by rate, a curve for each m."""
    metric, start = table.metrics[0], _start(table, runs)
    by_column: dict[str, list[dict[str, float]]] = {}
    for name, share in _shares(table, runs).items():
        cell = table.cells[name]
        points = by_column.setdefault(cell.column or "after training", [])
        points.append({"rate": _rate(cell), metric.name: share})
    rates = sorted({point["rate"] for points in by_column.values() for point in points})
    before = [{"rate": rate, metric.name: start} for rate in rates]
    series = [
        plots.Series(label, plots.style(i), [points])
        for i, (label, points) in enumerate(by_column.items())
    ]
    series.append(plots.Series("before training", plots.REFERENCE, [before]))
    title = "learning rate of the clients"
    panel = plots.panel(
        series, "rate", metric.name, title, metric.title, scale=100, log="x"
    )
    plots.write_curves(path, [panel])


def _note(table: cells.Table, runs: page.Runs, *_: object) -> list[str]:
    """Describes the choice and its precision.

    The standard error is that of a proportion p of N images, sqrt(p (1 - p) / N). The
    mean of values between 0 and 1, such as MAP@10, has at most that. It does not
    include the variation between seeds.
    """
    (run,) = runs[_best(table, runs)]
    metric = table.metrics[0]
    num_images = run.origin["data"]["test images"]
    share = run.final(metric.name, scale=1)
    error = 100 * math.sqrt(share * (1 - share) / num_images)
    flags = " ".join(f"--{name}={x}" for name, x in _chosen(table, runs).items())
    return [
        f"Taken: {flags}, the highest {metric.title}: {100 * share:.2f}, with a "
        f"standard error of {error:.2f} on {num_images:,} images; another seed may "
        "differ by more."
    ]


if __name__ == "__main__":
    program.run(main, Config())
