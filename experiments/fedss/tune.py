"""Searches the learning rate of the clients, and m, on validation clients.

    ./run.sh tune --dataset=omniglot --data_dir=DIR --results_dir=results/tuned
    ./run.sh train --flagfile=results/tuned/tuned.flags --dataset=omniglot ...

Some of the clients are kept apart. Each learning rate (with each m of
--num_negatives_grid, if that is given) has a short run on the other clients, several
runs side by side, and is measured on the images of those apart. Nothing looks at the
test. The other flags are those of `./run.sh train`, and every run is one of `train`: it
resumes after a kill when the same command is given again.

The results folder gets tuning.md and tuning.csv (the metric of each run after its last
round, with its standard error), tuning.png with its PDF, and tuned.flags, with the
flags of the highest metric, for `train --flagfile`. A run that diverges counts as one,
and stops no other.
"""

import dataclasses
import math
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.common import (
    cells,
    config,
    jobs,
    output_files,
    plots,
    program,
    table,
)
from experiments.fedss import methods, run_config, train
from tff_fedss import files, tasks
from tff_fedss.errors import InvalidInputError, RunStoppedError
from tff_fedss.training import run_files

_PROGRAM = "experiments.fedss.train"
_TOPIC = "The search"
# The search itself gives these to each run.
_SEARCHED = frozenset({"client_learning_rate", "on_validation"})
# A run of the search has a data set's own rounds, divided by this.
_SHORTER = 4
_DIVERGED = "has diverged in round"


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of the program."""

    client_learning_rates: tuple[str, ...] = config.flag(
        ("0.01", "0.03", "0.1", "0.3"),
        "The rates (eta) to try.",
        group=_TOPIC,
    )
    num_negatives_grid: tuple[str, ...] | None = config.flag(
        None,
        "The values of m to try, each with each rate. Default: --num_negatives alone.",
    )
    method: str = config.flag("fedss", "What to train with.", choices=methods.METHODS)
    rounds: int | None = config.flag(
        None,
        "How many rounds each run has. Default: a quarter of those that `train` has.",
        low=1,
    )
    validation_share: float = config.flag(
        0.1,
        "The share of the clients that is kept apart, for measuring.",
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
        "Numbers of the GPUs to use: every run at work gets one.",
        decides=False,
    )

    @classmethod
    def flags(cls) -> dict:
        """Returns the flags of `train`, without those that are searched."""
        return {k: v for k, v in super().flags().items() if k not in _SEARCHED}


def main(config: Config) -> None:
    """Runs what is missing, and writes what the search has found."""
    folder = pathlib.Path(config.results_dir)
    runs = _runs(config)
    grid = [_job(name, run, folder) for name, run in runs.items()]
    num_slots = config.jobs or len(config.gpus) or len(os.sched_getaffinity(0))
    try:
        jobs.run_all(
            [job for job in grid if not _has_diverged(job)],
            num_slots,
            jobs.local(num_slots, config.gpus),
        )
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
    task = run_config.with_defaults(next(iter(runs.values()))).task
    metric = tasks.KINDS[task].metric
    rows = [_rows(job, config.method) for job in grid]
    trials = [
        _trial(run, job, found[-1], metric)
        for run, job, found in zip(runs.values(), grid, rows, strict=True)
    ]
    done = [trial for trial in trials if trial["outcome"] == "done"]
    if not done:
        raise RunStoppedError(
            "all runs have diverged: give smaller --client_learning_rates."
        )
    # Of equal ones the first: fewer negatives, then the lower rate.
    best = max(done, key=lambda trial: trial[f"{metric}_percent"])
    best["is_taken"] = True
    searched = ["client_learning_rate"]
    if config.num_negatives_grid is not None:
        searched.append("num_negatives")
    chosen = {name: str(best[name]) for name in searched}
    output_files.write_text(folder / "tuned.flags", run_files.as_flagfile(chosen))
    output_files.write_csv(folder / "tuning.csv", trials)
    text = table.as_markdown(
        list(trials[0]), [_as_texts(trial) for trial in trials], left=()
    )
    taken = " ".join(f"--{name}={value}" for name, value in chosen.items())
    text = f"{text}\n\nTaken: {taken}, the highest {metric} on validation clients."
    command = " ".join(["./run.sh", "tune", *sys.argv[1:]])
    output_files.write_text(folder / "tuning.md", f"    {command}\n\n{text}\n")
    _plot(folder, trials, rows, metric)
    print(f"{text}\nWritten to {folder}/")


def _runs(config: Config) -> dict[str, train.Config]:
    """Returns the runs of the grid, by m and then by rate.

    Raises:
        InvalidInputError: If the flags do not go with each other or with the data set.
    """
    rates = _numbers("client_learning_rates", config.client_learning_rates, float)
    sizes: list[int | None] = [config.num_negatives]
    if config.num_negatives_grid is not None:
        if config.method not in methods.drawing():
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


def _job(name: str, run: train.Config, folder: pathlib.Path) -> jobs.Job:
    """Returns the job of a run, with the flags that are not their defaults."""
    defaults = train.Config()
    settings = {
        flag: getattr(run, flag)
        for flag in run.flags()
        if flag != "results_dir" and getattr(run, flag) != getattr(defaults, flag)
    }
    return jobs.Job(
        f"{name} seed {run.seed}",
        "experiments.fedss.train",
        cells.as_arguments(settings),
        folder / name / f"seed{run.seed}",
    )


def _numbers(flag: str, texts: Sequence[str], kind: type) -> list:
    """Reads a list of different numbers above 0, and puts them in order."""
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


def _rows(job: jobs.Job, method: str) -> list[Mapping[str, Any]]:
    path = job.folder / run_files.METRICS
    metrics = run_files.whole_table(files.read_text(path), path, job.is_done)
    return run_files.parse_rows(metrics, method)


def _trial(
    run: train.Config, job: jobs.Job, last: Mapping[str, Any], metric: str
) -> dict[str, Any]:
    """Returns the row of a run: its metric, and the standard error of that.

    The error is that of a proportion p of N images, sqrt(p (1 - p) / N). The mean of
    values between 0 and 1, such as MAP@10, has at most that. It holds no error of other
    seeds.
    """
    draws = methods.METHODS[run.method].draws_negatives
    num_images = run_files.read_json(job.folder / run_files.DATA)["data"]["test images"]
    percent = error = None
    if job.is_done:
        share = last[metric]
        percent = 100 * share
        error = 100 * math.sqrt(share * (1 - share) / num_images)
    return {
        "client_learning_rate": run.client_learning_rate,
        "num_negatives": run_config.with_defaults(run).num_negatives if draws else None,
        f"{metric}_percent": percent,
        "standard_error_percent": error,
        "validation_images": num_images,
        "rounds": last.get("round", 0),
        "outcome": "done" if job.is_done else "diverged",
        "is_taken": False,
    }


def _as_texts(trial: Mapping[str, Any]) -> list[Any]:
    return [
        f"{value:.2f}" if name.endswith("_percent") and value is not None else value
        for name, value in trial.items()
    ]


def _plot(
    folder: pathlib.Path,
    trials: Sequence[Mapping[str, Any]],
    rows: Sequence[Sequence[Mapping[str, Any]]],
    metric: str,
) -> None:
    """Draws the metric by round: a panel for each m, a style for each rate."""
    panels: dict[int | None, list[plots.Series]] = {}
    for trial, found in zip(trials, rows, strict=True):
        series = panels.setdefault(trial["num_negatives"], [])
        label = f"rate {trial['client_learning_rate']:g}"
        label += " (diverged)" * (trial["outcome"] != "done")
        series.append(plots.Series(label, plots.style(len(series)), [found]))
    drawn = [
        plots.panel(
            series,
            *("round", metric, "round", f"{metric} on validation clients (%)"),
            scale=100,
            title="" if m is None else f"m = {m}",
        )
        for m, series in panels.items()
    ]
    plots.write_curves(folder / "tuning.png", drawn)


if __name__ == "__main__":
    program.run(main, Config())
