"""What the programs have in common that train one thing, centrally.

These are rf_softmax, partial_fc, leap and moco: where a run is kept, its seed, and its
way from there to a finished folder.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from experiments.common import output_files, program
from tff_fedss import training
from tff_fedss.errors import InvalidInputError

RESULTS_DIR = flags.DEFINE_string(
    "results_dir",
    None,
    "The folder for what the run leaves behind. A run that was stopped or killed goes "
    "on when it is given the same folder and flags again.",
)
SEED = flags.DEFINE_integer(
    "seed",
    0,
    "Decides every random draw: same seed, same results.",
    lower_bound=0,
    upper_bound=2**31 - 2,
)


_FREE = frozenset({"results_dir", "rounds_per_checkpoint", "epochs_per_checkpoint"})


def set_defaults(open_flags: Iterable[flags.FlagHolder], settings: Any) -> None:
    """Gives flags that were left open the values that suit the task.

    Args:
        open_flags: The flags.
        settings: With an attribute of the name of each.
    """
    for flag in open_flags:
        if flag.value is None:
            flags.set_default(flag, getattr(settings, flag.name))


def open_folder(
    groups: Mapping[str, Sequence[str]],
    columns: Sequence[str],
    examples: str = "images",
    free: Collection[str] = (),
) -> training.ResultsFolder | None:
    """Opens the folder of --results_dir.

    Args:
        groups: The names of the program's flags, by topic. They decide results: a
            folder with others is refused.
        columns: Of metrics.csv, after `method` and `round`.
        examples: What a mini-batch consists of.
        free: Flags that decide nothing, besides where and how often to save.

    Returns:
        The folder; None if its run is done, which is then printed.

    Raises:
        InvalidInputError: If --results_dir is missing or belongs to another run.
    """
    if not RESULTS_DIR.value:
        raise InvalidInputError("--results_dir=DIR is needed, for what the run leaves.")
    names = [name for group in groups.values() for name in group]
    folder = training.ResultsFolder(
        RESULTS_DIR.value,
        program.as_texts(
            flags.FLAGS[name] for name in names if name not in {*_FREE, *free}
        ),
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
    checkpoints: type[training.Checkpoints] = training.Checkpoints,
    unit: str = "round",
    examples: str = "images",
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Trains from where an earlier process has left off, or from the start.

    Args:
        run: What to train.
        folder: Not opened yet.
        rounds: How many rounds in all.
        rounds_per_evaluation: How often to measure.
        rounds_per_checkpoint: How often to save.
        plot: Draws what has been measured, also if training is stopped.
        checkpoints: The kind that suits the run.
        unit: What a round is called.
        examples: What a mini-batch consists of.
        inputs: Fingerprints of what the run reads beside its data.
    """
    folder.open({"data": run.task.fingerprint(), **(inputs or {})})
    try:
        places = folder.resume([run], checkpoints, unit)
        with output_files.drawing_afterwards(plot):
            training.train(
                [run],
                rounds,
                rounds_per_evaluation,
                folder.release,
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
