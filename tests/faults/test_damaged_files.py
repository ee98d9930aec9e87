"""Files of a run that are lost, cut off or of another form: named, and left alone."""

from tests.faults import harness, programs
from tests.faults.arrangements import (
    cut_off,
    harm,
    lose,
    of_each,
    put,
    replace_by_folder,
    spoil,
    write,
)
from tests.faults.harness import EITHER, Case


def _damaged(name, label, start, change, *, says=None, cured=False):
    """Makes the case of a changed file for a program."""
    return lambda p: Case(
        label,
        p,
        start=start,
        says=says or [f"run/{name}"],
        **(spoil if cured else harm)(f"run/{name}", change),
    )


def _folder_for(name, start):
    return lambda p: Case(
        f"a_folder_for_{name}",
        p,
        start=start,
        code=EITHER,
        says=[name],
        **replace_by_folder(f"run/{name}"),
    )


METRICS = of_each(
    _damaged("metrics.csv", "metrics_lost", "stopped", lose, cured=True),
    _damaged(
        "metrics.csv",
        "metrics_with_a_wrong_line",
        "stopped",
        lambda c: c + b"what is this\n",
        cured=True,
    ),
    _folder_for("metrics.csv", "stopped"),
)

# All programs read it with the same reader, which has tests of its own.
METRICS += of_each(
    *(
        _damaged("metrics.csv", f"metrics_{label}", "stopped", change)
        for label, change in (
            ("empty", put("")),
            ("not_utf8", lambda c: c + b"\xff\xfe,1\n"),
            ("without_its_columns", lambda c: c.partition(b"\n")[2]),
            ("with_a_row_twice", lambda c: c + c.splitlines()[2] + b"\n"),
            ("without_a_round", lambda c: c.replace(c.splitlines()[2] + b"\n", b"")),
            (
                "with_a_word_for_a_round",
                lambda c: c.replace(b"\nfedss,1,", b"\nfedss,one,"),
            ),
        )
    ),
    names=("train",),
)

# A finished run: nothing is run again, and nothing is taken for whole that is not.
FINISHED = of_each(
    _damaged("metrics.csv", "metrics_lost_after_the_end", "finished", lose, cured=True),
    _damaged("done.json", "done_cut_off", "finished", cut_off),
    _folder_for("done.json", "finished"),
)

FLAGS = of_each(
    _damaged(
        "flags.txt",
        "flags_cut_off",
        "stopped",
        cut_off,
        says=[("flags.txt", "there")],
        cured=True,
    ),
    _damaged(
        "flags.txt", "flags_lost", "stopped", lose, says=["flags.txt"], cured=True
    ),
    _folder_for("flags.txt", "stopped"),
)

# These stand in the way of what the run writes; it resumes once they are gone.
IN_THE_WAY = of_each(
    *(
        lambda p, name=name: Case(
            f"a_folder_for_{name}",
            p,
            start="stopped",
            code=EITHER,
            says=[name.format(p=programs.PROGRAMS[p].name)],
            writes=None,
            **replace_by_folder(f"run/{name.format(p=programs.PROGRAMS[p].name)}"),
        )
        for name in ("speed.csv", "curves.png", "{p}.npz", ".lock", "run.json")
    ),
    lambda p: Case(
        "a_file_for_checkpoints",
        p,
        arrange=write("run/checkpoints", "no folder"),
        says=[("checkpoints", "not a run's folder")],
        cure=lambda place: (place.out / "checkpoints").unlink(),
    ),
)

WARM_START = [
    Case(
        f"cache_{label}",
        "train",
        ["--warm_start_epochs=1", "--warm_start_cache=warm", "--rounds=1"],
        arrange=lambda place, change=change: _spoil_cache(place, change),
        says=["warm/", ".npz"],
        writes=None,
        cure=lambda place: [path.unlink() for path in place.root.glob("warm/*.npz")],
        same=False,
    )
    for label, change in (
        ("cut_off", cut_off),
        ("empty", put("")),
        ("of_something_else", put("no weights")),
    )
] + [
    Case(
        "cache_a_file",
        "train",
        ["--warm_start_epochs=1", "--warm_start_cache=warm", "--rounds=1"],
        arrange=write("warm", "no folder"),
        code=EITHER,
        says=["warm"],
        writes=None,
        cure=lambda place: (place.root / "warm").unlink(),
        same=False,
    )
]


def _spoil_cache(place, change):
    flags = ["--warm_start_epochs=1", "--warm_start_cache=warm", "--rounds=1"]
    outcome = place.run(Case("fill", "train", [*flags, "--results_dir=other"]))
    assert outcome.code == 0, outcome
    (path,) = place.root.glob("warm/*.npz")
    path.write_bytes(change(path.read_bytes()))


@harness.params(METRICS)
def test_damaged_metrics_are_named(case, place):
    harness.try_case(case, place)


@harness.params(FINISHED)
def test_a_damaged_end_is_named(case, place):
    harness.try_case(case, place)


@harness.params(FLAGS)
def test_damaged_flags_are_named(case, place):
    harness.try_case(case, place)


@harness.params(IN_THE_WAY)
def test_what_is_in_the_way_is_named(case, place):
    harness.try_case(case, place)


@harness.params(WARM_START)
def test_a_damaged_warm_start_is_named(case, place):
    harness.try_case(case, place)
