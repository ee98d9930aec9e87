"""The results of `train` and `compare`: their table and their curves."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.common import plots, table
from experiments.fedss.methods import METHODS
from tff_fedss import metrics, tasks, training


class Outcome(NamedTuple):
    """The result of one run; the fields are the columns of the table.

    In the file, the task's metric is in the name of `percent`: `top1_percent`. Without
    clients (Centralized), the traffic is None.

    Attributes:
        method: The paper's name.
        percent: The metric of the task after the round whose weights are kept.
        classes_percent: The mean |S_k| over all rounds, in percent of n.
        classifier_parameters: Number sent to a client per round, a mean.
        classifier_bytes_down: Bytes per client and round.
        classifier_bytes_up: Bytes per client and round, with the ids of the classes.
        epsilon: Epsilon of user-level differential privacy after the last round.
    """

    method: str
    percent: float
    classes_percent: float | None
    classifier_parameters: float | None
    classifier_bytes_down: float | None
    classifier_bytes_up: float | None
    epsilon: float | None = None

    def known(self) -> dict[str, Any]:
        """Returns the fields by name, without epsilon if there is none."""
        fields = self._asdict()
        if self.epsilon is None:
            del fields["epsilon"]
        return fields


def outcome(
    run: training.Run, rows: Sequence[training.Metrics], share: float
) -> Outcome:
    """Summarizes a finished run.

    Args:
        run: The run.
        rows: The rows from `training.train`, of this run and others.
        share: The metric of the task after the round whose weights are kept.
    """
    own = [row for row in rows if row["method"] == run.name]
    title, percent = METHODS[run.name].title, 100 * share
    sizes = [row["classes_per_client"] for row in own if "classes_per_client" in row]
    if not sizes:
        return Outcome(title, percent, None, None, None, None)
    mean_size = sum(sizes) / len(sizes)
    *phi, (num_classes, embedding_dim) = (np.shape(w) for w in run.weights.trainable)
    if run.protocol.requests == "sampled":
        rows_per_client = None
    else:
        down = np.mean([row["bytes_down"] for row in own if "bytes_down" in row])
        per_row = metrics.classifier_traffic(1, embedding_dim, protocol=run.protocol)
        phi_bytes = metrics.BYTES_PER_PARAMETER * sum(map(math.prod, phi))
        rows_per_client = float((down - phi_bytes) / per_row.bytes_down)
    traffic = metrics.classifier_traffic(
        mean_size,
        embedding_dim,
        protocol=run.protocol,
        rows_per_client=rows_per_client,
    )
    return Outcome(
        title,
        percent,
        100 * mean_size / num_classes,
        traffic.parameters,
        traffic.bytes_down,
        traffic.bytes_up,
        own[-1].get("epsilon"),
    )


def as_csv(outcomes: Sequence[Outcome], metric: str) -> str:
    """Writes outcomes as CSV, a row per method."""
    if all(outcome.epsilon is None for outcome in outcomes):
        rows = [outcome.known() for outcome in outcomes]
    else:
        rows = [outcome._asdict() for outcome in outcomes]
    return table.as_csv(
        {f"{metric}_percent" if k == "percent" else k: v for k, v in row.items()}
        for row in rows
    )


def as_text(
    outcomes: Sequence[Outcome], metric_title: str, num_classes: int, chance: float
) -> str:
    """Writes outcomes as a table for the terminal.

    Args:
        outcomes: The rows.
        metric_title: The title of the task's metric.
        num_classes: n.
        chance: The metric at chance, a share.
    """
    header = ("method", f"{metric_title} %", "|S_k| % of n")
    header += ("parameters", "bytes down", "bytes up")
    formats = ("s", ".1f", ".1f", ",.0f", ",.0f", ",.0f")
    if any(outcome.epsilon is not None for outcome in outcomes):
        header, formats = (*header, "epsilon"), (*formats, ".3g")
    rows = [
        # Without epsilon there is one format fewer than fields.
        ["-" if x is None else format(x, f) for x, f in zip(o, formats, strict=False)]
        for o in outcomes
    ]
    return (
        f"{table.as_text(header, rows)}\n"
        f"{metric_title}: on held-out images, trained on n = {num_classes:,} classes "
        f"(chance: {100 * chance:.2g} %).\n"
        "parameters and bytes: of the classifier, per client and round; means."
    )


def plot(
    rows: Sequence[training.Metrics],
    task: type[tasks.FederatedTask] | tasks.FederatedTask,
    path: pathlib.Path,
) -> None:
    """Draws loss and the task's metric by round, a curve per method.

    Args:
        rows: The rows from `training.train`; without rows nothing is drawn.
        task: The task, or its class.
        path: The PNG; replaced whole or not at all.
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
    chance = None if isinstance(task, type) else 100 * task.chance
    plots.write_curves(
        path,
        [
            plots.panel(
                series,
                "round",
                task.metric,
                "round",
                title,
                scale=100,
                from_zero=True,
                chance=chance,
            ),
            plots.panel(
                series, "round", "loss", "round", "training loss (each method's own)"
            ),
        ],
    )
