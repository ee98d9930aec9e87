"""Flags that do not parse, are out of range or too large, or name what is no input."""

import csv
import gzip

import numpy as np
import pytest

from tests import labelled_blobs
from tests.faults import harness, programs
from tests.faults.arrangements import write
from tests.faults.harness import Case, of_each

# Far above this machine's memory; a process that tries it anyway is stopped early.
_MEMORY = {"AS": 24 * 2**30}
# Each program once, not with other flags again.
_AGAIN = ("train_photographs", "rf_softmax_labels", "partial_fc_faces")
_ONCE = [name for name in programs.PROGRAMS if name not in _AGAIN]

# Of every program.
ANY = of_each(
    Case("an_unknown_flag", flags=["--no_such_flag=1"], says=["no_such_flag"]),
    *(
        Case(f"a_flagfile_{label}", flags=flags, arrange=arrange, says=says)
        for label, flags, arrange, says in (
            ("not_there", ["--flagfile=/no/such.flags"], None, ["/no/such.flags"]),
            (
                "not_utf8",
                ["--flagfile=x.flags"],
                write("x.flags", b"--seed=\xff\xfe\n"),
                ["--flagfile", "UTF-8"],
            ),
        )
    ),
    names=_ONCE,
) + of_each(
    Case("a_stray_word", flags=["stray"], says=["'stray'"]),
    names=[name for name in _ONCE if name != "run_table"],  # It takes arguments.
)

# A number out of the range of a float flag, where it is not -1.
_OUT_OF_RANGE = {
    "key_momentum": 1.5,
    "label_noise": 1,
    "logit_scale": 0,
    "margin_size": 2,
    "max_gradient_norm": 0,
    "momentum": 2,
    "nu": 0,
    "pace_cap": 2,
    "pace_growth": 0,
    "pace_start": 0,
    "sample_rate": 0,
    "temperature": 0,
    "validation_share": 1,
}


# Sizes that no machine holds, refused with their sum; those of train itself:
# tests/experiments/common/test_memory_needs.py.
ABSURD = [
    Case(
        "",
        program,
        flags,
        says=[("memory", "GiB", "TiB", "GB", "at most")],
        limits=_MEMORY,
    )
    for program, *flags in (
        ("train_photographs", "--image_size=100000"),
        ("rf_softmax", "--embedding_dim=1000000000"),
        ("rf_softmax", "--num_units=1000000000"),
        ("rf_softmax", "--num_frequencies=1000000000000"),
        ("rf_softmax", "--num_negatives=10000000000"),
        ("partial_fc", "--num_classes=1000000000", "--embedding_dim=512"),
        ("partial_fc", "--num_classes=1000000000000"),
        ("partial_fc", "--embedding_dim=1000000000"),
        ("partial_fc_faces", "--image_size=100000"),
        ("leap", "--embedding_dim=10000000000"),
        ("moco", "--queue_size=10000000000"),
        ("moco", "--image_size=100000"),
        ("describe", "--dataset=glyphs:num_classes=1000000000"),
    )
]

# What does not go together is tried with each program, in tests/experiments; the
# programs of data/ in tests/data.
_THREE_IMAGES = gzip.compress(labelled_blobs.idx(np.zeros([3, 28, 28], np.uint8)))

FILES = [
    Case(
        f"images_{label}",
        "sampler_quality",
        ["--output_dir=out", "--num_draws=100", "--images=x.gz"],
        arrange=arrange,
        says=["x.gz"],
    )
    for label, arrange in (
        ("lost", None),
        ("no_gzip", write("x.gz", "Dear")),
        ("cut_off", write("x.gz", gzip.compress(b"\0\0\x08\3" * 99)[:30])),
        ("too_few", write("x.gz", _THREE_IMAGES)),
    )
]


@harness.params([*ANY, *ABSURD, *FILES])
def test_a_flag_that_will_not_do_is_named(case, place):
    harness.try_case(case, place)


# partition_sop looks at its data first.
@pytest.mark.parametrize("program", [x for x in _ONCE if x != "partition_sop"])
def test_no_flag_takes_a_number_that_is_none_of_its_own(program, place):
    """All number flags that the help shows: outside their range, and no number."""
    place.begin(program, "new")
    before = harness.contents(place.root)
    for name, kind in _flags(program, place):
        own = str(_OUT_OF_RANGE.get(name, -1))
        for value in ("-1", "1.5") if kind == "INT" else ("nan", "inf", "-inf", own):
            if (program, name, value) == ("leap", "alpha", "-1"):
                continue  # All numbers are valid.
            case = Case("", program, [f"--{name}={value}"], says=[f"--{name}={value}"])
            harness.judge(case, place.run(case))
    assert harness.differences(before, harness.contents(place.root)) == []


def _flags(program, place):
    """The flags of a program's help: name and kind."""
    shown, _ = place.server.run(programs.PROGRAMS[program].module, "--help").ok()
    lines = [line.strip()[2:] for line in shown.splitlines() if line[:4] == "  --"]
    return [
        line.partition("=")[::2] for line in lines if line.endswith(("INT", "FLOAT"))
    ]


# --- Training that diverges: never a success, and the good state stays ------------

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
