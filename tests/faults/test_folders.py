"""Results folders: whose they are, who else is there, and what a kill has left."""

import pytest

from tests.faults import harness, programs
from tests.faults.arrangements import (
    all_of,
    hold_lock,
    let_go,
    of_each,
    remove,
    spoil,
    write,
)
from tests.faults.harness import Case

IN_USE = "in use by another process"


def _unit(program):
    return "epoch" if program == "moco" else "round"


def _interrupt(place, program):
    unit = _unit(program)
    outcome = place.run(
        Case("interrupted", program, [f"--{unit}s_per_checkpoint=100"]),
        stop_after_rows=programs.STOP_AFTER_ROWS,
    )
    assert outcome.code == 130, outcome


def _move(place):
    (place.root / "elsewhere").mkdir()
    place.out.rename(place.root / "elsewhere/it")


LOCKED = of_each(
    lambda p: Case(
        "in_use_before_anything_else", p, arrange=hold_lock, says=[IN_USE], cure=let_go
    ),
    lambda p: Case(
        "in_use_with_the_same_flags",
        p,
        start="stopped",
        arrange=hold_lock,
        says=[IN_USE],
        cure=let_go,
    ),
    # It must not write its own flags, whatever it says.
    lambda p: Case(
        "in_use_with_other_flags",
        p,
        ["--seed=1"],
        start="stopped",
        arrange=hold_lock,
        says=["--results_dir=run", (IN_USE, "--seed=0 there")],
    ),
)

WHOSE = of_each(
    lambda p: Case(
        "another_seed",
        p,
        ["--seed=1"],
        start="stopped",
        says=["--seed=0 there, --seed=1 here"],
    ),
    lambda p: Case(
        "another_seed_than_a_finished_run_s",
        p,
        ["--seed=1"],
        start="finished",
        says=["--seed=0 there, --seed=1 here"],
    ),
    lambda p: Case(
        "a_file_where_the_folder_should_be",
        p,
        arrange=write("run", "not a folder"),
        says=["--results_dir=run", ("file", "not a folder")],
        cure=remove("run"),
    ),
    lambda p: Case(
        "somebody_s_files",
        p,
        arrange=write("run/letter.txt", "Dear"),
        says=["--results_dir=run", "not a run's folder"],
        cure=remove("run/letter.txt"),
    ),
    lambda p: Case("no_results_dir", p, ["--results_dir="], says=["--results_dir"]),
)

# A kill leaves these; the folder is free, or its run resumes.
LEFTOVERS = of_each(
    lambda p: Case(
        "an_empty_folder", p, arrange=lambda place: place.out.mkdir(), code=0
    ),
    lambda p: Case(
        "a_lock_and_half_of_the_flags",
        p,
        arrange=all_of(write("run/.lock", ""), write("run/.flags.txt.tmp", "--see")),
        code=0,
    ),
    lambda p: Case(
        "halves_of_later_files",
        p,
        start="stopped",
        arrange=all_of(
            write("run/.metrics.csv.tmp", "method,rou"),
            write("run/.done.json.tmp", "{"),
            write("run/.speed.csv.tmp", ""),
            write(f"run/.{programs.PROGRAMS[p].name}.npz.tmp.npz", b"PK\3\4"),
            write("run/.curves.png.tmp", b"\x89PNG"),
        ),
        code=0,
        says=["resumes after"],
    ),
    lambda p: Case(
        "half_of_a_checkpoint",
        p,
        start="stopped",
        arrange=write(
            f"run/checkpoints/{programs.PROGRAMS[p].name}/.round_3.npz.tmp", "?"
        ),
        code=0,
        says=["resumes after"],
    ),
    lambda p: Case(
        "half_of_a_row",
        p,
        **{**spoil("run/metrics.csv", lambda c: c + c[-40:-20]), "cure": None},
        start="stopped",
        code=0,
        says=["resumes after"],
    ),
    lambda p: Case(
        "half_of_a_row_of_speed",
        p,
        **{**spoil("run/speed.csv", lambda c: c + c[-20:-5]), "cure": None},
        start="stopped",
        code=0,
        says=["resumes after"],
    ),
    lambda p: Case(
        "an_interrupted_run_resumes", p, start="stopped", code=0, says=["resumes after"]
    ),
    lambda p: Case(
        "a_finished_run_is_not_run_again",
        p,
        start="finished",
        code=0,
        says=["Done before"],
        writes=(),
    ),
    # Every round that was recorded whole is kept, whatever --rounds_per_checkpoint is.
    lambda p: Case(
        "an_interruption_loses_no_round",
        p,
        [f"--{_unit(p)}s_per_checkpoint=100"],
        arrange=lambda place: _interrupt(place, p),
        code=0,
        says=[f"resumes after {_unit(p)} 3"],
    ),
    lambda p: Case(
        "a_folder_that_was_moved",
        p,
        ["--results_dir=elsewhere/it"],
        start="stopped",
        arrange=lambda place: _move(place),
        code=0,
        says=["resumes after"],
        same=False,
    ),
)


@harness.params(LOCKED)
def test_a_folder_in_use_is_left_alone(case, place):
    harness.try_case(case, place)


@harness.params(WHOSE)
def test_a_folder_of_something_else_is_left_alone(case, place):
    harness.try_case(case, place)


@harness.params(LEFTOVERS)
def test_what_is_left_of_a_run_is_resumed(case, place):
    harness.try_case(case, place)


@pytest.mark.parametrize("program", programs.TRAINING)
def test_a_run_in_a_folder_with_a_line_break_can_be_read(program, place):
    place.begin(program, "new")
    case = Case("line_break", program, ["--results_dir=a\nb"], code=0)
    harness.judge(case, place.run(case))
    again = place.run(case)
    assert again.code == 0 and "Done before" in again.output, again


def test_a_line_break_in_a_flag_is_refused(place):
    """The flags of a run are lines of a file."""
    case = Case("", "leap", ["--data_dir=data\n--seed=7"], says=["--data_dir"])
    harness.try_case(case, place)
