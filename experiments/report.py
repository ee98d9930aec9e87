"""Tables and pictures of what runs have measured."""

import csv
import io
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")  # No screen is needed, or opened.
import matplotlib.pyplot as plt

from tff_fedss import metrics, tasks, training

# How the paper writes the methods.
METHOD_TITLES = {
    "fedss": "FedSS",
    "neg_only": "NegOnly",
    "pos_only": "PosOnly",
    "fedaws": "FedAwS",
    "full_softmax": "FullSoftmax",
    "centralized": "Centralized",
}


class Outcome(NamedTuple):
    """What came of one run; the fields are the columns of the table.

    In the file, the metric of the task gives `percent` its name: `top1_percent`.

    Where there are no clients (Centralized), there is no traffic: None.

    Attributes:
        method: As the paper writes it.
        percent: The metric of the task after the last round.
        classes_percent: The mean |S_k| over all rounds, in percent of n.
        classifier_parameters: Sent down to a client, and back up, per round; a mean.
        classifier_bytes_down: Per client and round.
        classifier_bytes_up: Per client and round, with the ids of the classes.
    """

    method: str
    percent: float
    classes_percent: float | None
    classifier_parameters: float | None
    classifier_bytes_down: float | None
    classifier_bytes_up: float | None


def outcome(run: training.Run, rows: Sequence[training.Metrics]) -> Outcome:
    """Sums up a finished run.

    Args:
        run: The run.
        rows: What `training.train` released, of this run and of others.
    """
    own = [row for row in rows if row["method"] == run.name]
    title, percent = METHOD_TITLES[run.name], 100 * own[-1][run.task.metric]
    sizes = [row["classes_per_client"] for row in own if "classes_per_client" in row]
    if not sizes:
        return Outcome(title, percent, None, None, None, None)
    mean_size = sum(sizes) / len(sizes)
    num_classes, embedding_dim = run.weights.trainable[-1].shape
    traffic = metrics.classifier_traffic(
        mean_size, embedding_dim, asks_by_id=run.name != "full_softmax"
    )
    return Outcome(
        title,
        percent,
        100 * mean_size / num_classes,
        traffic.parameters,
        traffic.bytes_down,
        traffic.bytes_up,
    )


def as_csv(outcomes: Sequence[Outcome], metric: str) -> str:
    """Writes outcomes as CSV, a row per method.

    Args:
        outcomes: The rows.
        metric: The metric of the task.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        f"{metric}_percent" if name == "percent" else name for name in Outcome._fields
    )
    writer.writerows(outcomes)
    return text.getvalue()


def as_text(
    outcomes: Sequence[Outcome], metric_title: str, num_classes: int, chance: float
) -> str:
    """Writes outcomes as a table for the terminal.

    Args:
        outcomes: The rows.
        metric_title: How to write the metric of the task.
        num_classes: n.
        chance: What guessing would reach, a share.
    """
    header = (
        "method",
        f"{metric_title} %",
        "|S_k| % of n",
        "parameters",
        "bytes down",
        "bytes up",
    )
    cells = [
        header,
        *(
            (
                o.method,
                _number(o.percent, ".1f"),
                _number(o.classes_percent, ".1f"),
                _number(o.classifier_parameters, ",.0f"),
                _number(o.classifier_bytes_down, ",.0f"),
                _number(o.classifier_bytes_up, ",.0f"),
            )
            for o in outcomes
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    rule = "-" * len(lines[0])
    caption = (
        f"{metric_title}: on held-out images, trained on n = {num_classes:,} classes "
        f"(chance: {100 * chance:.2g} %).\n"
        "parameters and bytes: of the classifier, per client and round; means."
    )
    return "\n".join([rule, lines[0], rule, *lines[1:], rule, caption])


def _number(value: float | None, format_spec: str) -> str:
    return "-" if value is None else format(value, format_spec)


def plot_learning_curves(
    rows: Sequence[training.Metrics],
    task: type[tasks.Task] | tasks.Task,
    path: pathlib.Path,
) -> None:
    """Draws loss and the task's metric by round, a colour per method, as a PNG.

    Args:
        rows: What `training.train` released; nothing is drawn of nothing.
        task: The task, or its class.
        path: The file; replaced whole or not at all.
    """
    if not rows:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        losses = [(row["round"], row["loss"]) for row in own if "loss" in row]
        measured = [
            (row["round"], 100 * row[task.metric]) for row in own if task.metric in row
        ]
        for axes, points, marker in ((left, measured, "o"), (right, losses, "")):
            if points:
                axes.plot(
                    *zip(*points, strict=True), marker=marker, label=METHOD_TITLES[name]
                )
    left.set(xlabel="round", ylabel=f"{task.metric_title} on held-out images (%)")
    left.set_ylim(bottom=0)
    right.set(xlabel="round", ylabel="training loss (each method's own)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", dpi=120)
    plt.close(figure)
    os.replace(temporary, path)
