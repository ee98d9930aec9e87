"""Cells of a table on a cluster: what runs leave there comes here, whole."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile

import psutil
import pytest

from experiments.common import cluster_jobs, remote_run
from tests import waiting
from tests.experiments.killing import interrupt_when
from tests.runtime.test_cluster import RAY_FOLDER, is_alive


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder for temporary files of runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def runner(tmp_path, *contents):
    """Runs a program that writes some files: it unpacks an archive of them."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name, content in contents:
            archive.writestr(name, content)
    files = {
        "all.zip": (tmp_path / "all.zip").read_bytes(),
        "run/metrics.csv": b"old",
        "run/checkpoints/fedss/round_1/state": b"1",
    }
    arguments = ["-e", "{place}/all.zip", "{place}/run"]
    return remote_run.Runner("cell", "zipfile", arguments, files, 0, 1)


def look_at_the_end(made):
    made._process.wait()
    return made.look()


def test_a_run_has_what_it_had_and_tells_what_it_leaves(scratch, tmp_path):
    made = runner(tmp_path, ("metrics.csv", "new"), ("done.json", "{}"))
    look = look_at_the_end(made)
    assert look.exit_code == 0 and look.log == b""
    assert look.changed["metrics.csv"] == b"new"
    assert look.changed["checkpoints/fedss/round_1/state"] == b"1"
    # Checkpoints are read before the rows that they need.
    assert next(iter(look.changed)).startswith("checkpoints/")
    assert not list(scratch.glob("*/cell"))


def test_only_news_are_told(scratch, tmp_path):
    made = runner(tmp_path, ("metrics.csv", "new"))
    made._process.wait()
    made._process.poll = lambda: None  # As if it were at work still.
    assert set(made.look().changed) == {
        "metrics.csv",
        "checkpoints/fedss/round_1/state",
    }
    folder = made._folder / "run"
    (folder / "metrics.csv").write_bytes(b"newer")
    shutil.rmtree(folder / "checkpoints")
    look = made.look()
    assert look.changed == {"metrics.csv": b"newer"} and look.exit_code is None
    assert look.there == {"metrics.csv"}


def test_what_a_program_says_is_told(scratch):
    made = remote_run.Runner("cell", "zipfile", ["-l", "{place}/no.zip"], {}, 0, 1)
    look = look_at_the_end(made)
    assert look.exit_code == 1 and b"No such file" in look.log


def test_the_folder_here_is_like_the_one_there(tmp_path, monkeypatch):
    process = object.__new__(cluster_jobs.RemoteProcess)
    process._folder = tmp_path / "run"
    first = {
        "done.json": b"{}",
        "checkpoints/fedss/round_1/state": b"1",
        "metrics.csv": b"1",
    }
    written = []
    write = cluster_jobs.files.write
    monkeypatch.setattr(
        cluster_jobs.files,
        "write",
        lambda path, content: (written.append(path.name), write(path, content)),
    )
    process._bring(remote_run.Look(None, first, frozenset(first), b""))
    # What a checkpoint needs before it, and that all is done at last.
    assert written == ["metrics.csv", "state", "done.json"]
    second = {"checkpoints/fedss/round_2/state": b"2", "metrics.csv": b"12"}
    there = frozenset({*second, "done.json"})
    process._bring(remote_run.Look(None, second, there, b""))
    assert cluster_jobs._tree(process._folder, "") == {"done.json": b"{}", **second}
    assert not (process._folder / "checkpoints/fedss/round_1").exists()


FLAGS = """# {name}
--dataset=glyphs
--num_classes=40
--clients_per_round=2
--warm_start_epochs=0
--rounds_per_evaluation=2
--rounds_per_checkpoint=1
--method=fedss
--num_negatives=5
--rounds=40
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_table_and_its_runs(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", RAY_FOLDER)
    (tmp_path / "cells").mkdir()
    flags = FLAGS.format(name="one").replace("--rounds=40", "--rounds=100000")
    (tmp_path / "cells" / "one.flags").write_text(flags)
    folder = tmp_path / "there" / "one" / "seed0"
    code, errors, everything = interrupt_when(
        [
            *(sys.executable, "-P", "-m", "experiments.common.sweep", "1", "--seeds=0"),
            f"--flagfiles={tmp_path / 'cells'}",
            f"--results_dir={tmp_path / 'there'}",
            "--cluster=local",
        ],
        lambda: list(folder.glob("checkpoints/fedss/*")),
    )
    assert code == 130, errors
    assert "Traceback" not in errors and "is lost" not in errors, errors
    waiting.wait_until(lambda: not any(map(is_alive, everything)))
    assert not (folder / "done.json").exists()


@pytest.mark.slow
def test_a_run_that_is_lost_goes_on_and_ends_as_if_nothing_had_been(
    tmp_path, monkeypatch
):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", RAY_FOLDER)
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "one.flags").write_text(FLAGS.format(name="one"))

    def command(name, *flags):
        return [
            *(sys.executable, "-P", "-m", "experiments.common.sweep", "1", "--seeds=0"),
            f"--flagfiles={tmp_path / 'cells'}",
            f"--results_dir={tmp_path / name}",
            *flags,
        ]

    subprocess.run(command("here"), check=True, capture_output=True)
    lost = tmp_path / "there" / "one" / "seed0"
    with subprocess.Popen(
        command("there", "--cluster=local"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        waiting.wait_until(lambda: list(lost.glob("checkpoints/fedss/*")), process)
        (actor,) = (
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "ray::Runner" in " ".join(child.cmdline())
        )
        os.kill(actor.pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=waiting.LIMIT)
    assert process.returncode == 0, errors
    assert f"{lost} is lost" in errors
    for name in ("metrics.csv", "fedss.npz", "table.csv"):
        expected = (tmp_path / "here" / "one" / "seed0" / name).read_bytes()
        assert (lost / name).read_bytes() == expected, name
