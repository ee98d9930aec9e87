"""Tables and figures: bad input, and nothing written.

The programs of data/ are tried in tests/data.
"""

import gzip

import numpy as np

from tests import labelled_blobs
from tests.experiments import run_folders
from tests.faults import harness
from tests.faults.arrangements import write
from tests.faults.harness import EITHER, Case

# --- What a program reads besides -------------------------------------------------

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

# --- Tables and figures; what may be wrong in runs: tests/experiments/common -------

_TABLE = ["1", "--report", "--results_dir=runs"]
_CELL = "omniglot_fedss_m5"
COMMANDS = [
    Case(label, program, flags, says=[says], code=EITHER)
    for program, label, flags, says in (
        ("run_table", "no_runs", _TABLE, "runs"),
        ("run_table", "table_9", ["9"], "which table"),
        ("run_table", "no_workers", ["1", "--workers=0"], "--workers=0"),
        ("figures", "an_unknown_one", ["--figure=99"], "--figure"),
        (
            "figures",
            "to_a_device",
            ["--figure=8", "--output_dir=/dev/null/x"],
            "/dev/null",
        ),
    )
]


@harness.params([*FILES, *COMMANDS])
def test_bad_input_is_named(case, place):
    harness.try_case(case, place)


def test_a_table_says_what_was_run(place):
    """Command, seeds and rounds are those of the runs, not the published ones."""
    run_folders.write_table(
        place.root / "runs", {_CELL: (50.0, 52.0)}, rounds=6, rounds_per_evaluation=3
    )
    outcome = place.run(Case("said", "run_table", _TABLE))
    assert outcome.code == 0, outcome
    text = (place.root / "runs/table1.md").read_text()
    (seeds,) = (x for x in text.splitlines() if x.startswith("- Seeds:"))
    (rounds,) = (x for x in text.splitlines() if x.startswith("- Rounds:"))
    assert seeds.startswith(f"- Seeds: 0, 1 in {_CELL}; none yet in "), seeds
    assert "6" in rounds, rounds
