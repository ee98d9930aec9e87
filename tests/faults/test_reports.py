"""Reports and tables: runs that do not go together, and runs that are damaged."""

import json
import shutil

import numpy as np

from tests.experiments import run_folders
from tests.faults import harness
from tests.faults.arrangements import all_of, cut_off, make_folder, put, write
from tests.faults.harness import EITHER, Case

# --- Reports of central runs ------------------------------------------------------

# Report: the program of its runs, and the folders of two of them. The runs of
# rf_softmax_report are named by their samplers, of which it shows one run each.
_CELLS = {
    "rf_softmax_report": ("rf_softmax", ("runs/rff", "runs/uniform")),
    "partial_fc_report": ("partial_fc", ("runs/pprn/seed0", "runs/pprn/seed1")),
    "leap_report": ("leap", ("runs/mini/leap/seed0", "runs/mini/leap/seed1")),
    "moco_report": ("moco", ("runs/a_gamma0/seed0", "runs/a_gamma0/seed1")),
}


def copy_run(place, program, folder, **flags):
    """Copies the finished run of a program, as one with other flags."""
    target = place.root / folder
    shutil.copytree(place.templates.get(program, "finished") / harness.RUN, target)
    names = dict(
        line[2:].split("=", 1)
        for line in (target / "flags.txt").read_text().splitlines()
    )
    names.update(flags)
    text = "".join(f"--{name}={value}\n" for name, value in names.items())
    (target / "flags.txt").write_text(text)
    described = json.loads((target / "run.json").read_text())
    described["flags"] = names
    (target / "run.json").write_text(json.dumps(described))
    if "sampler" in flags:
        for path in target.glob("*.csv"):
            renamed = path.read_text().replace("\nrff,", f"\n{flags['sampler']},")
            path.write_text(renamed)


def two_runs(report, **second):
    """Arranges two runs; the second has flags of its own."""
    program, folders = _CELLS[report]
    own = {"sampler": "uniform"} if program == "rf_softmax" else {"seed": "1"}

    def arrange(place):
        copy_run(place, program, folders[0])
        copy_run(place, program, folders[1], **{**own, **second})

    return arrange


def _where(report):
    own = [] if report in ("leap_report", "moco_report") else ["--name=it"]
    return ["--results_dir=runs", "--output_dir=out", *own]


def edit(path, content):
    """Changes a file of the first run."""
    return lambda place: (place.root / path).write_bytes(
        content((place.root / path).read_bytes())
    )


MIXED = [
    Case(
        f"another_{flag}",
        report,
        _where(report),
        arrange=two_runs(report, **{flag: value}),
        says=[f"--{flag}=", value, _CELLS[report][1][1]],
    )
    for report, flag, value in (
        ("rf_softmax_report", "task", "extreme"),
        ("rf_softmax_report", "learning_rate", "77.0"),
        ("rf_softmax_report", "batch_size", "77"),
        ("rf_softmax_report", "rounds", "7"),
        ("partial_fc_report", "dataset", "omniglot"),
        ("partial_fc_report", "learning_rate", "77.0"),
        ("partial_fc_report", "num_classes", "77"),
        ("partial_fc_report", "rounds", "7"),
        ("leap_report", "dataset", "cifar10"),
        ("leap_report", "learning_rate", "77.0"),
        ("leap_report", "num_train", "30"),
        ("leap_report", "rounds", "7"),
        ("moco_report", "dataset", "cifar100"),
        ("moco_report", "learning_rate", "77.0"),
        ("moco_report", "num_train", "20"),
        ("moco_report", "epochs", "7"),
    )
]

TOGETHER = [
    Case(
        label,
        report,
        _where(report),
        arrange=two_runs(report, **flags),
        code=0,
        same=False,
    )
    for report in _CELLS
    for label, flags in (("two_runs", {}), ("data_moved", {"data_dir": "/elsewhere"}))
    # Generated identities have no folder.
    if not (report == "partial_fc_report" and flags)
]

DAMAGED = [
    Case(
        label,
        report,
        _where(report),
        arrange=all_of(two_runs(report), *more(folders[0])),
        code=code,
        says=[says.format(folders[0])],
    )
    for report, (_, folders) in _CELLS.items()
    for label, more, code, says in (
        (
            "flags_not_utf8",
            lambda f: [edit(f"{f}/flags.txt", lambda c: c + b"\xff\xfe\n")],
            2,
            "{}/flags.txt",
        ),
        (
            "done_cut_off",
            lambda f: [edit(f"{f}/done.json", lambda c: c[:9])],
            2,
            "{}/done.json",
        ),
        (
            "done_not_utf8",
            lambda f: [edit(f"{f}/done.json", put(b'{"\xff": 1}'))],
            2,
            "{}/done.json",
        ),
        (
            "done_empty",
            lambda f: [edit(f"{f}/done.json", put(b""))],
            2,
            "{}/done.json",
        ),
        *(
            (
                f"metrics_{kind}",
                lambda f, change=change: [edit(f"{f}/metrics.csv", change)],
                2,
                "{}/metrics.csv",
            )
            for kind, change in (
                ("not_utf8", lambda c: c + b"\xff\xfe,3\n"),
                ("with_a_word", lambda c: c.replace(b",1,", b",one,", 1)),
                ("zeros", put(b"\0" * 99)),
                ("without_columns", lambda c: c.partition(b"\n")[2]),
            )
        ),
    )
]

NOTHING = [
    case
    for report in _CELLS
    for case in (
        Case("no_results_dir", report, ["--output_dir=out"], says=["--results_dir"]),
        Case("no_output_dir", report, ["--results_dir=runs"], says=["--output_dir"]),
        Case("no_runs", report, _where(report), says=["--results_dir=runs"]),
        Case(
            "an_empty_folder",
            report,
            _where(report),
            arrange=make_folder("runs"),
            says=["--results_dir=runs"],
        ),
        Case(
            "a_file_for_runs",
            report,
            _where(report),
            arrange=write("runs", "Dear"),
            says=["runs"],
        ),
        Case(
            "a_file_for_the_output",
            report,
            _where(report),
            arrange=all_of(two_runs(report), write("out", "Dear")),
            code=EITHER,
            says=["out"],
        ),
        Case(
            "a_device_for_the_output",
            report,
            [*_where(report), "--output_dir=/dev/null/x"],
            arrange=two_runs(report),
            code=EITHER,
            says=["/dev/null"],
        ),
        Case(
            "files_of_100_bytes_at_most",
            report,
            _where(report),
            arrange=two_runs(report),
            code=1,
            says=["out"],
            limits={"FSIZE": 100},
            writes=["out*"],
        ),
    )
]

DAMAGED += [
    Case(
        "losses_cut_off",
        "moco_report",
        _where("moco_report"),
        arrange=all_of(
            two_runs("moco_report"), edit("runs/a_gamma0/seed1/losses.npz", cut_off)
        ),
        says=["runs/a_gamma0/seed1/losses.npz"],
    ),
    Case(
        "losses_of_nan",
        "moco_report",
        _where("moco_report"),
        arrange=all_of(
            two_runs("moco_report"),
            lambda place: np.savez(
                place.root / "runs/a_gamma0/seed1/losses.npz",
                **{f: np.full(9, np.nan) for f in ("plain", "clustered", "filtered")},
            ),
        ),
        says=["runs/a_gamma0/seed1/losses.npz"],
    ),
    Case(
        "an_accuracy_of_nan",
        "moco_report",
        _where("moco_report"),
        arrange=all_of(
            two_runs("moco_report"),
            write("runs/a_gamma0/seed1/done.json", '{"linear_accuracy": NaN}'),
        ),
        says=["runs/a_gamma0/seed1/done.json"],
    ),
]

# --- Tables of the paper ----------------------------------------------------------

_TABLE = ["--table=1", "--results_dir=runs", "--output_dir=out"]


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
        "report",
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
    Case("no_runs", "report", _TABLE, says=["runs"]),
    Case("nothing_to_report", "report", [], says=["--table"]),
    Case("an_unknown_table", "report", ["--table=9"], says=["--table=9"]),
    Case("an_unknown_figure", "report", ["--figures=99"], says=["--figures"]),
    Case("a_word_for_a_figure", "report", ["--figures=eight"], says=["--figures"]),
    Case(
        "a_figure_to_a_device",
        "report",
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


@harness.params(MIXED)
def test_runs_that_do_not_go_together_are_refused(case, place):
    harness.try_case(case, place)


@harness.params(TOGETHER)
def test_runs_that_go_together_are_reported(case, place):
    harness.try_case(case, place)


@harness.params(DAMAGED)
def test_a_damaged_run_is_named(case, place):
    harness.try_case(case, place)


@harness.params(NOTHING)
def test_bad_flags_of_a_report_are_named(case, place):
    harness.try_case(case, place)


@harness.params(TABLE)
def test_a_table_of_other_runs_is_refused(case, place):
    harness.try_case(case, place)


def test_a_table_says_what_was_run(place):
    """Command, seeds and rounds are those of the runs, not the published ones."""
    run_folders.write_table(
        place.root / "runs", {_CELL: (50.0, 52.0)}, rounds=6, rounds_per_evaluation=3
    )
    outcome = place.run(Case("said", "report", _TABLE))
    assert outcome.code == 0, outcome
    text = (place.root / "out/table1.md").read_text()
    (seeds,) = (x for x in text.splitlines() if x.startswith("- Seeds:"))
    (rounds,) = (x for x in text.splitlines() if x.startswith("- Rounds:"))
    assert seeds.startswith(f"- Seeds: 0, 1 in {_CELL}; none yet in "), seeds
    assert "6" in rounds, rounds
