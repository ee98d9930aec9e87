"""Runs a small table of glyphs in processes of its own, as a user would."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from experiments import run_table
from tff_fedss.errors import InvalidInputError

COMMON = """--dataset=glyphs
--num_classes=40
--clients_per_round=2
--warm_start_epochs=0
--rounds_per_evaluation=2
--rounds_per_checkpoint=1
"""


@pytest.fixture(scope="module")
def flagfiles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flagfiles")
    for name, own in {
        "glyphs_fedss_m10": "--method=fedss\n--num_negatives=10\n--rounds=3\n",
        "glyphs_fedss_m5": "--method=fedss\n--num_negatives=5\n--rounds=3\n",
        # n - |P_k| is less than that.
        "glyphs_neg_only_m39": "--method=neg_only\n--num_negatives=39\n--rounds=3\n",
    }.items():
        (folder / f"{name}.flags").write_text(f"# {name}\n{COMMON}{own}")
    return folder


def command(flagfiles, results_dir, *flags):
    return [
        *(sys.executable, "-P", "-m", "experiments.run_table", "1"),
        *(f"--flagfiles={flagfiles}", f"--results_dir={results_dir}", "--seeds=0"),
        *flags,
    ]


def run(*arguments):
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


@pytest.fixture(scope="module")
def finished(flagfiles, tmp_path_factory):
    """The outcome of the command, and its results folder."""
    results_dir = tmp_path_factory.mktemp("results")
    return run(flagfiles, results_dir, "--workers=2"), results_dir


def test_a_failed_cell_is_reported_and_stops_no_other(finished):
    outcome, results_dir = finished
    assert outcome.returncode == 1
    assert "FAILED: glyphs_neg_only_m39 seed 0" in outcome.stderr
    assert "--num_negatives=39 is more than" in outcome.stderr
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
    (long / "long.flags").write_text(text.replace("--rounds=3", "--rounds=100000"))
    results_dir = tmp_path / "results"
    with subprocess.Popen(
        command(long, results_dir), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 120
        while not list(results_dir.glob("long/seed0/checkpoints/fedss/round_?")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2  # The run and TFF's worker.
        os.kill(process.pid, number)
        process.wait(timeout=60)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    status = run(long, results_dir, "--status").stdout
    assert status.startswith("0 of 1 runs are done.\n  long seed 0: round ")


@pytest.mark.parametrize("arguments", [["5"], [], ["1", "2"]])
def test_which_table_must_be_said(arguments):
    with pytest.raises(InvalidInputError, match="one of 1, 2, 3, 4, figure6, learning"):
        run_table._table(arguments)


@pytest.mark.parametrize(
    "patterns, seeds, message",
    [
        (["nothing*"], ["0"], "nothing\\* matches none of glyphs_fedss_m5, glyphs_fe"),
        (None, ["0", "a"], "--seeds=0,a must be whole numbers"),
        (None, [], "--seeds= must be"),
    ],
)
def test_bad_cells_and_seeds(flagfiles, tmp_path, patterns, seeds, message):
    with pytest.raises(InvalidInputError, match=message):
        run_table._jobs(flagfiles, patterns, seeds, tmp_path)


def test_a_folder_without_cells(tmp_path):
    with pytest.raises(InvalidInputError, match=f"no flagfiles of cells in {tmp_path}"):
        run_table._jobs(tmp_path, None, ["0"], tmp_path)


def test_every_cell_of_the_paper_has_a_flagfile(tmp_path):
    here = pathlib.Path(run_table.__file__).parent
    for table, scale, dataset, ms in (
        ("table1", "paper", "landmarks", (5, 10, 20, 40, 80)),
        ("table1", "mini", "omniglot", (5, 10, 20, 40, 80)),
        ("table1", "tiny_imagenet", "tiny_imagenet", (5, 10, 20, 40, 80)),
        ("table2", "paper", "sop", (5, 10, 20, 40, 80)),
        ("table2", "mini", "omniglot", (5, 10, 20, 40, 80)),
        ("table3", "paper", "imagenet21k", (50, 100, 200, 400, 800)),
    ):
        jobs = run_table._jobs(here / table / scale, None, ["0"], tmp_path)
        sampled = [f"fedss_m{m}" for m in ms] + [f"neg_only_m{m}" for m in ms]
        others = ["pos_only", "fedaws", "full_softmax", "centralized"]
        uncorrected = [f"fedss_m{m}_uncorrected" for m in ms]
        assert sorted(job.cell for job in jobs) == sorted(
            f"{dataset}_{name}" for name in (*sampled, *others, *uncorrected)
        )
        for job in jobs:
            flags = dict(
                line[2:].split("=")
                for line in job.flagfile.read_text().splitlines()
                if line.startswith("--")
            )
            assert flags["dataset"] == dataset
            method, _, rest = job.cell.removeprefix(f"{dataset}_").partition("_m")
            assert flags["method"] == method
            if rest:
                assert flags["num_negatives"] == rest.removesuffix("_uncorrected")
            is_uncorrected = job.cell.endswith("_uncorrected")
            assert flags.get("logit_correction", "inclusion") == (
                "none" if is_uncorrected else "inclusion"
            )


def test_table_4_shares_the_runs_of_table_2():
    here = pathlib.Path(run_table.__file__).parent
    for scale in ("mini", "paper"):
        for flagfile in (here / "table4" / scale).glob("*.flags"):
            same = here / "table2" / scale / flagfile.name
            assert flagfile.read_text() == same.read_text()
            assert "--train_top1=true" in flagfile.read_text()
