"""Tables: runs that do not go together, runs that are damaged, and bad flags."""

import shutil

from tests.experiments import run_folders
from tests.faults import harness
from tests.faults.arrangements import all_of, write
from tests.faults.harness import EITHER, Case

_TABLE = ["1", "--report", "--results_dir=runs"]


def table(place, **changes):
    """Three seeds of every cell of Table 1."""
    run_folders.write_table(place.root / "runs", **changes)


def again(cell, seed, percent, **changes):
    """One of its runs, another one now."""

    def arrange(place):
        shutil.rmtree(place.root / "runs" / cell / f"seed{seed}")
        run_folders.write_run(place.root / "runs", cell, seed, percent, **changes)

    return arrange


_CELL = "omniglot_fedss_m5"
_FOLDER = f"runs/{_CELL}/seed1"

TABLE = [
    Case(
        label,
        "run_table",
        _TABLE,
        arrange=all_of(table, *more),
        says=says,
        code=code,
    )
    for label, more, code, says in (
        ("fewer_rounds", [again(_CELL, 1, 52.0, rounds=2)], 2, ["--rounds=", _FOLDER]),
        (
            "a_pretrained_run_among_others",
            [again(_CELL, 1, 52.0, flags={"pretrained": "w.h5"})],
            2,
            ["--pretrained", _FOLDER],
        ),
        (
            "another_learning_rate",
            [again(_CELL, 1, 52.0, flags={"client_learning_rate": "0.5"})],
            2,
            ["--client_learning_rate=", _FOLDER],
        ),
        (
            "another_data_set",
            [again(_CELL, 1, 52.0, flags={"dataset": "glyphs"})],
            2,
            ["--dataset=", _FOLDER],
        ),
        (
            "done_empty",
            [write(f"{_FOLDER}/done.json", "")],
            2,
            [f"{_FOLDER}/done.json"],
        ),
        (
            "done_cut_off",
            [write(f"{_FOLDER}/done.json", "{")],
            2,
            [f"{_FOLDER}/done.json"],
        ),
        (
            "done_a_list",
            [write(f"{_FOLDER}/done.json", "[]")],
            2,
            [f"{_FOLDER}/done.json"],
        ),
        (
            "flags_not_utf8",
            [write(f"{_FOLDER}/flags.txt", b"--seed=\xff\n")],
            2,
            [f"{_FOLDER}/flags.txt"],
        ),
        (
            "metrics_not_utf8",
            [write(f"{_FOLDER}/metrics.csv", b"method,round\n\xff,1\n")],
            2,
            [f"{_FOLDER}/metrics.csv"],
        ),
        (
            "run_json_cut_off",
            [write(f"{_FOLDER}/run.json", "{")],
            2,
            [f"{_FOLDER}/run.json"],
        ),
        (
            "metrics_lost",
            [lambda place: (place.root / _FOLDER / "metrics.csv").unlink()],
            2,
            [f"{_FOLDER}/metrics.csv"],
        ),
    )
]

TABLE += [
    Case("no_runs", "run_table", _TABLE, says=["runs"]),
    Case("an_unknown_figure", "figures", ["--figures=99"], says=["--figures"]),
    Case("a_word_for_a_figure", "figures", ["--figures=eight"], says=["--figures"]),
    Case(
        "a_figure_to_a_device",
        "figures",
        ["--figures=8", "--output_dir=/dev/null/x"],
        says=["/dev/null"],
        code=EITHER,
    ),
    Case("no_table", "run_table", [], says=["which table"]),
    Case("table_9", "run_table", ["9"], says=["which table"]),
    Case("no_cells", "run_table", ["1", "--cells=none"], says=["--cells=none"]),
    Case("no_seeds", "run_table", ["1", "--seeds=a"], says=["--seeds=a"]),
    Case("empty_seeds", "run_table", ["1", "--seeds="], says=["--seeds"]),
    Case("a_seed_twice", "run_table", ["1", "--seeds=0,0"], says=["--seeds=0,0"]),
    Case("seed_1e12", "run_table", ["1", f"--seeds={10**12}"], says=["--seeds="]),
    Case("no_workers", "run_table", ["1", "--workers=0"], says=["--workers=0"]),
]


@harness.params(TABLE)
def test_a_table_of_other_runs_is_refused(case, place):
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
