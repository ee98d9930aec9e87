"""A central run: flags, data, task, algorithm, rounds, result.

The common part of the programs without clients: rf_softmax, partial_fc, leap, moco and
`fedss.pretrain`.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.common import config, plots
from tff_fedss import training
from tff_fedss.errors import InvalidInputError

_TOPIC = "The run"


def results_dir() -> Any:
    """Declares --results_dir."""
    return config.flag(
        None,
        "The folder of the run's results. The same folder and flags resume a run "
        "that was stopped or killed.",
        group=_TOPIC,
        decides=False,
        needed="DIR is needed, for the run's results.",
    )


def seed(high: int = 2**31 - 2) -> Any:
    """Declares --seed, up to a largest one."""
    return config.flag(
        0,
        "Decides every random draw: same seed, same results.",
        group=_TOPIC,
        low=0,
        high=high,
    )


def checkpoints(default: int) -> Any:
    """Declares --rounds_per_checkpoint or --epochs_per_checkpoint."""
    return config.flag(
        default,
        "How often to save the state from which a killed run resumes.",
        low=1,
        decides=False,
    )


def by_dataset(settings: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Writes a flag's defaults for its help, from settings by data set and flag."""
    values = [f"{key} {own[name]}" for key, own in settings.items() if name in own]
    return f" Default: {', '.join(values)}."


def check_image_size(asked: config.Config, flag: str) -> None:
    """Refuses images that are too small for the network of a flag."""
    network = getattr(asked, flag)
    if network.startswith(("mobilenet", "resnet")) and asked.image_size < 32:
        raise InvalidInputError(
            f"--{flag}={network} needs --image_size of at least 32, found "
            f"{asked.image_size}."
        )


def run(
    asked: config.Config,
    columns: Sequence[str],
    build: Callable[[Any], training.Run],
    finish: Callable[[Any, training.Run, training.ResultsFolder], str],
    *,
    results: Sequence[str],
    unit: str = "round",
    examples: str = "images",
    curves: Sequence[str] = ("loss",),
    inputs: Callable[[Any], Mapping[str, Mapping[str, Any]]] = lambda asked: {},
    watch: Callable[[training.Metrics], None] | None = None,
) -> None:
    """Trains to the end, from the start or from where an earlier process has stopped.

    Args:
        asked: The flags: results_dir, rounds, rounds_per_evaluation (None: at the start
            and the end only) and rounds_per_checkpoint, or those of another unit.
        columns: Columns of metrics.csv, after `method` and `round`.
        build: Loads the data and builds the run of the flags, unless it is done.
        finish: Writes the weights; returns the result in a line.
        results: The columns whose last values are the result, if measured.
        unit: The word for a round, also in the flags.
        curves: The columns that curves.png shows besides the metric.
        inputs: Returns fingerprints of further inputs of the run.
        watch: Called with each round's metrics after they are written.

    Raises:
        InvalidInputError: If the folder belongs to another run.
    """
    folder = training.ResultsFolder(
        asked.results_dir, asked.deciding(), columns, examples
    )
    if (summary := folder.summary("text")) is not None:
        print(summary)
        return
    trained = build(asked)
    print(trained.task.summary, flush=True)
    rounds, every, saved_every = (
        getattr(asked, f"{unit}s{what}")
        for what in ("", "_per_evaluation", "_per_checkpoint")
    )

    def release(metrics: training.Metrics, speed: training.Metrics) -> None:
        folder.release(metrics, speed)
        if watch is not None:
            watch(metrics)

    folder.open({"data": trained.task.fingerprint(), **inputs(asked)})
    with contextlib.closing(folder):
        starts = folder.resume([trained], unit)
        with plots.drawing_afterwards(lambda: _plot(folder, trained, curves)):
            training.train(
                [trained],
                rounds,
                every or max(rounds, 1),
                release,
                starts,
                saved_every,
                unit=unit,
                examples=examples,
            )
        text = f"{trained.name}: {finish(asked, trained, folder)}"
        last = folder.rows[-1]
        values = {name: last[name] for name in results if name in last}
        folder.finish({"text": text, "metric": trained.task.metric, **values})
    print(f"{text}\nWritten to {folder.path}/")


def _plot(
    folder: training.ResultsFolder, trained: training.Run, curves: Sequence[str]
) -> None:
    """Draws the metric and other columns by step, if there are two points."""
    if len(folder.rows) < 2:
        return
    series = [plots.Series("", plots.style(0), [folder.rows])]
    titles = {trained.task.metric: trained.task.metric_title}
    titles |= {column: column.replace("_", " ") for column in curves}
    plots.write_curves(
        folder.path / "curves.png",
        [plots.panel(series, "steps", *shown) for shown in titles.items()],
    )
