"""What the programs have in common that train one thing, centrally.

These are rf_softmax, partial_fc, leap and moco: where a run is kept, its seed, and its
way from there to a finished folder.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.common import config, output_files
from tff_fedss import training

_TOPIC = "The run"


def results_dir() -> Any:
    """Declares --results_dir."""
    return config.flag(
        None,
        "The folder for what the run leaves behind. A run that was stopped or killed "
        "goes on when it is given the same folder and flags again.",
        group=_TOPIC,
        decides=False,
        needed="DIR is needed, for what the run leaves.",
    )


def seed(high: int = 2**31 - 2, marks: tuple[str, ...] = ()) -> Any:
    """Declares --seed.

    Args:
        high: The largest.
        marks: See `config.flag`.
    """
    return config.flag(
        0,
        "Decides every random draw: same seed, same results.",
        group=_TOPIC,
        low=0,
        high=high,
        marks=marks,
    )


def open_folder(
    config: config.Config,
    columns: Sequence[str],
    examples: str = "images",
) -> training.ResultsFolder | None:
    """Opens the folder of --results_dir.

    Args:
        config: What the user asks for, --results_dir included. A folder with other
            values of the flags that decide results is refused.
        columns: Of metrics.csv, after `method` and `round`.
        examples: What a mini-batch consists of.

    Returns:
        The folder; None if its run is done, which is then printed.

    Raises:
        InvalidInputError: If the folder belongs to another run.
    """
    folder = training.ResultsFolder(
        config.results_dir,
        config.deciding(),
        {
            "metrics.csv": ("method", "round", *columns),
            "speed.csv": (
                "method",
                "round",
                "round_seconds",
                f"{examples}_per_second",
                "evaluation_seconds",
            ),
        },
    )
    if (told := folder.told("text")) is not None:
        print(told)
        return None
    return folder


def train(
    run: training.Run,
    folder: training.ResultsFolder,
    *,
    rounds: int,
    rounds_per_evaluation: int,
    rounds_per_checkpoint: int,
    plot: Callable[[], None],
    unit: str = "round",
    examples: str = "images",
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
    watch: Callable[[training.Metrics], None] | None = None,
) -> None:
    """Trains from where an earlier process has left off, or from the start.

    Args:
        run: What to train.
        folder: Not opened yet.
        rounds: How many rounds in all.
        rounds_per_evaluation: How often to measure.
        rounds_per_checkpoint: How often to save.
        plot: Draws what has been measured, also if training is stopped.
        unit: What a round is called.
        examples: What a mini-batch consists of.
        inputs: Fingerprints of what the run reads beside its data.
        watch: Called with what each round has measured, once that is written.
    """

    def release(metrics: training.Metrics, speed: training.Metrics) -> None:
        folder.release(metrics, speed)
        if watch is not None:
            watch(metrics)

    folder.open({"data": run.task.fingerprint(), **(inputs or {})})
    try:
        places = folder.resume([run], unit)
        with output_files.drawing_afterwards(plot):
            training.train(
                [run],
                rounds,
                rounds_per_evaluation,
                release,
                places,
                rounds_per_checkpoint,
                unit=unit,
                examples=examples,
            )
    except BaseException:
        folder.close()
        raise


def finish(
    folder: training.ResultsFolder,
    metric: str,
    text: str,
    values: Mapping[str, float],
) -> None:
    """Records the result and prints it.

    Args:
        folder: Of the run.
        metric: The one by which runs are compared.
        text: The result in a line.
        values: By metric.
    """
    folder.finish({"text": text, "metric": metric, **values})
    print(f"{text}\nWritten to {folder.path}/")
