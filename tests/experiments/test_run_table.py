"""Runs a small table of glyphs in processes of its own, as a user would."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
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


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["5"], "say which table, one of 1, 2, 3, 4, figure6, learning_rate; found 5"),
        ([], "found none"),
        (["1", "--cells=nothing*"], "--cells=nothing* matches none of omniglot_cent"),
        (["1", "--seeds=a"], "--seeds=a must be whole numbers"),
        (["3", "--scale=mini"], "table3 has no cells at --scale=mini"),
        (["1", "--flagfiles=/no/such"], "--flagfiles=/no/such has no *.flags"),
    ],
)
def test_bad_input(arguments, message):
    outcome = subprocess.run(
        [sys.executable, "-P", "-m", "experiments.run_table", *arguments],
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 2
    assert message in outcome.stderr and outcome.stderr.startswith("error: ")
