"""Floats that are no numbers, or out of their range: refused at once."""

import pytest

from tests.faults import harness, programs
from tests.faults.harness import Case

# Program: the float flags, and a number out of the range of each; None: all will do.
FLOATS = {
    "train": {
        "client_learning_rate": -1,
        "server_learning_rate": -1,
        "server_momentum": 1.5,
        "spreadout_margin": 3,
        "spreadout_weight": -1,
        "validation_share": 1,
    },
    "rf_softmax": {
        "alpha": -1,
        "learning_rate": -1,
        "logit_scale": 0,
        "max_gradient_norm": 0,
        "nu": 0,
        "test_share": 1,
    },
    "partial_fc": {
        "learning_rate": -1,
        "logit_scale": 0,
        "margin_size": 2,
        "momentum": 1,
        "sample_rate": 0,
        "test_share": 1,
        "weight_decay": -1,
    },
    "leap": {
        "alpha": None,
        "diversity": -1,
        "diversity_growth": -1,
        "embedding_learning_rate": -1,
        "imbalance": 0,
        "label_noise": 1,
        "learning_rate": -1,
        "momentum": 2,
        "near_duplicates": 1,
        "pace_cap": 2,
        "pace_growth": 0,
        "pace_start": 0,
        "test_share": 1,
        "weight_decay": -1,
    },
    "moco": {
        "gamma": -1,
        "key_momentum": 1.5,
        "learning_rate": -1,
        "temperature": 0,
        "test_share": 1,
        "weight_decay": -1,
    },
}
# The same flags again, through another program.
FLOATS |= {name: FLOATS["train"] for name in ("compare", "demo", "describe")}

CASES = [
    Case(
        f"{flag}={value}",
        program,
        [f"--{flag}={value}"],
        says=[f"--{flag}={text}"],
    )
    for program, floats in FLOATS.items()
    for flag, out_of_range in floats.items()
    for value, text in (
        ("nan", "nan"),
        ("inf", "inf"),
        ("-inf", "-inf"),
        *([] if out_of_range is None else [(str(out_of_range),) * 2]),
    )
]


@harness.params(CASES)
def test_a_float_that_is_none_is_refused(case, place):
    harness.try_case(case, place)


# `describe --help` shows its own flags, not those of `train` that it takes too.
@pytest.mark.parametrize("program", sorted({*programs.PROGRAMS} - {"describe"}))
def test_the_table_has_every_float(program, place):
    module = programs.PROGRAMS[program].module
    shown = place.server.run(module, "--help").output
    floats = {
        line.strip().removeprefix("--").partition("=")[0]
        for line in shown.splitlines()
        if line.startswith("  --") and line.endswith("=FLOAT")
    }
    assert floats == set(FLOATS.get(programs.command(program), {}))
