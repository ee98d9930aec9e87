"""Searches the learning rate of the clients, and m, on validation clients.

    ./run.sh tune --dataset=omniglot --data_dir=DIR --results_dir=results/tuned
    ./run.sh train --flagfile=results/tuned/tuned.flags --dataset=omniglot ...

Some of the clients are kept apart. Each learning rate (with each m of
--num_negatives_grid, if that is given) has a short run on the other clients, several
runs side by side, and is measured on the images of those apart. Nothing looks at the
test. The other flags are those of `./run.sh train`, and every run is one: it goes on
after a kill when the same command is given again.

The results folder gets tuning.md and tuning.csv (what each run came to, what would be
taken, and why), tuning.png with its PDF, and tuned.flags, for `train --flagfile`. A run
that diverges counts as one, and stops no other.
"""

import dataclasses
import math
import pathlib
import sys
from collections.abc import Sequence

from experiments.common import cells, config, jobs, program
from experiments.fedss import methods, run_config, train, tuning_report
from tff_fedss import training
from tff_fedss.errors import InvalidInputError, RunStoppedError

_PROGRAM = "experiments.fedss.train"
_TOPIC = "The search"
# Given to each run by the search itself.
_SEARCHED = frozenset({"client_learning_rate", "on_validation"})
_OF_THE_SEARCH = frozenset({"results_dir", "warm_start_cache", "seed"})
# A data set's own rounds by this: what a run of the search has.
_SHORTER = 4
_DIVERGED = "has diverged in round"


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """What a user asks for."""

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
        """Those of `train`, without what is searched."""
        return {k: v for k, v in super().flags().items() if k not in _SEARCHED}


def main(config: Config) -> None:
    """Runs what is missing, and says what it would take."""
    folder = pathlib.Path(config.results_dir)
    grid = _jobs(config, folder)
    try:
        jobs.run_all(
            [job for job in grid if not _has_diverged(job)],
            num_workers=config.jobs,
            gpus=config.gpus,
            more_settings=(
                {"warm_start_cache": config.warm_start_cache}
                if config.warm_start_cache is not None
                else {}
            ),
        )
    finally:
        print(jobs.status(grid), flush=True)
    open_ = [job for job in grid if not job.is_done and not _has_diverged(job)]
    for job in open_:
        print(f"FAILED: {job.name} ({job.log}): {job.why_failed()}", file=sys.stderr)
    trials = [_trial(job) for job in grid if job not in open_]
    if trials:
        search = tuning_report.Search(trials, config.num_negatives_grid is not None)
        print(search.write(folder, ["./run.sh", "tune", *sys.argv[1:]], len(open_)))
        print(f"Written to {folder}/")
    if open_:
        raise RunStoppedError(
            f"{len(open_)} of {len(grid)} runs have failed, and not by diverging, so "
            "that nothing is chosen; the same command tries them again."
        )
    if search.best is None:
        raise RunStoppedError(
            "all runs have diverged: give smaller --client_learning_rates."
        )


def _jobs(config: Config, folder: pathlib.Path) -> list[jobs.Job]:
    """The runs of the grid.

    Raises:
        InvalidInputError: If the flags do not go with each other or with the data set,
            or the folder holds other runs. Nothing is written then.
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
    given = {
        name: getattr(config, name)
        for name in train.Config.flags()
        if name not in _SEARCHED
    }
    common = train.Config(**given, on_validation=True)
    if common.rounds is None:
        rounds = run_config.with_defaults(common).rounds
        common = dataclasses.replace(common, rounds=max(1, rounds // _SHORTER))
    found = {}
    for m in sizes:
        for rate in rates:
            name = f"rate_{rate}" if len(sizes) == 1 else f"m{m}_rate_{rate}"
            found[name] = dataclasses.replace(
                common,
                client_learning_rate=rate,
                num_negatives=m,
                results_dir=str(folder / name / f"seed{common.seed}"),
            )
    for run in found.values():
        # It must be this run, if there is one: with all its flags.
        flags = run_config.with_defaults(run).deciding()
        training.ResultsFolder(run.results_dir, flags)
    table = cells.table(
        "Tuning",
        _PROGRAM,
        [cells.Cell(name, _settings(run), name) for name, run in found.items()],
        results="tuned",
        seeds=(common.seed,),
    )
    return [
        jobs.Job(
            table,
            cell,
            cells.as_arguments(cell.settings),
            common.seed,
            pathlib.Path(found[name].results_dir),
            common.rounds,
        )
        for name, cell in table.cells.items()
    ]


def _settings(run: train.Config) -> dict[str, object]:
    """The flags of a run that are not their defaults, but for the search's own."""
    defaults = train.Config()
    return {
        name: getattr(run, name)
        for name in run.flags()
        if name not in _OF_THE_SEARCH and getattr(run, name) != getattr(defaults, name)
    }


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
    """Whether the last thing that was heard of a run is that it has diverged."""
    return not job.is_done and _DIVERGED in job.why_failed()


def _trial(job: jobs.Job) -> tuning_report.Trial:
    return tuning_report.Trial(
        jobs.read(job),
        None if job.is_done else job.why_failed().removeprefix("error: "),
    )


if __name__ == "__main__":
    program.run(main, Config())
