"""Training that diverges or cannot learn: never a success, and the good state stays."""

import csv

import numpy as np
import pytest

from tests.faults import harness
from tests.faults.harness import Case

# What a line should say: something to try.
_TRY = ("smaller", "lower", "larger", "less", "try", "Try")

_RATE = "learning rate"
_METHODS = ("fedss", "pos_only", "neg_only", "full_softmax", "fedaws", "centralized")

DIVERGING = [
    Case(label, program, flags, code=1, says=[_TRY, *says], writes=None)
    for program, label, flags, says in (
        *(
            (
                "train",
                f"{method}_rate_1e20",
                [f"--method={method}", "--client_learning_rate=1e20"],
                [_RATE],
            )
            for method in _METHODS
        ),
        (
            "train",
            "server_rate_1e38",
            ["--server_optimizer=sgdm:learning_rate=1e38"],
            [_RATE],
        ),
        ("compare", "rate_1e20", ["--client_learning_rate=1e20"], [_RATE]),
        ("rf_softmax", "rate_3e38", ["--learning_rate=3e38"], []),
        ("partial_fc", "rate_1e30", ["--learning_rate=1e30"], [_RATE]),
        ("leap", "rate_1e20", ["--learning_rate=1e20"], [_RATE]),
        ("leap", "its_own_rate", ["--embedding_learning_rate=1e30"], [_RATE]),
        ("leap", "weight_decay_1e30", ["--weight_decay=1e30"], []),
        ("moco", "rate_1e30", ["--learning_rate=1e30"], [_RATE]),
        ("moco", "weight_decay_1e30", ["--weight_decay=1e30"], []),
    )
]

# Extreme, but not wrong as such: a result or one line, and no traceback.
EXTREME = [
    Case(label, program, flags, code=(0, 1, 2), writes=None, same=False)
    for program, label, flags in (
        ("rf_softmax", "rate_1e30", ["--learning_rate=1e30", "--optimizer=sgd"]),
        ("rf_softmax", "logit_scale_1000", ["--logit_scale=1000"]),
        ("rf_softmax", "logit_scale_1e30", ["--logit_scale=1e30"]),
        ("rf_softmax", "nu_1e30", ["--nu=1e30"]),
        ("rf_softmax", "alpha_1e300", ["--alpha=1e300", "--sampler=quadratic"]),
        ("rf_softmax", "gradient_norm_1e300", ["--max_gradient_norm=1e300"]),
        ("rf_softmax", "exp_logit_scale_1000", ["--sampler=exp", "--logit_scale=1000"]),
        ("partial_fc", "logit_scale_1e30", ["--logit_scale=1e30"]),
        ("partial_fc", "sample_rate_1e-9", ["--sample_rate=1e-9"]),
        ("leap", "diversity_1e300", ["--diversity=1e300"]),
        ("leap", "pace_1e6", ["--pace_start=1e6", "--pace_growth=1e6"]),
        ("leap", "alpha_1e300", ["--alpha=1e300"]),
        ("moco", "gamma_1e300", ["--gamma=1e300"]),
        ("moco", "temperature_1e300", ["--temperature=1e300"]),
        ("moco", "temperature_0.001", ["--temperature=0.001"]),
        ("moco", "one_key", ["--queue_size=8", "--num_clusters=8", "--loss=filtered"]),
        ("train", "rate_0", ["--client_learning_rate=0"]),
        ("train", "rate_1e-300", ["--client_learning_rate=1e-300"]),
        ("train", "spreadout_1e300", ["--method=fedaws:weight=1e300"]),
    )
]


@harness.params(DIVERGING)
def test_a_run_that_diverges_stops_with_a_line(case, place):
    harness.try_case(case, place)
    assert not (place.out / "done.json").exists()
    expect_no_wrong_number(place)
    for path in place.out.glob("checkpoints/*/round_*.npz"):
        with np.load(path) as saved:
            assert all(
                np.isfinite(v).all() for v in saved.values() if v.dtype.kind == "f"
            )


@harness.params(EXTREME)
def test_an_extreme_run_says_no_wrong_number(case, place):
    harness.try_case(case, place)
    if (place.out / "metrics.csv").exists():
        expect_no_wrong_number(place)


def expect_no_wrong_number(place):
    """Every recorded number is finite; a loss without clients is blank, not 0."""
    for row in csv.DictReader((place.out / "metrics.csv").open()):
        for name, text in row.items():
            if name != "method" and text:
                assert np.isfinite(float(text)), (name, text)
        if row.get("num_examples") in ("0", "0.0") and int(row["round"]):
            assert row["loss"] == "", row


@pytest.mark.parametrize("method", ["fedss", "full_softmax"])
def test_a_round_without_an_accepted_client_has_no_loss(place, method):
    place.begin("train", "new")
    case = Case(
        "rejected",
        "train",
        [f"--method={method}", "--client_learning_rate=1e20"],
        code=1,
    )
    harness.judge(case, place.run(case))
    rows = list(csv.DictReader((place.out / "metrics.csv").open()))
    rejected = [row for row in rows if row["rejected_clients"] not in ("", "0")]
    assert rejected, rows
    for row in rejected:
        if row["rejected_clients"] == row["num_clients"]:
            assert row["loss"] == "" and row["accuracy"] == "", row
