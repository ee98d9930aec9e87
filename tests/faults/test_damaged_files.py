"""Files of a run that are lost, cut off or of another form: named, and left alone."""

from tests.faults import harness, programs
from tests.faults.arrangements import (
    change_text,
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


def _first_round(program):
    """The start of the row of round 1."""
    return f"{programs.PROGRAMS[program].name},1,"


def _of_metrics(label, change, start="stopped"):
    return lambda p: Case(
        f"metrics_{label}",
        p,
        start=start,
        says=["run/metrics.csv"],
        **(spoil if label in ("lost", "with_a_wrong_line") else harm)(
            "run/metrics.csv", change(p) if label in _BY_PROGRAM else change
        ),
    )


_BY_PROGRAM = {"with_a_word_for_a_round", "without_a_round", "of_another_method"}

METRICS = of_each(
    _of_metrics("lost", lose),
    _of_metrics("empty", put("")),
    _of_metrics("zeros", put(b"\0" * 500)),
    _of_metrics("not_utf8", lambda c: c + b"\xff\xfe,1\n"),
    _of_metrics("with_a_wrong_line", lambda c: c + b"what is this\n"),
    _of_metrics("without_its_columns", lambda c: c.partition(b"\n")[2]),
    _of_metrics(
        "with_a_column_too_many", lambda c: c + c.splitlines()[-1] + b",1,2,3\n"
    ),
    _of_metrics("with_a_row_twice", lambda c: c + c.splitlines()[2] + b"\n"),
    _of_metrics(
        "with_a_word_for_a_round",
        lambda p: change_text(
            lambda t: t.replace(
                _first_round(p), _first_round(p).replace(",1,", ",one,")
            )
        ),
    ),
    _of_metrics(
        "with_a_word_for_a_loss",
        lambda c: b"\n".join(
            [*c.splitlines()[:2], c.splitlines()[2] + b"x", *c.splitlines()[3:], b""]
        ),
    ),
    _of_metrics(
        "without_a_round",
        lambda p: change_text(
            lambda t: "".join(
                line
                for line in t.splitlines(keepends=True)
                if not line.startswith(_first_round(p))
            )
        ),
    ),
    lambda p: Case(
        "metrics_a_folder",
        p,
        start="stopped",
        code=EITHER,
        says=["metrics.csv"],
        **replace_by_folder("run/metrics.csv"),
    ),
)

# A finished run: nothing is run again, and nothing is taken for whole that is not.
FINISHED = of_each(
    lambda p: Case(
        "metrics_lost_after_the_end",
        p,
        start="finished",
        says=["run/metrics.csv"],
        **spoil("run/metrics.csv", lose),
    ),
    lambda p: Case(
        "done_empty",
        p,
        start="finished",
        says=["run/done.json"],
        **harm("run/done.json", put("")),
    ),
    lambda p: Case(
        "done_cut_off",
        p,
        start="finished",
        says=["run/done.json"],
        **harm("run/done.json", cut_off),
    ),
    lambda p: Case(
        "done_a_list",
        p,
        start="finished",
        says=["run/done.json"],
        **harm("run/done.json", put("[1, 2]\n")),
    ),
    lambda p: Case(
        "done_of_something_else",
        p,
        start="finished",
        says=["run/done.json"],
        **harm("run/done.json", put('{"colour": "red"}\n')),
    ),
    lambda p: Case(
        "done_not_utf8",
        p,
        start="finished",
        says=["run/done.json"],
        **harm("run/done.json", put(b'{"text": "\xff\xfe"}')),
    ),
    lambda p: Case(
        "done_a_folder",
        p,
        start="finished",
        code=EITHER,
        says=["done.json"],
        **replace_by_folder("run/done.json"),
    ),
)

FLAGS = of_each(
    lambda p: Case(
        "flags_not_utf8",
        p,
        start="stopped",
        says=["run/flags.txt"],
        **spoil("run/flags.txt", put(b"--seed=\xff\xfe\n")),
    ),
    lambda p: Case(
        "flags_empty",
        p,
        start="stopped",
        says=[("flags.txt", "--seed=(unset) there")],
        **spoil("run/flags.txt", put("")),
    ),
    lambda p: Case(
        "flags_cut_off",
        p,
        start="stopped",
        says=[("flags.txt", "there")],
        **spoil("run/flags.txt", cut_off),
    ),
    lambda p: Case(
        "flags_lost",
        p,
        start="stopped",
        says=["flags.txt"],
        **spoil("run/flags.txt", lose),
    ),
    lambda p: Case(
        "flags_a_folder",
        p,
        start="stopped",
        code=EITHER,
        says=["flags.txt"],
        **replace_by_folder("run/flags.txt"),
    ),
)

# These stand in the way of what the run writes; it goes on once they are gone.
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
