"""The last lines of a run: the effect of training, and the cause of a failure."""

import math
import shlex
from collections.abc import Sequence

import numpy as np

from experiments.fedss.methods import METHODS
from experiments.fedss.run_config import RunConfig
from tff_fedss import models, tasks, training

# Growth of W's rows that shows too long steps.
_LONG_ROWS = 2.0
_RISEN_LOSS = 1.05
_FEWER, _MORE = 10, 2  # Next: a tenth of the rate, twice the rounds.


def summary(
    run: training.Run,
    rows: Sequence[training.Metrics],
    kept: training.Metrics | None = None,
) -> str:
    """Describes a run's metric before, during and after training, in one line.

    Args:
        run: The finished run.
        rows: Its rows, from round 0 on.
        kept: The row of the round that is kept; None: the last one.
    """
    metric = run.task.metric
    measured = [row for row in rows if metric in row]
    first, last = measured[0], measured[-1]
    best = max(measured, key=lambda row: row[metric])

    def value(row: training.Metrics) -> str:
        return run.task.format_metric(row[metric])

    text = (
        f"{METHODS[run.name].title}: {run.task.metric_title} {value(first)} before "
        f"training, {value(last)} after {last['round']:,} rounds, best {value(best)} "
        f"at round {best['round']:,}"
    )
    if kept is not None:
        text += f"; kept: round {kept['round']:,} ({value(kept)}), best for validation"
    return text + "."


def has_collapsed(task: tasks.FederatedTask, row: training.Metrics) -> bool:
    """Returns whether the row has an evaluation that found phi collapsed."""
    return row["round"] > 0 and "mean_cosine" in row and task.has_collapsed(row)


def warning(
    task: tasks.FederatedTask, rows: Sequence[training.Metrics], method: str
) -> str | None:
    """Warns during training of a method that has just collapsed a second time.

    One evaluation is not enough: many runs start with a collapse, and recover.

    Args:
        task: The task.
        rows: The rows so far; the last one is the newest.
        method: The method.
    """
    own = [r for r in rows if r["method"] == method and task.metric in r]
    is_due = rows[-1] is own[-1]
    collapsed = [has_collapsed(task, row) for row in own[-3:]]
    if not is_due or collapsed != [False, True, True]:
        return None
    last = own[-1]
    return (
        f"{METHODS[method].title}: measured twice in a row, phi has collapsed (mean "
        f"cosine {last['mean_cosine']:.3f} at round {last['round']}). If that stays "
        "so, a smaller --client_learning_rate helps."
    )


def diagnosis(
    config: RunConfig, run: training.Run, rows: Sequence[training.Metrics]
) -> str | None:
    """Describes the failure of a run that training made worse, or that has collapsed.

    Args:
        config: Its flags, none unset.
        run: The finished run.
        rows: Its rows, from round 0 on.

    Returns:
        The failure, its likely cause by the run's numbers, and a command to try. None
        without a failure.
    """
    task, metric = run.task, run.task.metric
    first, *trained = (row for row in rows if metric in row)
    last = trained[-1]
    is_below = last[metric] < first[metric]
    is_collapsed = has_collapsed(task, last)
    if not is_below and not is_collapsed:
        return None
    flags = {"client_learning_rate": f"{config.learning_rate(run.name) / _FEWER:g}"}
    losses = [row["loss"] for row in rows if "loss" in row]
    tenth = math.ceil(len(losses) / 10)
    before, after = np.mean(losses[:tenth]), np.mean(losses[-tenth:])
    norms = np.linalg.norm(np.asarray(run.weights.trainable[-1]), axis=1)
    start = config.initial_norm or models.INITIAL_NORM
    growth = norms.mean() / start
    # Initially short rows are expected to grow.
    is_long = norms.mean() > _LONG_ROWS * max(start, models.INITIAL_NORM)
    values = [row[metric] for row in trained]
    if is_collapsed:
        cause = (
            f"phi has collapsed: the mean cosine of two images is "
            f"{last['mean_cosine']:.3f} ({first['mean_cosine']:.3f} before training)"
        )
    elif after > _RISEN_LOSS * before:
        cause = f"the rate is too high: the loss rose from {before:.3g} to {after:.3g}"
    elif is_long:
        cause = (
            f"the rate is too high: the rows of W are {growth:.1f} times as long as "
            "before training"
        )
    elif values[-1] == max(values) > values[0]:
        cause = (
            f"too few rounds: {task.metric_title} is still rising, from "
            f"{task.format_metric(min(values))} to {task.format_metric(values[-1])}"
        )
        flags = {"rounds": f"{_MORE * config.rounds}"}
    else:
        cause = (
            f"the rate may be too high: the loss went from {before:.3g} to "
            f"{after:.3g}, and phi is worse than before"
        )
    what = "ended below its start" if is_below else "learned hardly anything"
    title, command = METHODS[run.name].title, _command(config, flags)
    return f"{title} {what}; {cause}. Try:\n  {command}"


def _command(config: RunConfig, flags: dict[str, str]) -> str:
    """Returns the command of the same run with other flags."""
    program = "compare" if "methods" in config.flags() else "train"
    folder = config.results_dir.rstrip("/")
    name = "_".join(f"{k.removeprefix('client_')}_{v}" for k, v in flags.items())
    return shlex.join(
        [
            "./run.sh",
            program,
            f"--flagfile={folder}/flags.txt",
            *(f"--{name}={value}" for name, value in flags.items()),
            f"--results_dir={folder}_{name}",
        ]
    )
