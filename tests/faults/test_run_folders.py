"""Results folders: whose they are, what a kill or a bad disk has left, checkpoints."""

from tests.faults import harness, programs
from tests.faults.arrangements import (
    all_of,
    change,
    cut_off,
    flip,
    hold_lock,
    lose,
    write,
)
from tests.faults.harness import Case, of_each

_IN_USE = "in use by another process"
_RESUMES = "resumes after"


# --- Whose the folder is ----------------------------------------------------------

LOCKED = of_each(
    *(
        Case(
            f"in_use_{label}", start=start, arrange=hold_lock, says=[_IN_USE], cure=True
        )
        for label, start in (("at_first", "new"), ("with_the_same_flags", "stopped"))
    ),
    # It must not write its own flags, whatever it says.
    Case(
        "in_use_with_other_flags",
        flags=["--seed=1"],
        start="stopped",
        arrange=hold_lock,
        says=["--results_dir=run", (_IN_USE, "--seed=0 there")],
    ),
)

WHOSE = of_each(
    *(
        Case(
            f"another_seed_than_a_{start}_run_s",
            flags=["--seed=1"],
            start=start,
            says=["--seed=0 there, --seed=1 here"],
        )
        for start in ("stopped", "finished")
    ),
    Case("no_results_dir", flags=["--results_dir="], says=["--results_dir"]),
)


# --- What a kill has left ---------------------------------------------------------


def _interrupt_without_checkpoints(place):
    case = Case("interrupted", place.program, _seldom(place.program))
    outcome = place.run(case, stop_after_rows=programs.STOP_AFTER_ROWS)
    assert outcome.code == 130, outcome


def _seldom(program):
    return [f"--{_unit(program)}s_per_checkpoint=100"]


def _unit(program):
    return "epoch" if program == "moco" else "round"


def _half_a_row(content: bytes) -> bytes:
    """Adds the first half of the last row."""
    row = content.splitlines()[-1]
    return content + row[: len(row) // 2]


def _move(place):
    (place.root / "elsewhere").mkdir()
    place.out.rename(place.root / "elsewhere/it")


# Before the first round: tests/training/test_results_folder.py.
LEFTOVERS = of_each(
    *(
        Case(label, start="stopped", arrange=arrange, code=0, says=[_RESUMES])
        for label, arrange in (
            (
                "halves_of_later_files",
                all_of(
                    write("run/.metrics.csv.tmp", "method,rou"),
                    write("run/.done.json.tmp", "{"),
                    write("run/.speed.csv.tmp", ""),
                    write("run/.{name}.npz.tmp.npz", b"PK\3\4"),
                    write("run/.curves.png.tmp", b"\x89PNG"),
                ),
            ),
            ("half_of_a_row", change("run/metrics.csv", _half_a_row)),
            ("half_of_a_row_of_speed", change("run/speed.csv", _half_a_row)),
        )
    ),
    Case(
        "a_folder_that_was_moved",
        flags=["--results_dir=elsewhere/it"],
        start="stopped",
        arrange=_move,
        code=0,
        says=[_RESUMES],
        same=False,
    ),
) + [
    # Every round that was recorded whole is kept, whatever --rounds_per_checkpoint is.
    Case(
        "an_interruption_loses_no_round",
        program,
        _seldom(program),
        prepare=_interrupt_without_checkpoints,
        code=0,
        says=[f"{_RESUMES} {_unit(program)} 3"],
    )
    for program in programs.TRAINING
]


# --- Files that are lost, cut off or in the way -----------------------------------

# What else may be wrong in them: tests/training/test_results_folder.py.
DAMAGED = of_each(
    *(
        Case(
            label,
            start=start,
            arrange=change(f"run/{name}", by),
            says=[f"run/{name}"],
            cure=True,
        )
        for label, start, name, by in (
            ("metrics_lost", "stopped", "metrics.csv", lose),
            ("done_cut_off", "finished", "done.json", cut_off),
        )
    ),
)


# --- Checkpoints ------------------------------------------------------------------


def checkpoints(place):
    """The checkpoints of a run, oldest first."""
    parent = place.out / "checkpoints" / place.name
    found = list(parent.glob("round_*.npz"))
    assert len(found) >= 2, list(parent.iterdir())
    return sorted(found, key=lambda path: int(path.stem[6:]))


def damage_newest(place):
    path = checkpoints(place)[-1]
    path.write_bytes(flip(path.read_bytes()))


def damage_all(place):
    for path in checkpoints(place):
        path.write_bytes(flip(path.read_bytes()))


_ASIDE = ["run/checkpoints/*damaged*"]

# Renamed, and resumed from the previous one, to the same bytes. Other damage:
# tests/training/test_checkpoints.py.
PUT_ASIDE = of_each(
    Case(
        "the_newest",
        start="stopped",
        arrange=damage_newest,
        code=0,
        says=["is damaged", _RESUMES],
        keeps=_ASIDE,
    ),
    # Not a word of a run that starts again.
    Case(
        "all_of_them",
        start="stopped",
        arrange=damage_all,
        says=["checkpoints", "damaged"],
        writes=["run/checkpoints/*", "run/.lock", "run/run.json"],
        keeps=_ASIDE,
    ),
)


@harness.params([*LOCKED, *WHOSE])
def test_a_folder_of_others_is_left_alone(case, place):
    harness.try_case(case, place)


@harness.params(LEFTOVERS)
def test_what_is_left_of_a_run_is_resumed(case, place):
    harness.try_case(case, place)


@harness.params(DAMAGED)
def test_a_damaged_file_is_named(case, place):
    harness.try_case(case, place)


@harness.params(PUT_ASIDE)
def test_a_damaged_checkpoint_is_put_aside(case, place):
    harness.try_case(case, place)
