"""Checkpoints: damaged ones are put aside for ever, others stop the run untouched."""

import os

from tests.faults import harness, programs
from tests.faults.arrangements import (
    cut_off,
    flip,
    of_each,
    put,
    write,
)
from tests.faults.harness import Case


def checkpoints(place, program):
    """The checkpoints of a run, oldest first."""
    parent = place.out / "checkpoints" / programs.PROGRAMS[program].name
    found = list(parent.glob("round_*.npz"))
    assert len(found) >= 2, list(parent.iterdir())
    return sorted(found, key=lambda path: int(path.stem[6:]))


def damage(program, change, which):
    """Changes some checkpoints."""

    def arrange(place):
        for path in checkpoints(place, program)[which]:
            path.write_bytes(change(path.read_bytes()))

    return arrange


_LAST = slice(-1, None)
_ALL = slice(None)
_ASIDE = "run/checkpoints/*damaged*"

# Put aside, and gone on from the one before, to the same bytes.
PUT_ASIDE = of_each(
    *(
        lambda p, label=label, change=change: Case(
            f"the_newest_{label}",
            p,
            start="stopped",
            arrange=damage(p, change, _LAST),
            code=0,
            says=["is damaged", "resumes after"],
            keeps=[_ASIDE],
        )
        for label, change in (
            ("one_bit", flip),
            ("cut_off", cut_off),
            ("empty", put(b"")),
            ("zeros", lambda c: b"\0" * len(c)),
        )
    ),
    lambda p: Case(
        "put_aside_a_second_time",
        p,
        start="stopped",
        arrange=lambda place: (
            _put_aside_before(place, p),
            damage(p, flip, _LAST)(place),
        ),
        code=0,
        says=["is damaged", "resumes after"],
        keeps=[_ASIDE],
    ),
    # Not a word of a run that starts again.
    lambda p: Case(
        "all_of_them",
        p,
        start="stopped",
        arrange=damage(p, flip, _ALL),
        says=["checkpoints", "damaged"],
        writes=["run/checkpoints/*", "run/.lock", "run/run.json"],
        keeps=[_ASIDE],
    ),
    lambda p: Case(
        "all_of_them_and_again",
        p,
        start="stopped",
        arrange=lambda place: (
            damage(p, flip, _ALL)(place),
            place.run(Case("first", p)),
        ),
        says=["checkpoints", "damaged"],
        writes=["run/run.json"],
        keeps=[_ASIDE],
    ),
)

# Not damage: the line names what is wrong, and all checkpoints stay in their places.
LEFT_ALONE = of_each(
    lambda p: Case(
        "unreadable",
        p,
        start="stopped",
        arrange=lambda place: _forbid(place, p),
        cure=lambda place: _allow(place, p),
        code=1,
        says=["checkpoints", "ermission denied"],
        writes=["run/run.json"],
        as_nobody=True,
    ),
    lambda p: Case(
        "in_a_folder_that_cannot_be_entered",
        p,
        start="stopped",
        arrange=lambda place: (
            _open_for_all(place),
            (place.out / "checkpoints").chmod(0o000),
            _own_by_root(place.out / "checkpoints"),
        ),
        cure=lambda place: (
            (place.out / "checkpoints").chmod(0o777),
            _open_for_all(place),
        ),
        code=1,
        says=["checkpoints", "ermission denied"],
        writes=["run/run.json"],
        as_nobody=True,
    ),
    lambda p: Case(
        "a_folder_in_its_place",
        p,
        start="stopped",
        arrange=lambda place: _swap_for_folder(place, p),
        cure=lambda place: _swap_back(place),
        code=1,
        says=["checkpoints", "irectory"],
        writes=["run/run.json"],
    ),
)


def _put_aside_before(place, program):
    newest = checkpoints(place, program)[-1]
    write(
        f"run/checkpoints/{newest.parent.name}/damaged_{newest.name}",
        "put aside before",
    )(place)


def _open_for_all(place):
    for path in [place.root, *place.root.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)


def _own_by_root(path):
    if harness.is_root():
        os.chown(path, 0, 0)


def _forbid(place, program):
    _open_for_all(place)
    checkpoints(place, program)[-1].chmod(0o000)


def _allow(place, program):
    _open_for_all(place)


def _swap_for_folder(place, program):
    path = checkpoints(place, program)[-1]
    place.kept = (path, path.read_bytes())
    path.unlink()
    path.mkdir()


def _swap_back(place):
    path, content = place.kept
    path.rmdir()
    path.write_bytes(content)


@harness.params(PUT_ASIDE)
def test_a_damaged_checkpoint_is_put_aside(case, place):
    harness.try_case(case, place)


@harness.params(LEFT_ALONE)
def test_a_checkpoint_that_cannot_be_read_is_left_alone(case, place):
    harness.try_case(case, place)
