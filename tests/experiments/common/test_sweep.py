"""Runs a small table of glyphs in processes of its own, as a user would."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from experiments.common import cells, jobs
from experiments.common import sweep as run_table
from experiments.fedss import run_config
from tests import waiting
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError

COMMON = """--dataset=glyphs
--num_classes=40
--clients_per_round=2
--warm_start_epochs=0
--rounds_per_evaluation=2
--rounds_per_checkpoint=1
"""


KEY = "1", "mini"
TABLE = cells.tables_of("fedss")[KEY]


def jobs_of(folder, seed, results_dir):
    return run_table._jobs(
        KEY, cells.of_flagfiles(TABLE, folder), None, [seed], results_dir
    )


@pytest.fixture(scope="module")
def flagfiles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flagfiles")
    for name, own in {
        "glyphs_fedss_m10": "--method=fedss\n--num_negatives=10\n--rounds=3\n",
        "glyphs_fedss_m5": "--method=fedss\n--num_negatives=5\n--rounds=3\n",
        # n is less than that.
        "glyphs_neg_only_m41": "--method=neg_only\n--num_negatives=41\n--rounds=3\n",
    }.items():
        (folder / f"{name}.flags").write_text(f"# {name}\n{COMMON}{own}")
    return folder


def command(flagfiles, results_dir, *flags):
    return [
        *(sys.executable, "-P", "-m", "experiments.common.sweep", "1"),
        *(f"--flagfiles={flagfiles}", f"--results_dir={results_dir}", "--seeds=0"),
        *flags,
    ]


def run(*arguments):
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=waiting.LIMIT,
    )


@pytest.fixture(scope="module")
def finished(flagfiles, tmp_path_factory):
    """The outcome of the command, and its results folder."""
    results_dir = tmp_path_factory.mktemp("results")
    return run(flagfiles, results_dir, "--workers=2"), results_dir


def test_a_failed_cell_is_reported_and_stops_no_other(finished):
    outcome, results_dir = finished
    assert outcome.returncode == 1
    assert "FAILED: glyphs_neg_only_m41 seed 0" in outcome.stderr
    assert "--num_negatives=41 is more than" in outcome.stderr
    assert "2 of 3 runs are done." in outcome.stdout
    for cell in ("glyphs_fedss_m5", "glyphs_fedss_m10"):
        done = json.loads((results_dir / cell / "seed0" / "done.json").read_text())
        assert done["metric"] == "top1"
        assert f"{cell} seed 0: done" in outcome.stdout
    # m5 before m10.
    assert outcome.stdout.index("m5 seed") < outcome.stdout.index("m10 seed")
    assert (results_dir / "table1.md").exists()


def test_what_is_done_is_not_run_again(finished, flagfiles):
    _, results_dir = finished
    paths = [*results_dir.glob("*/seed0/metrics.csv")]
    before = {path: path.stat().st_mtime_ns for path in paths}
    assert len(before) == 2
    outcome = run(flagfiles, results_dir, "--cells=*fedss*")
    assert outcome.returncode == 0, outcome.stderr
    assert "2 of 2 runs are done." in outcome.stdout
    assert {path: path.stat().st_mtime_ns for path in paths} == before


def test_status_runs_nothing(flagfiles, tmp_path):
    outcome = run(flagfiles, tmp_path / "results", "--status")
    assert outcome.returncode == 0
    assert outcome.stdout.strip() == "0 of 3 runs are done."
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_table_leaves_runs_that_go_on(flagfiles, tmp_path, number):
    long = tmp_path / "flagfiles"
    long.mkdir()
    text = (flagfiles / "glyphs_fedss_m5.flags").read_text()
    text = text.replace("--rounds=3", "--rounds=100000")
    (long / "long.flags").write_text(text + "\n--runtime=native\n")
    results_dir = tmp_path / "results"
    with subprocess.Popen(
        command(long, results_dir), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        checkpoints = "long/seed0/checkpoints/fedss/round_?.npz"
        waiting.wait_until(lambda: list(results_dir.glob(checkpoints)), process)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2  # The run and TFF's worker.
        os.kill(process.pid, number)
        process.wait(timeout=waiting.LIMIT)
    _, alive = psutil.wait_procs(children, timeout=waiting.LIMIT)
    assert not alive
    status = run(long, results_dir, "--status").stdout
    assert status.startswith("0 of 1 runs are done.\n  long seed 0: round ")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["5"], "of fedss, one of 1, 2, 3, 4, figure6, long, .*; found 5"),
        ([], "one of 1, 2, 3, 4, figure6, .*learning_rate; found none"),
        (["1", "2"], "found 1 2"),
        (["leap/2"], "of leap, one of 1, noise, diversity; found leap/2"),
        (["glove/1"], "a PAPER of fedss, rf_softmax, partial_fc, leap, moco; found gl"),
    ],
)
def test_which_table_must_be_said(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        run_table._table(run_table.Config(), arguments)


@pytest.mark.parametrize(
    "patterns, seeds, message",
    [
        (["nothing*"], ["0"], "nothing\\* matches none of glyphs_fedss_m5, glyphs_fe"),
        (None, ["0", "a"], "--seeds=0,a must be whole numbers"),
        (None, [], "--seeds= must be"),
        (None, ["0", "1" + 12 * "0"], "--seeds=0,1000000000000 must be at most 2147"),
        (None, ["1", "01"], "--seeds=1,01 has a seed twice"),
    ],
)
def test_bad_cells_and_seeds(flagfiles, tmp_path, patterns, seeds, message):
    table = cells.of_flagfiles(TABLE, flagfiles)
    with pytest.raises(InvalidInputError, match=message):
        run_table._jobs(KEY, table, patterns, run_table._seeds(seeds, table), tmp_path)


@pytest.mark.parametrize(
    "text, message",
    [
        ("--rounds=ten\n", "x.flags: --rounds=ten is no whole number"),
        ("--dataset=cats\n", "x.flags: there is no --dataset=cats with --task=None"),
        ("--task=retrieval\n", "no --dataset=glyphs with --task=retrieval"),
        ("rounds 3\n", "x.flags:1: found 'rounds 3', expected --name=value"),
        ("# A cell.\n\n--rounds==\n--2 3\n", "x.flags:4: found '--2 3'"),
    ],
)
def test_bad_flagfiles(tmp_path, text, message):
    (tmp_path / "x.flags").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        jobs_of(tmp_path, 0, tmp_path)


def test_rounds_follow_from_the_data_set(tmp_path):
    (tmp_path / "x.flags").write_text("--dataset=landmarks\n")
    (job,) = jobs_of(tmp_path, 7, tmp_path)
    assert job.num_rounds == 5000 and job.folder == tmp_path / "x/seed7"


# --- Whose the folders are --------------------------------------------------------

CELL = """# PosOnly.
--dataset=omniglot
--method=pos_only
--rounds=4
--client_learning_rate=0.10
--train_top1
--rounds_per_checkpoint=3
"""


@pytest.fixture
def job(tmp_path):
    """A finished run of a cell of two seeds: seed 1."""
    folder = tmp_path / "cells"
    folder.mkdir()
    (folder / "omniglot_pos_only.flags").write_text(CELL)
    run_folders.write_run(
        tmp_path / "runs",
        "omniglot_pos_only",
        1,
        40.0,
        flags={"train_top1": "true", "data_dir": "anywhere", "batch_size": 32},
    )
    (job,) = jobs_of(folder, 1, tmp_path / "runs")
    return job


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_run_of_its_cell(job):
    run_table._check_folder(job, None)
    with (job.folder / "flags.txt").open("a") as file:
        file.write("--pretrained=a.h5\n")
    run_table._check_folder(job, "elsewhere/a.h5")
    settings = {**job.cell.settings, "pretrained": "b.h5"}
    job.cell = dataclasses.replace(job.cell, settings=settings)
    run_table._check_folder(job, None)


def test_a_run_that_has_not_begun(job):
    for path in job.folder.iterdir():
        path.unlink()
    run_table._check_folder(job, None)
    (job.folder / ".flags.txt.tmp").write_text("--see")
    run_table._check_folder(job, "a.h5")


@pytest.mark.parametrize(
    "file, old, new, message",
    [
        ("flags.txt", "rounds=4", "rounds=3", "--rounds=3 instead of 4. Take it away"),
        (
            "flags.txt",
            "rate=0.1",
            "rate=0.2",
            "client_learning_rate=0.2 instead of 0.10",
        ),
        ("flags.txt", "=true", "=false", "--train_top1=false instead of true"),
        ("flags.txt", "seed=1", "seed=0", "with seed 1: it has --seed=0 instead of 1"),
        (
            "flags.txt",
            "--method=pos_only\n",
            "",
            "--method=(unset) instead of pos_only",
        ),
        (
            "flags.txt",
            "--seed",
            "--pretrained=a\n--seed",
            "--pretrained=a instead of (uns",
        ),
        ("flags.txt", "--", "", "flags.txt:1: found 'method=pos_only'"),
        ("done.json", "40.0", "41.0", "done.json says 41 %"),
        (
            "metrics.csv",
            ",100,",
            ",nan,",
            "metrics.csv:3: num_examples is nan: this run",
        ),
    ],
)
def test_a_folder_that_is_not_of_its_cell(job, file, old, new, message):
    change(job.folder / file, old, new)
    with pytest.raises(InvalidInputError) as error:
        run_table._check_folder(job, None)
    assert str(job.folder) in str(error.value) and message in str(error.value)


def test_unfinished_runs_are_checked_too(job):
    (job.folder / "done.json").unlink()
    (job.folder / "metrics.csv").write_text("half")  # That is for the run to mend.
    run_table._check_folder(job, None)
    with pytest.raises(InvalidInputError, match="pretrained=.unset. instead of a.h5"):
        run_table._check_folder(job, "a.h5")


def test_done_without_flags(job):
    (job.folder / "flags.txt").unlink()
    with pytest.raises(InvalidInputError, match="flags.txt is missing"):
        run_table._check_folder(job, None)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_file_where_a_folder_should_be(tmp_path, job, depth):
    path = [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"][depth]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    job.folder = tmp_path / "a/b/c"
    with pytest.raises(InvalidInputError, match=f"{path} is a file, expected a fold"):
        run_table._check_folder(job, None)


def test_a_foreign_run_stops_the_command_at_once(flagfiles, tmp_path):
    run_folders.write_run(tmp_path, "glyphs_fedss_m5", 0, 50.0)
    outcome = run(flagfiles, tmp_path, "--status")
    assert outcome.returncode == 2 and not outcome.stdout
    assert outcome.stderr.startswith(
        f"error: {tmp_path}/glyphs_fedss_m5/seed0 is not a"
    )
    assert "--dataset=omniglot instead of glyphs" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("name", run_config.RunConfig.flags())
def test_what_a_run_does_not_keep_may_differ(job, name):
    """The flags that _check_folder passes over are those that a run does not record."""
    if name in {"rounds", "seed", "runtime", "pretrained"}:
        return  # The job has these of its own.
    settings = {**job.cell.settings, name: "7"}
    job.cell = dataclasses.replace(job.cell, settings=settings)
    is_kept = run_config.RunConfig.flags()[name].decides
    if is_kept and name not in {"data_dir", "clients_csv"}:
        with pytest.raises(InvalidInputError, match=f"--{name}=.* instead of 7"):
            run_table._check_folder(job, None)
    else:
        run_table._check_folder(job, None)


def test_a_folder_without_cells(tmp_path):
    with pytest.raises(InvalidInputError, match=f"no flagfiles of cells in {tmp_path}"):
        jobs_of(tmp_path, 0, tmp_path)


def test_every_cell_of_the_paper_is_there():
    for number, scale, dataset, ms in (
        ("1", "paper", "landmarks", (5, 10, 20, 40, 80)),
        ("1", "mini", "omniglot", (5, 10, 20, 40, 80)),
        ("2", "paper", "sop", (5, 10, 20, 40, 80)),
        ("2", "mini", "omniglot", (5, 10, 20, 40, 80)),
        ("2", "chunks", "omniglot", (5, 10, 20, 40, 80)),
        ("3", "paper", "imagenet21k", (50, 100, 200, 400, 800)),
    ):
        table = cells.tables_of("fedss")[number, scale]
        sampled = [f"fedss_m{m}" for m in ms] + [f"neg_only_m{m}" for m in ms]
        others = ["pos_only", "fedaws", "full_softmax", "centralized"]
        uncorrected = [f"{name}_uncorrected" for name in sampled]
        assert sorted(table.cells) == sorted(
            f"{dataset}_{name}" for name in (*sampled, *others, *uncorrected)
        )
        for name, cell in table.cells.items():
            assert cell.settings["dataset"] == dataset
            method, _, rest = name.removeprefix(f"{dataset}_").partition("_m")
            assert cell.settings["method"] == method
            if rest:
                m = int(rest.removesuffix("_uncorrected"))
                assert cell.settings["num_negatives"] == m
            assert cell.settings.get("logit_correction", "inclusion") == (
                "none" if name.endswith("_uncorrected") else "inclusion"
            )


def test_photographs_have_fewer_cells():
    table = cells.tables_of("fedss")["1", "tiny_imagenet"]
    names = "fedss_m5 fedss_m20 fedss_m80 neg_only_m20 neg_only_m80 pos_only fedaws"
    assert sorted(table.cells) == sorted(
        f"tiny_imagenet_{name}"
        for name in (*names.split(), "full_softmax", "centralized")
    )
    for cell in table.cells.values():
        assert cell.settings["model"] == "mobilenet_v3_small"
        assert cell.settings["rounds"] == 400


def test_table_4_shares_the_runs_of_table_2():
    tables = cells.tables_of("fedss")
    for scale in ("mini", "paper"):
        assert tables["4", scale].results == tables["2", scale].results
        for name, cell in tables["4", scale].cells.items():
            assert tables["2", scale].cells[name] == cell
            assert cell.settings["train_top1"] is True


@pytest.mark.parametrize("paper", cells.PAPERS)
def test_the_cells_of_a_table_may_stand_in_one(paper):
    """They differ in what defines a cell; a setting of LEAP is a table of its own."""
    for table in cells.tables_of(paper).values():
        groups = {}
        for name, cell in table.cells.items():
            groups.setdefault(name.rpartition("/")[0], {})[name] = cell
        for group in groups.values():
            alike = dataclasses.replace(table, cells=group)
            free = {"epochs", "train_top1", *table.report.KIND.cell_flags}
            if "rate" in table.results:
                free |= {"client_learning_rate", "learning_rate", "task"}
            assert {*alike.differing_settings()} <= free


def test_a_cell_waits_for_the_one_that_it_starts_from(tmp_path):
    key = "4", "mini"
    table = cells.tables_of("moco")[key]
    found = run_table._jobs(key, table, ["d_gamma1"], [0, 1], tmp_path, rounds=2)
    names = [f"{job.cell.name} {job.seed}" for job in found]
    assert names == ["a_gamma0 0", "d_gamma1 0", "a_gamma0 1", "d_gamma1 1"]
    first, second, *_ = found
    assert second.start == first.folder == tmp_path / "a_gamma0" / "seed0"
    assert jobs._next(found, found) is first
    assert jobs._next(found[1:], found) is found[2]
    assert jobs._next([second], found) is None
    first.exit_code = 1
    assert jobs._next(found[1:], found) is second
    assert [job.num_rounds for job in found] == [2] * 4
    assert second.cell.settings["epochs"] == 2
    assert second.arguments == ["--cell=4/mini/d_gamma1", "--epochs=2"]


@pytest.mark.parametrize("is_cold", [True, False])
def test_kernels_are_compiled_by_one_process(tmp_path, monkeypatch, flagfiles, is_cold):
    """Else each of several would take half an hour for the same."""
    cache = tmp_path / "cuda"
    cache.mkdir()
    if not is_cold:
        (cache / "index").touch()
    monkeypatch.setenv("CUDA_CACHE_PATH", str(cache))
    found, together = jobs_of(flagfiles, 0, tmp_path), []

    class Process:
        def __init__(self, job):
            self.job, self.polls, self.returncode = job, 0, 0

        def poll(self):
            self.polls += 1
            if self.polls == 2:
                self.job.folder.mkdir(parents=True)
                (self.job.folder / "metrics.csv").write_text("method,round\nfedss,1\n")
            return 0 if self.polls > 4 else None

    def start(job, *_):
        job.process = Process(job)
        at_work = [j for j in found if j.process and j.process.polls < 5]
        together.append([j.rounds_done() for j in at_work])

    monkeypatch.setattr(jobs, "_start", start)
    monkeypatch.setattr(jobs.time, "sleep", lambda _: None)
    jobs.run_all(found, num_workers=3, gpus=["0", "1", "2"], more_settings={})
    assert together == (
        [[0], [1, 0], [1, 0, 0]] if is_cold else [[0], [0, 0], [0, 0, 0]]
    )


def test_cells_in_parts_start_from_the_folder_of_the_table(tmp_path):
    table = cells.table(
        "x",
        "experiments.leap.train",
        [
            cells.Cell("a/b", {"rounds": 1}, ""),
            cells.Cell("c/d", {"rounds": 1}, "", start="a/b"),
        ],
        "x",
    )
    _, job = run_table._jobs(KEY, table, None, [3], tmp_path)
    assert job.start == tmp_path / "a/b/seed3"


@pytest.mark.parametrize(
    "name, message",
    [
        ("1", "--cell=1: expected TABLE/SCALE/CELL, with a TABLE/SCALE of 1/paper, "),
        ("1/huge/x", "expected TABLE/SCALE/CELL"),
        ("1/mini/x", "--cell=1/mini/x: expected a CELL of omniglot_fedss_m5, "),
    ],
)
def test_a_cell_that_is_not_there(name, message):
    with pytest.raises(InvalidInputError, match=message):
        cells.find("fedss", name)


def test_a_cell_is_found_by_its_name():
    for paper in cells.PAPERS:
        assert cells.find(paper, cells.example(paper)).settings
    cell = cells.find("leap", "1/mini/cifar10_mini/leap")
    assert cells.as_texts(cell.settings)["in_turn"] == "true"
    paper = cells.find("leap", "table1/paper/cifar10/spld")
    assert "--learning_rate_drops=23400,46800,62400" in cells.as_arguments(
        paper.settings
    )
