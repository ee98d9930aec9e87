"""The results of `train` and `compare`: table, curves, and what a run says at its end.

An outcome is the result of one run by column of the table. Without clients
(Centralized), what is sent is None.
"""

import math
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.common import plots, table
from experiments.fedss.methods import METHODS
from experiments.fedss.run_config import RunConfig
from tff_fedss import metrics, models, tasks, training

# The columns of the table: title and format in the terminal. Those of the classifier
# are per client and round.
_COLUMNS = {
    "method": ("method", "s"),
    "percent": ("%", ".1f"),  # The task's metric of the round that is kept.
    "classes_percent": ("|S_k| % of n", ".1f"),  # A mean over all rounds.
    "classifier_parameters": ("parameters", ",.0f"),
    "classifier_bytes_down": ("bytes down", ",.0f"),
    "classifier_bytes_up": ("bytes up", ",.0f"),  # With the ids of the classes.
    "epsilon": ("epsilon", ".3g"),  # After the last round, with --dp alone.
}
# Growth of W's rows, and of the loss, that shows too long steps.
_LONG_ROWS, _RISEN_LOSS = 2.0, 1.05
_FEWER, _MORE = 10, 2  # To try next: a tenth of the rate, twice the rounds.


def outcome(
    run: training.Run, rows: Sequence[training.Metrics], share: float
) -> dict[str, Any]:
    """Summarizes a finished run, by its rows of metrics.csv.

    `share` is the metric of the task after the round whose weights are kept.
    """
    sent = ("classes_percent", *(name for name in _COLUMNS if "classifier" in name))
    found = {"method": METHODS[run.name].title, "percent": 100 * share}
    found |= dict.fromkeys(sent)
    sizes = [row["classes_per_client"] for row in rows if "classes_per_client" in row]
    if not sizes:
        return found
    mean_size = sum(sizes) / len(sizes)
    *phi, (num_classes, embedding_dim) = (np.shape(w) for w in run.weights.trainable)
    rows_per_client = None
    if run.protocol.requests != "sampled":
        down = np.mean([row["bytes_down"] for row in rows if "bytes_down" in row])
        per_row = metrics.classifier_traffic(1, embedding_dim, protocol=run.protocol)
        phi_bytes = metrics.BYTES_PER_PARAMETER * sum(map(math.prod, phi))
        rows_per_client = float((down - phi_bytes) / per_row.bytes_down)
    traffic = metrics.classifier_traffic(
        mean_size, embedding_dim, protocol=run.protocol, rows_per_client=rows_per_client
    )
    percent = 100 * mean_size / num_classes
    numbers = (percent, traffic.parameters, traffic.bytes_down, traffic.bytes_up)
    found |= zip(sent, numbers, strict=True)
    if rows[-1].get("epsilon") is not None:
        found["epsilon"] = rows[-1]["epsilon"]
    return found


def _columns(outcomes: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in _COLUMNS if any(name in found for found in outcomes)]


def as_csv(outcomes: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Writes outcomes as CSV, a row per method.

    The task's metric is in the name of `percent`: `top1_percent`.
    """
    rows = pd.DataFrame(outcomes, columns=_columns(outcomes), dtype=object)
    return rows.rename(columns={"percent": f"{metric}_percent"}).to_csv(index=False)


def as_text(
    outcomes: Sequence[Mapping[str, Any]],
    metric_title: str,
    num_classes: int,
    chance: float,
) -> str:
    """Writes outcomes as a table for the terminal, with n and the metric's chance."""
    columns = {name: _COLUMNS[name] for name in _columns(outcomes)}
    columns["percent"] = (f"{metric_title} %", ".1f")
    rows = [
        [
            "-" if found.get(name) is None else format(found[name], form)
            for name, (_, form) in columns.items()
        ]
        for found in outcomes
    ]
    return (
        f"{table.as_text([title for title, _ in columns.values()], rows)}\n"
        f"{metric_title}: on held-out images, trained on n = {num_classes:,} classes "
        f"(chance: {100 * chance:.2g} %).\n"
        "parameters and bytes: of the classifier, per client and round; means."
    )


def plot(
    rows: Sequence[training.Metrics],
    task: tasks.FederatedTask,
    path: pathlib.Path,
) -> None:
    """Draws loss and the task's metric by round, a curve per method.

    Without rows nothing is drawn.
    """
    methods = dict.fromkeys(row["method"] for row in rows)
    series = [
        plots.Series(
            METHODS[method].title,
            METHODS[method].style,
            [[row for row in rows if row["method"] == method]],
        )
        for method in methods
    ]
    title = f"{task.metric_title} on held-out images (%)"
    options = {"scale": 100, "from_zero": True, "chance": 100 * task.chance}
    measured = plots.panel(series, "round", task.metric, title, **options)
    loss = plots.panel(series, "round", "loss", "training loss (each method's own)")
    plots.write_curves(path, [measured, loss])


def summary(
    run: training.Run,
    rows: Sequence[training.Metrics],
    kept: training.Metrics | None = None,
) -> str:
    """Describes a finished run's metric before, during and after training, in one line.

    Its rows are those from round 0 on; `kept` is the row of the round that is kept,
    None: the last one.
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

    One evaluation is not enough: many runs start with a collapse, and recover. Of the
    rows so far the last one is the newest.
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
    flag, rate = "client_learning_rate", config.learning_rate(run.name) / _FEWER
    value = f"{rate:g}"
    losses = [row["loss"] for row in rows if "loss" in row]
    tenth = math.ceil(len(losses) / 10)
    before, after = np.mean(losses[:tenth]), np.mean(losses[-tenth:])
    norms = np.linalg.norm(np.asarray(run.weights.trainable[-1]), axis=1)
    start = config.initial_norm
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
            f"the rate is too high: the rows of W are {norms.mean() / start:.1f} times "
            "as long as before training"
        )
    elif values[-1] == max(values) > values[0]:
        cause = (
            f"too few rounds: {task.metric_title} is still rising, from "
            f"{task.format_metric(min(values))} to {task.format_metric(values[-1])}"
        )
        flag = "rounds" if run.round_num == config.rounds else "patience"
        value = str(_MORE * getattr(config, flag))
    else:
        cause = (
            f"the rate may be too high: the loss went from {before:.3g} to "
            f"{after:.3g}, and phi is worse than before"
        )
    what = "ended below its start" if is_below else "learned hardly anything"
    program = "compare" if "methods" in config.flags() else "train"
    folder = config.results_dir.rstrip("/")
    command = [
        *("./run.sh", program, f"--flagfile={folder}/flags.txt", f"--{flag}={value}"),
        f"--results_dir={folder}_{flag.removeprefix('client_')}_{value}",
    ]
    title = METHODS[run.name].title
    return f"{title} {what}; {cause}. Try:\n  {shlex.join(command)}"
