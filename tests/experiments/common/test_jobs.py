"""Cells of a table on a Ray cluster: the files of their runs come here, whole."""

import os
import signal
import subprocess
import tempfile

import psutil
import pytest

from experiments.common import jobs
from tests import waiting
from tests.experiments import program_server
from tests.experiments.killing import interrupt_when
from tests.runtime.test_cluster import RAY_FOLDER

COPIES = """import pathlib, shutil, sys
run = pathlib.Path(sys.argv[1])
(run / "done.json").write_text((run / "metrics.csv").read_text() + "more")
print("said")
sys.exit(3)
"""


def test_a_task_returns_the_files_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sent = {"run/metrics.csv": b"old", "run/checkpoints/1.npz": b"1"}
    result = jobs._run("x", ["-c", COPIES, "{folder}/run"], sent)
    exit_code, found, log = result
    assert exit_code == 3 and log == b"said\n"
    assert found == {**sent, "run/done.json": b"oldmore"}
    assert not list(tmp_path.iterdir())


def test_a_killed_run_is_told_from_one_that_gave_up(tmp_path):
    job = jobs.Job("x seed 0", "none", [], tmp_path / "seed0")
    job.log.write_text("error: no data\n")
    for job.exit_code, why in ((2, "error: no data"), (-9, "killed by SIGKILL")):
        assert job.why_failed() == why


def test_a_run_does_not_train_without_its_gpu(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **o: begun.append((*_, o)))
    job = jobs.Job("x seed 0", "none", [], tmp_path / "seed0")
    for gpus in ((), ("0", "3")):
        jobs._local(2, gpus)(job, 1)
    (plain, _), (command, options) = begun
    assert command == [*plain, "--num_gpus=1"]
    assert options["env"]["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Returns the command of a cell of the toy paper's long table."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", RAY_FOLDER)
    monkeypatch.setenv("PYTHONPATH", program_server.environment()["PYTHONPATH"])

    def command(cell, folder, *flags):
        where = (f"--cells={cell}", f"--results_dir={tmp_path / folder}")
        flags = ("toy/long", *where, *flags)
        return program_server.command("experiments.common.sweep", flags)

    return command


def runs(process):
    """The processes of runs that a process has started."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "experiments.toy.train" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_ctrl_c_ends_a_table_and_its_runs(table):
    code, errors, everything = interrupt_when(
        table("long", "there", "--cluster=local"),
        lambda: runs(psutil.Process()),
    )
    assert code == 130, errors
    assert "Traceback" not in errors, errors
    waiting.wait_until(lambda: not any(map(waiting.is_alive, everything)))


@pytest.mark.slow
def test_a_lost_run_is_done_again_and_ends_as_if_nothing_had_been(table, tmp_path):
    subprocess.run(table("forty", "here"), check=True, capture_output=True)
    with subprocess.Popen(
        table("forty", "there", "--cluster=local"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        waiting.wait_until(lambda: runs(process), process)
        os.kill(runs(process)[0].ppid(), signal.SIGKILL)  # The task.
        _, errors = process.communicate(timeout=waiting.LIMIT)
    assert process.returncode == 0, errors
    for name in ("metrics.csv", "fedss.npz", "table.csv"):
        here, there = (
            tmp_path / folder / "forty" / "seed0" / name for folder in ("here", "there")
        )
        assert there.read_bytes() == here.read_bytes(), name
