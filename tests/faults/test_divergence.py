"""Training that diverges or cannot learn: never a success, and the good state stays."""

import csv

import numpy as np

from tests.faults import harness
from tests.faults.harness import Case

# What a line should say: something to try.
_TRY = ("smaller", "lower", "larger", "less", "try", "Try")

_RATE = "learning rate"
_METHODS = ("fedss", "pos_only", "neg_only", "full_softmax", "fedaws", "centralized")

DIVERGING = [
    Case("", program, flags, code=1, says=[_TRY, *says], writes=None)
    for program, says, *flags in (
        *(
            ("train", [_RATE], f"--method={method}", "--client_learning_rate=1e20")
            for method in _METHODS
        ),
        ("train", [_RATE], "--server_optimizer=sgdm:learning_rate=1e38"),
        ("compare", [_RATE], "--client_learning_rate=1e20"),
        ("rf_softmax", [], "--learning_rate=3e38"),
        ("partial_fc", [_RATE], "--learning_rate=1e30"),
        ("leap", [_RATE], "--learning_rate=1e20"),
        ("leap", [_RATE], "--embedding_learning_rate=1e30"),
        ("leap", [], "--weight_decay=1e30"),
        ("moco", [_RATE], "--learning_rate=1e30"),
        ("moco", [], "--weight_decay=1e30"),
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


def expect_no_wrong_number(place):
    """Every recorded number is finite; a loss without clients is blank, not 0."""
    for row in csv.DictReader((place.out / "metrics.csv").open()):
        for name, text in row.items():
            if name != "method" and text:
                assert np.isfinite(float(text)), (name, text)
        if row.get("num_examples") in ("0", "0.0") and int(row["round"]):
            assert row["loss"] == "", row
