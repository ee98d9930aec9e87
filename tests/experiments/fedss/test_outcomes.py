import csv
import dataclasses
import io
import types

import numpy as np
import pytest

from experiments.fedss import outcomes, run_config, run_methods, train
from tests.experiments import run_folders
from tff_fedss import models, tasks

OUTCOMES = [
    dict(zip(outcomes._COLUMNS, values, strict=False))
    for values in (
        ("FedSS", 51.26, 8.38, 10_880, 43_520, 44_200),
        ("FullSoftmax", 56.8, 100.0, 129_792, 519_168, 519_168),
    )
]


def test_csv_keeps_all_digits():
    first, second = csv.DictReader(io.StringIO(outcomes.as_csv(OUTCOMES, "top1")))
    assert first["method"] == "FedSS" and first["top1_percent"] == "51.26"
    assert second["classifier_bytes_down"] == "519168"


def test_text_lines_up():
    text = outcomes.as_text(OUTCOMES, "top-1", num_classes=2028, chance=1 / 2028)
    lines = text.splitlines()
    assert len({len(line) for line in lines[:6]}) == 1
    assert lines[3].split() == ["FedSS", "51.3", "8.4", "10,880", "43,520", "44,200"]
    assert lines[4].split()[-1] == "519,168"
    assert "chance: 0.049 %" in text


def row(method, round_num, **metrics):
    return {"method": method, "round": round_num, **metrics}


def test_curves_are_drawn(tmp_path):
    rows = [
        row("fedss", 0, top1=0.0),
        row("full_softmax", 0, top1=0.0),
        row("fedss", 1, loss=3.0),
        row("full_softmax", 1, loss=2.0, top1=0.5),
    ]
    task = types.SimpleNamespace(metric="top1", metric_title="top-1", chance=0.1)
    outcomes.plot(rows, task, tmp_path / "curves.png")
    run_folders.check_figure(tmp_path / "curves.png")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["curves.pdf", "curves.png"]


@pytest.mark.parametrize(
    "losses, warning",
    [((0.0, 0.0, 0.0), "in 3 of 3 rounds"), ((0.0, 0.0, 2.5), "in 2 of 3 rounds")],
)
def test_a_run_whose_spreadout_has_nothing_to_do_says_so(losses, warning):
    config = train.Config(method="fedaws:margin=0.5")
    rows = [{"method": "pos_only", "round": 1}, {"method": "fedaws", "round": 0}]
    rows += [{"method": "fedaws", "spreadout_loss": loss} for loss in losses]
    text = run_methods._tell_spreadout(config, rows)
    assert warning in text and "the margin of 0.5" in text


def test_a_run_whose_spreadout_pushes_does_not():
    rows = [{"spreadout_loss": loss} for loss in (0.0, 1.0, 0.5)]
    assert run_methods._tell_spreadout(run_config.RunConfig(), rows) == ""
    assert run_methods._tell_spreadout(run_config.RunConfig(), [{"round": 1}]) == ""


# --- What a run says at its end

CONFIG = train.Config(
    task="retrieval",
    rounds=4,
    client_learning_rate=0.1,
    initial_norm=0.3,
    results_dir="results/a b",
)


class Task:
    metric, metric_title = tasks.Retrieval.metric, tasks.Retrieval.metric_title
    format_metric = staticmethod(tasks.Retrieval.format_metric)

    def has_collapsed(self, measured):
        return measured["mean_cosine"] > 0.95


def measured(values, losses=(3, 3, 2, 2), cosine=0.4):
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
        name="fedss",
        task=Task(),
        weights=types.SimpleNamespace(trainable=[w]),
        round_num=4,
    )


def test_the_summary_has_start_end_and_best():
    rows = measured([0.364, 0.4, 0.42, 0.452, 0.449])
    assert outcomes.summary(run_of(), rows) == (
        "FedSS: MAP@10 36.4 % before training, 44.9 % after 4 rounds, best 45.2 % at "
        "round 3."
    )
    assert outcomes.diagnosis(CONFIG, run_of(), rows) is None
    assert "; kept: round 2 (42.0 %), best for validation" in outcomes.summary(
        run_of(), rows, rows[2]
    )


@pytest.mark.parametrize(
    "rows, growth, cause, flag",
    [
        (
            measured([0.4, 0.3, 0.2, 0.2, 0.1], cosine=0.99),
            1.0,
            "phi has collapsed: the mean cosine of two images is 0.990",
            "client_learning_rate=0.01",
        ),
        (
            measured([0.4, 0.3, 0.2, 0.2, 0.1], losses=[3, 4, 5, 5]),
            1.0,
            "the rate is too high: the loss rose from 3 to 5",
            "client_learning_rate=0.01",
        ),
        (
            measured([0.4, 0.3, 0.2, 0.2, 0.1]),
            2.5,
            "the rate is too high: the rows of W are 2.5 times as long as before",
            "client_learning_rate=0.01",
        ),
        (
            measured([0.4, 0.1, 0.2, 0.25, 0.3]),
            1.0,
            "too few rounds: MAP@10 is still rising, from 10.0 % to 30.0 %",
            "rounds=8",
        ),
        (
            measured([0.4, 0.3, 0.2, 0.2, 0.1]),
            1.0,
            "the rate may be too high: the loss went from 3 to 2",
            "client_learning_rate=0.01",
        ),
    ],
)
def test_a_run_below_its_start_says_why_and_what_to_try(rows, growth, cause, flag):
    text = outcomes.diagnosis(CONFIG, run_of(growth), rows)
    assert text.startswith(f"FedSS ended below its start; {cause}")
    *_, command = text.splitlines()
    assert command.startswith("  ./run.sh train '--flagfile=results/a b/flags.txt' ")
    assert f" --{flag} '--results_dir=results/a b_" in command


def test_a_run_that_patience_has_ended_is_advised_more_patience():
    rows = measured([0.4, 0.1, 0.2, 0.25, 0.3])
    config = dataclasses.replace(CONFIG, rounds=20, patience=3)
    assert " --patience=6 " in outcomes.diagnosis(config, run_of(), rows)


def test_the_second_collapse_in_a_row_warns_once():
    rows = measured([0.4, 0.3, 0.2, 0.2, 0.1], cosine=0.99)
    warned = [
        outcomes.warning(Task(), rows[: i + 1], "fedss") is not None for i in range(5)
    ]
    assert warned == [False, False, True, False, False]


def test_patience_counts_from_the_first_of_the_best_rounds():
    config = train.Config(task="retrieval", keep="best", patience=2, results_dir="x")
    kept = run_methods.KeptRound(config, Task(), None)
    values = [0.1, 0.3, 0.2, 0.3, 0.4]
    rows = [
        {"method": "fedss", "round": i, "validation_map_at_10": x}
        for i, x in enumerate(values)
    ]
    is_over = [kept.is_over(rows[:i], "fedss") for i in range(6)]
    assert is_over == [False, False, False, False, True, False]
    assert kept.row(rows[:4], "fedss") is rows[1]
    assert kept.row(rows, "fedss") is rows[4]
