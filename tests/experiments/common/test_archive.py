"""Packed runs: what is read from them, and what is wrong with a pair of files."""

import gzip
import hashlib
import json
import os
import subprocess
import sys

import pytest

from experiments.common import archive, pack, results, unpack
from experiments.fedss import table_results
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError

RUN = ("omniglot_fedss_m5", 0)


@pytest.fixture
def folder(tmp_path):
    """Runs in folders."""
    for cell, seed, percent in (
        (*RUN, 50.0),
        ("omniglot_fedss_m5", 10, 52.0),
        ("omniglot_fedss_m5", 2, 51.0),
        ("omniglot_centralized", 0, 60.0),
    ):
        run_folders.write_run(tmp_path / "runs", cell, seed, percent)
    (tmp_path / "runs" / "warm_starts").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def packed(folder, tmp_path):
    """The same, packed."""
    assert pack.pack(folder, tmp_path / "packed") == 4
    return tmp_path / "packed"


def cell_folder(folder):
    return folder / RUN[0] / f"seed{RUN[1]}"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(call, *parts):
    with pytest.raises(InvalidInputError) as error:
        call()
    for part in parts:
        assert part in str(error.value), str(error.value)
    assert "\n" not in str(error.value)


# --- What is read -----------------------------------------------------------------


def told(results):
    """All that runs say, but where they are."""
    return [
        {name: value for name, value in vars(run).items() if name != "source"}
        for run in results.runs
    ]


def test_runs_are_the_same_from_both(folder, packed):
    assert sorted(contents(packed)) == ["runs.csv.gz", "runs.json"]
    ours, theirs = table_results.read(packed), table_results.read(folder)
    assert told(ours) == told(theirs) and len(ours.runs) == 4
    assert [run.seed for run in ours.runs] == [0, 0, 2, 10]
    assert [run.cell for run in ours.runs] == [run.cell for run in theirs.runs]
    assert list(ours.runs[1].flags) == list(theirs.runs[1].flags)


def test_the_rows_are_there_with_all_their_digits(folder, packed):
    text = gzip.decompress((packed / "runs.csv.gz").read_bytes()).decode()
    header, *lines = text.splitlines()
    metrics, speed = (
        (cell_folder(folder) / name).read_text().splitlines()
        for name in ("metrics.csv", "speed.csv")
    )
    assert header == f"cell,seed,{metrics[0]},{speed[0].removeprefix('method,round,')}"
    own = [
        f"{RUN[0]},{RUN[1]},{measured},{timed.split(',', 2)[2]}"
        for measured, timed in zip(metrics[1:], speed[1:], strict=True)
    ]
    assert own == [x for x in lines if x.startswith(f"{RUN[0]},{RUN[1]},")]
    runs = [tuple(line.split(",")[:2]) for line in lines]
    assert list(dict.fromkeys(runs)) == [
        ("omniglot_centralized", "0"),
        *(("omniglot_fedss_m5", seed) for seed in ("0", "2", "10")),
    ]


def test_the_same_runs_give_the_same_bytes(folder, packed, tmp_path):
    pack.pack(folder, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(packed)
    pack.pack(folder, packed)  # What is there is replaced.
    assert contents(tmp_path / "again") == contents(packed)


def test_what_all_runs_have_stands_once(packed):
    value = json.loads((packed / "runs.json").read_text())
    assert value["common"]["flags.txt"]["dataset"] == "omniglot"
    assert value["common"]["flags.txt"]["seed"] is None
    assert value["runs"][RUN[0]]["2"]["flags.txt"] == {
        "method": "fedss",
        "num_negatives": "5",
        "seed": "2",
    }
    assert "run.json" not in value["runs"][RUN[0]]["2"]


@pytest.mark.parametrize(
    "values",
    [
        [{"a": None}, {"a": None}],
        [{"a": None, "b": 1}, {"a": 2, "b": 1}],
        [{"a": 1}, {"a": 1.0}, {"a": True}],
        [{"a": {"b": 1, "c": {}}}, {"a": {"c": {"d": 2}}}],
        [{"a": {"b": 1}}, {"a": [1]}, {}],
        [{"z": 1, "a": [None, {"x": 1}]}],
        [{}, {}],
    ],
)
def test_documents_come_back(values):
    common, own = archive._share(values)
    merged = [archive._merge(common, mine) for mine in own]
    assert json.dumps(merged, sort_keys=True) == json.dumps(values, sort_keys=True)
    assert list(merged[0]) == list(values[0])


def test_runs_of_another_program_with_other_columns(tmp_path):
    kind = results.RunKind(program="leap", run_name=lambda flags: flags["method"])
    for seed, own in enumerate(({}, {"diversity": 0.25})):
        rows = [{"top1": 0.1}, {"top1": 0.5, **own}]
        run_folders.write_own_run(
            tmp_path / f"runs/leap/seed{seed}",
            "leap",
            "leap",
            rows,
            flags={"seed": seed},
            **({} if seed else {"metric": "top1"}),
        )
        if seed:
            (tmp_path / f"runs/leap/seed{seed}/data.json").write_text('{"data": {}}')
    pack.pack(tmp_path / "runs", tmp_path / "packed")
    runs, others = (
        [
            results.read_run(source, kind)
            for source in results.find_cells(tmp_path / name)["leap"]
        ]
        for name in ("runs", "packed")
    )
    assert [run.rows for run in runs] == [run.rows for run in others]
    assert others[1].rows[1]["diversity"] == 0.25 and "diversity" not in runs[0].rows[1]
    assert [run.origin for run in others] == [None, {"data": {}}]


# --- What cannot be packed --------------------------------------------------------


def test_what_is_not_packed(folder, packed, tmp_path):
    def packing(source, target):
        return lambda: pack.pack(source, target)

    out = tmp_path / "out"
    refused(packing(packed, out), "packed is packed already")
    refused(packing(folder, folder), "holds folders of runs")
    refused(packing(tmp_path / "nowhere", out), "nowhere is no folder")
    refused(packing(folder / "warm_starts", out), "holds no run")
    refused(packing(folder, ""), "--output_dir= is empty")
    (cell_folder(folder) / "done.json").rename(tmp_path / "done.json")
    refused(packing(folder, out), "omniglot_fedss_m5/seed0 is not done")
    assert not out.exists()


@pytest.mark.parametrize(
    "name, old, new, part",
    [
        ("metrics.csv", "fedss,2,", "fedss,3,", "metrics.csv:4: found round 3"),
        ("metrics.csv", ",0.5,", ",half,", "metrics.csv:4: loss is 'half'"),
        ("speed.csv", "fedss,4,", "fedss,4,,", "speed.csv:6: 6 cells, expected 5"),
        ("speed.csv", "round_seconds", "loss", "speed.csv:1: 'loss' is the name of"),
        ("metrics.csv", "num_clients", "seed", "metrics.csv:1: 'seed' is the name"),
        ("speed.csv", "\nfedss,4,1.5,,0.5", "", "has 4 rows, but"),
        ("flags.txt", "--seed", "seed", "flags.txt:12: found 'seed=0'"),
        ("run.json", "{", "[", "run.json:1: not JSON"),
    ],
)
def test_damaged_runs_are_not_packed(folder, tmp_path, name, old, new, part):
    path = cell_folder(folder) / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    refused(lambda: pack.pack(folder, tmp_path / "out"), str(path.parent), part)
    assert not list(tmp_path.glob("out/*"))


# --- Damaged archives -------------------------------------------------------------


def change_rows(packed, change, signs=True):
    """Changes runs.csv, and what runs.json knows of it."""
    text = change(gzip.decompress((packed / "runs.csv.gz").read_bytes()).decode())
    (packed / "runs.csv.gz").write_bytes(gzip.compress(text.encode()))
    if signs:
        digest = hashlib.sha256(text.encode()).hexdigest()
        change_json(packed, lambda value: value.update(sha256=digest))


def change_json(packed, change):
    value = json.loads((packed / "runs.json").read_text())
    change(value)
    (packed / "runs.json").write_text(json.dumps(value))


def replace(old, new):
    def change(text):
        assert old in text
        return text.replace(old, new, 1)

    return change


@pytest.mark.parametrize("name", ["runs.csv.gz", "runs.json"])
def test_half_of_a_pair(packed, name):
    (packed / name).unlink()
    refused(lambda: table_results.read(packed), f"{name} is missing, though runs.")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda content: content[:5],
        lambda content: b"cell,seed\n",
        lambda content: content[:200] + bytes(50) + content[250:],
    ],
)
def test_a_damaged_gzip(packed, damage):
    path = packed / "runs.csv.gz"
    path.write_bytes(damage(path.read_bytes()))
    refused(lambda: table_results.read(packed), "runs.csv.gz is damaged: ")


M5 = f"{RUN[0]},0,fedss"


@pytest.mark.parametrize(
    "change, part",
    [
        (replace("seed", "seeds"), "runs.csv.gz:1: the columns are not those that"),
        (replace(",loss", ",round"), "runs.csv.gz:1: two columns are called 'round'"),
        (replace("\n", "\n\n"), "runs.csv.gz:2: 0 cells, expected 20 as in the header"),
        (lambda text: "", "runs.csv.gz:1: the file is empty"),
        # The second run begins in line 7.
        (replace(f"{M5},2", f"{M5},3"), "runs.csv.gz:9: found round 3, expected 2"),
        (replace(M5, f"{RUN[0]},0,moco"), "runs.csv.gz:7: found the method 'moco'"),
        (replace(M5, f"{RUN[0]},1,fedss"), "runs.csv.gz:7: a row of omniglot_fedss_m5"),
        (replace(f"{M5},1,1.0", f"{M5},1,one"), "runs.csv.gz:8: loss is 'one'"),
        (replace(f"{M5},4,0.25,,0.5", f"{M5},4,0.25,,0.4"), "gz:11: top1 is 40 %, but"),
        (replace(f"{M5},4,0.25,,0.5", f"{M5},4,0.25,,"), "gz:11: the run is done, but"),
        (
            lambda text: "".join(
                x for x in text.splitlines(True) if not x.startswith(f"{M5},4")
            ),
            "runs.csv.gz:10: the last round is 3",
        ),
        (
            lambda text: "".join(
                x for x in text.splitlines(True) if not x.startswith(f"{RUN[0]},2,")
            ),
            "omniglot_fedss_m5 with seed 2 has no row in",
        ),
    ],
)
def test_damaged_rows_are_named(packed, change, part):
    change_rows(packed, change)
    refused(lambda: table_results.read(packed), part)


def test_bytes_that_are_no_text(packed):
    (packed / "runs.csv.gz").write_bytes(gzip.compress(b"cell,seed\n\xff\n"))
    refused(lambda: table_results.read(packed), "runs.csv.gz:2: this is not UTF-8")


def test_files_of_two_archives(packed):
    # A time: nothing else would tell.
    change_rows(packed, replace(",1.5,,0.5", ",1.25,,0.5"), signs=False)
    refused(lambda: table_results.read(packed), "is not the file that", "written with")


def without_outcome(value):
    value["common"].pop("done.json")
    value["runs"]["omniglot_centralized"]["0"].pop("done.json")


@pytest.mark.parametrize(
    "change, part",
    [
        (lambda v: v.update(format=2), "runs.json: format is 2, expected 1"),
        (lambda v: v.pop("runs"), "runs.json: runs must be a JSON object"),
        (lambda v: v.update(columns=[]), "columns must be a JSON object"),
        (lambda v: v["columns"].pop("speed.csv"), "must have those of speed.csv"),
        (lambda v: v["runs"].update(a={"b": {}}), "a must be a JSON object of runs by"),
        (lambda v: v["runs"].update(a={"0": {}}), "a with seed 0 has no row in"),
        (
            lambda v: v["runs"][RUN[0]].pop("2"),
            "a row of omniglot_fedss_m5 with seed 2",
        ),
        (without_outcome, "omniglot_centralized with seed 0 has no done.json"),
        (
            lambda v: v["runs"][RUN[0]]["2"]["flags.txt"].pop("seed"),
            "omniglot_fedss_m5/seed2/flags.txt: --seed is None, expected a JSON string",
        ),
        (
            lambda v: v["runs"][RUN[0]]["2"]["flags.txt"].update(seed="3"),
            "seed2/flags.txt: --seed=3 in the folder seed2",
        ),
        (
            lambda v: v["common"]["done.json"].update(num_classes=0),
            "runs.json: omniglot_centralized/seed0/done.json: num_classes is 0",
        ),
        (
            lambda v: v["common"].update({"run.json": []}),
            "seed0/run.json: expected a JSON object",
        ),
    ],
)
def test_damaged_documents_are_named(packed, change, part):
    change_json(packed, change)
    refused(lambda: table_results.read(packed), "runs.json", part)


def test_a_json_that_is_none(packed):
    (packed / "runs.json").write_text("{")
    refused(lambda: table_results.read(packed), "runs.json:1: not JSON")


def test_folders_beside_an_archive(packed):
    run_folders.write_run(packed, "omniglot_pos_only", 0, 40.0)
    refused(lambda: table_results.read(packed), "runs.json", "omniglot_pos_only")


def test_what_would_not_come_back_is_not_written(folder, tmp_path, monkeypatch):
    def other_rows(*args):
        return [[str(x).replace("1.5", "1.4") for x in row] for row in rows(*args)]

    rows = archive._rows
    monkeypatch.setattr(archive, "_rows", other_rows)
    out = tmp_path / "out"
    refused(lambda: pack.pack(folder, out), "would not give back this run as it is")
    assert not list(out.iterdir())


def test_what_is_unpacked_is_what_was_packed(folder, packed, tmp_path):
    assert unpack.unpack(packed, tmp_path / "again") == 4
    ours, theirs = table_results.read(tmp_path / "again"), table_results.read(folder)
    assert told(ours) == told(theirs)
    pack.pack(tmp_path / "again", tmp_path / "packed_again")
    assert contents(tmp_path / "packed_again") == contents(packed)


def test_runs_that_are_not_done_may_be_left_out(folder, tmp_path):
    run_folders.write_run(folder, "omniglot_pos_only", 0, 40.0, rounds_done=2)
    with pytest.raises(InvalidInputError, match="is not done"):
        pack.pack(folder, tmp_path / "packed")
    assert pack.pack(folder, tmp_path / "packed", only_done=True) == 4
    assert len(table_results.read(tmp_path / "packed").runs) == 4


def test_nothing_is_replaced(folder, packed, tmp_path):
    before = contents(cell_folder(folder))
    with pytest.raises(InvalidInputError, match="is there already"):
        unpack.unpack(packed, folder)
    assert contents(cell_folder(folder)) == before
    with pytest.raises(
        InvalidInputError, match=r"holds no runs\.csv\.gz and runs\.json"
    ):
        unpack.unpack(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("cell", ["../../x", "/tmp/x", "a/../b", "a//b", "..", "."])
def test_nothing_is_written_outside_of_the_folder(packed, tmp_path, cell):
    path = packed / "runs.json"
    text = path.read_text().replace('"omniglot_centralized": {', f'"{cell}": {{')
    path.write_text(text)
    before = files_in(tmp_path)
    refused(
        lambda: unpack.unpack(packed, tmp_path / "a" / "b"),
        f"runs.json: the cell '{cell}' lies outside of its folder",
    )
    assert files_in(tmp_path) == before and not (tmp_path / "a").exists()


@pytest.mark.parametrize("part", ["common", "columns"])
def test_files_with_other_names_are_not_written(packed, tmp_path, part):
    path = packed / "runs.json"
    value = json.loads(path.read_text())
    value[part]["../../x"] = {} if part == "common" else ["method", "round"]
    path.write_text(json.dumps(value))
    before = files_in(tmp_path)
    refused(lambda: unpack.unpack(packed, tmp_path / "a" / "b"), "../../x", "expected")
    assert files_in(tmp_path) == before


def test_links_and_files_that_are_there_are_let_be(packed, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    (out / RUN[0]).symlink_to(tmp_path / "elsewhere")
    refused(lambda: unpack.unpack(packed, out), f"{out / RUN[0]} is a link")
    (out / RUN[0]).unlink()
    (out / RUN[0] / "seed0").mkdir(parents=True)
    (out / RUN[0] / "seed0" / "notes.txt").write_text("mine")
    before = files_in(tmp_path)
    refused(lambda: unpack.unpack(packed, out), "seed0 is there already")
    assert files_in(tmp_path) == before
    assert not any((tmp_path / "elsewhere").iterdir())


def test_what_unpacks_to_too_much_is_not_unpacked(packed, tmp_path):
    path = packed / "runs.csv.gz"
    path.write_bytes(gzip.compress(bytes(65 * 2**20), 9, mtime=0))
    refused(lambda: unpack.unpack(packed, tmp_path / "out"), "holds more than 64 MiB")
    assert not (tmp_path / "out").exists()


def test_the_program(folder, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "experiments.common.pack",
            f"--results_dir={folder}",
            f"--output_dir={tmp_path / 'new' / 'out'}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"4 runs of {folder} are packed: ")
    assert len(table_results.read(tmp_path / "new" / "out").runs) == 4
