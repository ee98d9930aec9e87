"""Training rounds, with evaluations in between, of one run or of several together."""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow_federated as tff

from tff_fedss.tasks import Task
from tff_fedss.training.progress import Progress

Metrics = collections.OrderedDict[str, Any]


class Run(Protocol):
    """One method in training: a `FederatedRun` or a `CentralizedRun`.

    Attributes:
        name: What to call the run in tables and progress lines.
        task: The task.
        round_num: The number of rounds done.
    """

    name: str
    task: Task
    round_num: int

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The model, with trainable = [*phi, W]."""

    def run_round(self) -> Metrics:
        """Runs one round and returns its metrics as Python numbers."""


def train(
    runs: Sequence[Run],
    num_rounds: int,
    rounds_per_evaluation: int,
    release: Callable[[Metrics], None],
) -> None:
    """Trains the runs side by side: round 1 of each, then round 2 of each, and so on.

    Every run is evaluated before its first round, every `rounds_per_evaluation` rounds
    and after its last round.

    Args:
        runs: The runs of one kind of task; each goes on from the round that it is at.
        num_rounds: The round to train up to.
        rounds_per_evaluation: How often to evaluate.
        release: Called with the metrics of each run and round as soon as they are
            there: "method", "round", those of the round with "round_seconds", and those
            of the evaluation with "evaluation_seconds", if one is due.
    """
    task = runs[0].task
    with Progress(
        [run.name for run in runs],
        num_rounds,
        metric=task.metric,
        metric_title=task.metric_title,
    ) as progress:

        def report(run: Run, metrics: Metrics) -> None:
            is_due = run.round_num % rounds_per_evaluation == 0
            if is_due or run.round_num == num_rounds:
                start = time.monotonic()
                metrics.update(run.task.evaluate(run.weights))
                metrics["evaluation_seconds"] = time.monotonic() - start
            progress.update(run.name, run.round_num, metrics)
            release(
                collections.OrderedDict(method=run.name, round=run.round_num, **metrics)
            )

        for run in runs:
            if run.round_num == 0:
                report(run, collections.OrderedDict())
        while any(run.round_num < num_rounds for run in runs):
            for run in runs:
                if run.round_num < num_rounds:
                    start = time.monotonic()
                    metrics = run.run_round()
                    metrics["round_seconds"] = time.monotonic() - start
                    report(run, metrics)
