"""Training rounds, with evaluations in between, of one run or of several together."""

import collections
from collections.abc import Callable, Sequence

from tff_fedss.training.federated_run import FederatedRun, Metrics
from tff_fedss.training.progress import Progress


def train(
    runs: Sequence[FederatedRun],
    num_rounds: int,
    rounds_per_evaluation: int,
    release: Callable[[Metrics], None],
) -> None:
    """Trains the runs side by side: round 1 of each, then round 2 of each, and so on.

    Every run is evaluated before its first round, every `rounds_per_evaluation` rounds
    and after its last round.

    Args:
        runs: The runs; each goes on from the round that it is at.
        num_rounds: The round to train up to.
        rounds_per_evaluation: How often to evaluate.
        release: Called with the metrics of each run and round as soon as they are
            there: "method", "round", then those of the round and of the evaluation, if
            one is due.
    """
    with Progress([run.name for run in runs], num_rounds) as progress:

        def report(run: FederatedRun, metrics: Metrics) -> None:
            if (
                run.round_num % rounds_per_evaluation == 0
                or run.round_num == num_rounds
            ):
                metrics.update(run.evaluate())
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
                    report(run, run.run_round())
