"""Training rounds of one run or several, with evaluations in between."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss import stopping
from tff_fedss.errors import RunStoppedError
from tff_fedss.training.checkpoints import Checkpoints
from tff_fedss.training.progress import Progress
from tff_fedss.training.run import Metrics, Run

# The number of rounds in a row without an accepted client that ends a run.
_MAX_LOST_ROUNDS = 3


def train(
    runs: Sequence[Run],
    num_rounds: int,
    rounds_per_evaluation: int,
    release: Callable[[Metrics, Metrics], None],
    checkpoints: Mapping[str, Checkpoints] | None = None,
    rounds_per_checkpoint: int = 25,
    measures_train: bool = False,
    examples: str = "images",
    unit: str = "round",
    validate: Callable[[Any], Mapping[str, float]] = lambda weights: {},
    is_over: Callable[[Run], bool] = lambda run: False,
) -> None:
    """Trains the runs side by side: round 1 of each, then round 2 of each, and so on.

    Every run is evaluated before its first round, every `rounds_per_evaluation` rounds
    and after round `num_rounds`.

    Args:
        runs: The runs of one kind of task; each continues from its `round_num`.
        release: Called for each run and round as soon as it is done, with two rows: its
            metrics ("method", "round", the metrics of the round, and those of its
            evaluation if it has one), which are the same in every repetition of the
            run, and its speed ("method", "round", "round_seconds", "images_per_second",
            "evaluation_seconds"), which is not.
        checkpoints: Where the state of each run is saved, by its name: every
            `rounds_per_checkpoint` rounds, after the last one, and when training ends
            early between two rounds; the first Ctrl-C or SIGTERM waits for the end of
            the round. An error or a second Ctrl-C, within a round or an evaluation,
            costs a `FederatedRun` that round, and other runs the rounds since their
            last checkpoint. A round's release comes before its checkpoint.
        measures_train: Whether the evaluation after round `num_rounds` also has
            "train_top1".
        examples: The word for examples, in the name of the speed.
        unit: The word for a round, in the progress.
        validate: Measures weights at each evaluation; its values are in the same row.
        is_over: Whether a run ends before its last round; called after every round.

    Raises:
        RunStoppedError: If a run has diverged, see `DivergenceGuard`; or from
            `release` and `checkpoints`.
    """
    task = runs[0].task
    checkpoints = checkpoints or {}
    guards = {run.name: DivergenceGuard(run.name, num_rounds, unit) for run in runs}
    # For each run, its last released round that is worth saving and not saved yet.
    unsaved: dict[str, tuple[Callable[[], Any], int]] = {}

    def save(run: Run) -> None:
        if run.name in checkpoints and run.name in unsaved:
            read_state, round_num = unsaved[run.name]
            state = read_state()
            if state is not None:
                guards[run.name].check_weights(round_num, state)
                checkpoints[run.name].save(state, round_num)
            del unsaved[run.name]

    with (
        Progress(
            {run.name: run.round_num for run in runs},
            num_rounds,
            unit,
            metric=task.metric,
            metric_title=task.metric_title,
            format_metric=task.format_metric,
        ) as progress,
        stopping.deferred(unit),
    ):

        def report(run: Run, metrics: Metrics, speed: Metrics) -> None:
            is_last = run.round_num == num_rounds
            if run.round_num % rounds_per_evaluation == 0 or is_last:
                start = time.monotonic()
                weights = run.weights
                guards[run.name].check_weights(run.round_num, weights)
                metrics.update(run.task.evaluate(weights))
                metrics.update(run.measure())
                metrics.update(validate(weights))
                if measures_train and is_last:
                    metrics["train_top1"] = run.task.train_top1(weights)
                speed["evaluation_seconds"] = time.monotonic() - start
                guards[run.name].check_metrics(run.round_num, metrics)
            progress.update(run.name, run.round_num, metrics)
            which = {"method": run.name, "round": run.round_num}
            release(Metrics(**which, **metrics), Metrics(**which, **speed))

        def do_round(run: Run) -> None:
            start = time.monotonic()
            metrics = run.run_round()
            seconds = time.monotonic() - start
            is_trained = guards[run.name].check_round(run.round_num, metrics)
            rate = metrics["num_examples"] / seconds
            speed = Metrics({"round_seconds": seconds, f"{examples}_per_second": rate})
            report(run, metrics, speed)
            # A round that accepted no update is not worth saving.
            if is_trained:
                unsaved[run.name] = run.state_reader(), run.round_num
            if run.round_num % rounds_per_checkpoint == 0:
                save(run)

        def is_due(run: Run) -> bool:
            return run.round_num < num_rounds and not is_over(run)

        for run in runs:
            if run.round_num == 0:
                report(run, Metrics(), Metrics())
        try:
            while due := [run for run in runs if is_due(run)]:
                for run in due:
                    do_round(run)
                    stopping.stop_if_asked()
        finally:
            # A round whose metrics are lost is not saved, so that it is repeated. If
            # one run cannot be saved, the others still are.
            with contextlib.ExitStack() as stack:
                for run in reversed(runs):
                    stack.callback(save, run)


class DivergenceGuard:
    """Stops a run when it has diverged."""

    def __init__(self, name: str, num_rounds: int, unit: str = "round"):
        self._name = name
        self._num_rounds = num_rounds
        self._unit = unit
        self._num_lost = 0

    def check_round(self, round_num: int, metrics: Mapping[str, Any]) -> bool:
        """Checks a completed round; returns whether an update was accepted.

        With `rejected_clients` but no `loss`, all updates of the cohort were rejected,
        because they were not finite. Raises RunStoppedError if the loss is not finite,
        or too many rounds in a row, with this one, accepted no client.
        """
        if "loss" in metrics and not math.isfinite(metrics["loss"]):
            self._stop(round_num, f"its loss is {metrics['loss']}")
        if "loss" in metrics or not metrics.get("rejected_clients"):
            self._num_lost = 0
            return True
        self._num_lost += 1
        if self._num_lost >= min(_MAX_LOST_ROUNDS, self._num_rounds):
            self._stop(
                round_num,
                f"for {self._num_lost} {self._unit}s in a row no client's update was "
                "finite, and all were rejected",
            )
        return False

    def check_weights(self, round_num: int, weights: Any) -> None:
        """Raises RunStoppedError if a weight is not finite, before it is used or saved.

        A `models.ShardedMatrix` is skipped, and so are scalars, which are not
        weights and may be infinite, such as the easiness without a pace.
        """
        if not all(map(_is_finite, tf.nest.flatten(weights))):
            self._stop(round_num, "a weight is not finite")

    def check_metrics(self, round_num: int, metrics: Mapping[str, Any]) -> None:
        """Raises RunStoppedError if a metric of an evaluation is not finite."""
        for name, value in metrics.items():
            if isinstance(value, float) and not math.isfinite(value):
                self._stop(round_num, f"{name} is {value}")

    def _stop(self, round_num: int, why: str) -> None:
        if round_num:
            what = f"has diverged in {self._unit} {round_num}"
            cure = "a smaller learning rate"
        else:
            what = f"cannot be trained, before the first {self._unit}"
            cure = "other weights to start from, or a smaller scale of the logits"
        raise RunStoppedError(f"{self._name} {what}: {why}. Try {cure}.")


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    if array.dtype.kind != "f" or not array.ndim:
        return True
    flat = array.reshape(-1)
    # Faster than a check of each; a finite sum proves that all are finite.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)) or np.isfinite(flat).all())
