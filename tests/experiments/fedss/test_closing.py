import types

import numpy as np
import pytest

from experiments.fedss import best_round, closing, train
from tff_fedss import models
from tff_fedss.tasks import Retrieval

CONFIG = train.Config(
    task="retrieval", rounds=4, client_learning_rate=0.1, results_dir="results/a b"
)


class Task:
    metric, metric_title = Retrieval.metric, Retrieval.metric_title
    format_metric = staticmethod(Retrieval.format_metric)

    def has_collapsed(self, measured):
        return measured["mean_cosine"] > 0.95


def rows_of(values, losses=(3, 3, 2, 2), cosine=0.4):
    rows = [
        {"method": "fedss", "round": i, "map_at_10": x, "mean_cosine": cosine}
        for i, x in enumerate(values)
    ]
    for row, loss in zip(rows[1:], losses, strict=True):
        row["loss"] = loss
    return rows


def run_of(growth=1.0):
    w = np.full([3, 4], growth * models.INITIAL_NORM / 2)
    return types.SimpleNamespace(
        name="fedss", task=Task(), weights=types.SimpleNamespace(trainable=[w])
    )


def test_the_summary_has_start_end_and_best():
    rows = rows_of([0.364, 0.4, 0.42, 0.452, 0.449])
    assert closing.summary(run_of(), rows) == (
        "FedSS: MAP@10 36.4 % before training, 44.9 % after 4 rounds, best 45.2 % at "
        "round 3."
    )
    assert closing.diagnosis(CONFIG, run_of(), rows) is None
    assert "; kept: round 2 (42.0 %), best for validation" in closing.summary(
        run_of(), rows, rows[2]
    )


@pytest.mark.parametrize(
    "rows, growth, cause, flag",
    [
        (
            rows_of([0.4, 0.3, 0.2, 0.2, 0.1], cosine=0.99),
            1.0,
            "phi has collapsed: the mean cosine of two images is 0.990",
            "client_learning_rate=0.01",
        ),
        (
            rows_of([0.4, 0.3, 0.2, 0.2, 0.1], losses=[3, 4, 5, 5]),
            1.0,
            "the rate is too high: the loss rose from 3 to 5",
            "client_learning_rate=0.01",
        ),
        (
            rows_of([0.4, 0.3, 0.2, 0.2, 0.1]),
            2.5,
            "the rate is too high: the rows of W are 2.5 times as long as before",
            "client_learning_rate=0.01",
        ),
        (
            rows_of([0.4, 0.1, 0.2, 0.25, 0.3]),
            1.0,
            "too few rounds: MAP@10 is still rising, from 10.0 % to 30.0 %",
            "rounds=8",
        ),
        (
            rows_of([0.4, 0.3, 0.2, 0.2, 0.1]),
            1.0,
            "the rate may be too high: the loss went from 3 to 2",
            "client_learning_rate=0.01",
        ),
    ],
)
def test_a_run_below_its_start_says_why_and_what_to_try(rows, growth, cause, flag):
    text = closing.diagnosis(CONFIG, run_of(growth), rows)
    assert text.startswith(f"FedSS ended below its start; {cause}")
    *_, command = text.splitlines()
    assert command.startswith("  ./run.sh train '--flagfile=results/a b/flags.txt' ")
    assert f" --{flag} '--results_dir=results/a b_" in command


def test_the_second_collapse_in_a_row_warns_once():
    rows = rows_of([0.4, 0.3, 0.2, 0.2, 0.1], cosine=0.99)
    warned = [
        closing.warning(Task(), rows[: i + 1], "fedss") is not None for i in range(5)
    ]
    assert warned == [False, False, True, False, False]


def test_patience_counts_from_the_first_of_the_best_rounds():
    config = train.Config(task="retrieval", keep="best", patience=2, results_dir="x")
    kept = best_round.KeptRound(config, Task(), None)
    values = [0.1, 0.3, 0.2, 0.3, 0.4]
    rows = [
        {"method": "fedss", "round": i, "validation_map_at_10": x}
        for i, x in enumerate(values)
    ]
    is_over = [kept.is_over(rows[:i], "fedss") for i in range(6)]
    assert is_over == [False, False, False, False, True, False]
    assert kept.row(rows[:4], "fedss") is rows[1]
    assert kept.row(rows, "fedss") is rows[4]
