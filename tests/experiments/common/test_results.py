"""The reader of results folders: what is damaged, and what does not belong together."""

import json
import pathlib
import re

import pytest

from experiments.common import results, sources
from tests.experiments import run_folders
from tests.refusals import refused
from tff_fedss.errors import InvalidInputError, RunStoppedError

KIND = results.RunKind(
    paper="partial_fc",
    run_name=lambda flags: f"{flags['sampling']}_{flags['sample_rate']}",
    cell_flags=frozenset({"sampling", "sample_rate"}),
    has_own_data=lambda flags: flags.get("dataset") == "generated",
)
ROWS = (
    {"tar_at_far": 0.01},
    {"steps": 50, "loss": 4.0},
    {"steps": 100, "loss": 3.0, "tar_at_far": 0.5},
)


def write(path, seed=0, rows=ROWS, flags=None, origin=None, **options):
    folder = run_folders.write_own_run(
        path / f"seed{seed}",
        "pprn_0.1",
        rows,
        flags={"seed": seed, **(flags or {})},
        **options,
    )
    if origin is not None:
        (folder / "data.json").write_text(json.dumps(origin))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path)


def read(folder):
    return results.read_run(folder, KIND)


def test_a_whole_run(folder):
    run = read(folder)
    assert (run.name, run.seed, run.is_done) == ("pprn_0.1", 0, True)
    assert (run.num_rounds, run.rounds_done) == (2, 2)
    assert run.rows[1] == {"method": "pprn_0.1", "round": 1, "steps": 50, "loss": 4.0}
    assert len(run.speed) == 3 and run.result["tar_at_far"] == 0.5
    assert run.description["versions"]["git_commit"] == "c0ffee"
    assert run.origin is None


def test_a_run_that_has_just_begun(folder):
    for name in ("metrics.csv", "speed.csv", "done.json"):
        (folder / name).unlink()
    run = read(folder)
    assert not run.is_done and run.rows == [] and run.rounds_done == 0


def test_which_runs_a_folder_has(folder, tmp_path):
    killed = tmp_path / "seed7"
    killed.mkdir()
    (killed / ".flags.txt.tmp").write_text("--see")
    (tmp_path / "seed0.log").touch()
    write(tmp_path, 10)
    write(tmp_path, 2)
    write(tmp_path / "a" / "b", 1)
    write(tmp_path, "00", flags={"seed": 0})  # A copy of another name.
    found = sources.find_cells(tmp_path)
    names = {cell: [run.path.name for run in own] for cell, own in found.items()}
    assert names == {".": ["seed0", "seed2", "seed10"], "a/b": ["seed1"]}


def replace(old, new):
    def damage(path):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return damage


def put(content):
    def damage(path):
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    return damage


def cut(length):
    return lambda path: path.write_bytes(path.read_bytes()[:length])


def make_folder(path):
    path.unlink(missing_ok=True)
    path.mkdir()


FLAGS, METRICS, SPEED, DONE = "flags.txt", "metrics.csv", "speed.csv", "done.json"
DAMAGES = [
    # File, what happens to it, what the line says.
    (FLAGS, pathlib.Path.unlink, "flags.txt is missing"),
    (FLAGS, cut(-1), "flags.txt:7: the file is empty or ends within a line"),
    (FLAGS, replace("--seed", "seed"), "flags.txt:3: found 'seed=0', expected"),
    (FLAGS, replace("--seed", "--rounds"), "flags.txt:6: found '--rounds="),
    (FLAGS, replace("--seed=0", "--seed=1"), "--seed=1 in the folder seed0"),
    (FLAGS, make_folder, "flags.txt cannot be read: Is a directory"),
    (METRICS, pathlib.Path.unlink, "metrics.csv is missing: restore it"),
    (METRICS, cut(-5), "metrics.csv:4: the file is empty or ends within a line"),
    (METRICS, put(b"method,round\n\xff\n"), "metrics.csv:2: this is not UTF-8"),
    (METRICS, replace("round", "circle"), "metrics.csv:1: expected the columns"),
    (METRICS, replace(",50,", ",50,7,"), "metrics.csv:3: found 6 fields; the header"),
    (METRICS, replace("pprn_0.1,1", "full,1"), "metrics.csv:3: found the method"),
    (METRICS, replace("0.1,1", "0.1,4"), "metrics.csv:3: found round 4, expected 1"),
    (METRICS, replace("4.0", "four"), "metrics.csv:3: loss is 'four', expected a"),
    (METRICS, replace("4.0", "nan"), "loss is 'nan', expected a finite number"),
    (METRICS, replace("pprn_0.1,2,0.5,100,3.0\n", ""), "the last round is 1, but"),
    (SPEED, pathlib.Path.unlink, "speed.csv is missing: restore it"),
    (DONE, cut(20), "done.json:1: not JSON"),
    (DONE, put(b'{"a": NaN}'), "done.json:1: not JSON: found NaN, expected finite"),
]


@pytest.mark.parametrize("file, damage, message", DAMAGES)
def test_damage_is_named(folder, file, damage, message):
    damage(folder / file)
    with refused(re.escape(message)) as error:
        read(folder)
    assert str(folder) in str(error.value)


def test_what_cannot_be_read_is_the_machines_fault(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
    with pytest.raises(RunStoppedError, match="flags.txt cannot be read: Permission"):
        read(folder)


def test_half_a_row_of_a_killed_run_does_not_count(folder):
    (folder / "done.json").unlink()
    (folder / "speed.csv").unlink()
    cut(-5)(folder / "metrics.csv")
    assert read(folder).rounds_done == 1


def test_a_path_may_hold_odd_characters(tmp_path):
    # All but line feeds, which a run refuses.
    path = "a\x0b\x85\u2028=--b"
    assert read(write(tmp_path, flags={"data_dir": path})).flags["data_dir"] == path


# --- Runs together ----------------------------------------------------------------


def cell(tmp_path, *options):
    return [read(write(tmp_path, seed, **o)) for seed, o in enumerate(options)]


def assert_differ(cells, *parts):
    with pytest.raises(InvalidInputError) as error:
        results.check_comparable(cells)
    for part in parts:
        assert part in str(error.value), str(error.value)


def with_data(count, digest="a"):
    return {"data": {"images": count}, "pretrained": {"sha256": digest}}


@pytest.mark.parametrize(
    "options",
    [
        (),
        ({},),
        ({}, {}, {}),
        ({}, {"flags": {"data_dir": "/elsewhere"}}),
        ({}, {"flags": {"deterministic": "true"}}),
        ({"flags": {"pretrained": "a"}}, {"flags": {"pretrained": "b"}}),
        ({"origin": with_data(7)}, {}, {"origin": with_data(7)}),
        ({"origin": {}}, {"origin": with_data(7)}),
    ],
)
def test_runs_of_a_cell(tmp_path, options):
    runs = cell(tmp_path, *options)
    results.check_comparable({"a": runs})
    results.check_comparable({str(run.seed): [run] for run in runs})


@pytest.mark.parametrize(
    "second, parts",
    [
        ({"flags": {"learning_rate": 0.1}}, ["--learning_rate=0.1", "=0.001"]),
        (
            {"flags": {"dataset": "faces", "margin": "x"}},
            ["=faces --margin=x", "(unset)"],
        ),
        ({"rows": (*ROWS, {"steps": 150, "a": 1})}, ["--rounds=3", "--rounds=2"]),
        ({"flags": {"pretrained": "a"}}, ["--pretrained=a", "--pretrained=(unset)"]),
        ({"origin": with_data(8)}, ["data.json", "--data_dir", "another images"]),
        ({"origin": with_data(7, "b")}, ["--pretrained", "another sha256"]),
    ],
)
def test_what_is_not_of_a_cell_is_not_of_a_table_either(tmp_path, second, parts):
    runs = cell(tmp_path, {"origin": with_data(7)}, {}, second)
    names = [f"{tmp_path}/seed2", f"{tmp_path}/seed0"]
    assert_differ({"a": runs}, *names, *parts)
    assert_differ({str(run.seed): [run] for run in runs}, *names, *parts)


def test_cells_of_a_table(tmp_path):
    first, second = cell(
        tmp_path, {}, {"flags": {"num_strata": 4, "rounds_per_evaluation": 7}}
    )
    other = results.Run(
        **{**vars(second), "flags": {**second.flags, "sampling": "all_random"}}
    )
    assert_differ({"a": [first, other]}, "--sampling=all_random", "=pprn")
    cells = {"a": [first], "b": [other]}
    assert_differ(cells, "--num_strata=4, but")
    results.check_comparable(cells, {"num_strata"})


def test_data_that_are_drawn_from_the_seed(tmp_path):
    own = {"dataset": "generated"}
    runs = cell(
        tmp_path,
        {"flags": own, "origin": {"data": {"sum": 1}}},
        {"flags": own, "origin": {"data": {"sum": 2}}},
    )
    results.check_comparable({"a": runs})
    again = read(write(tmp_path / "b", flags=own, origin={"data": {"sum": 3}}))
    assert_differ({"a": runs, "b": [again]}, "another sum")
