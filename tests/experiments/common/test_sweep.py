"""Tables of a toy paper run in processes, as a user runs them; the published cells."""

import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess

import psutil
import pytest

from experiments.common import cells, jobs, option_words, sources, sweep
from tests import waiting
from tests.experiments import program_server, run_folders
from tests.refusals import refused
from tff_fedss.errors import InvalidInputError


@pytest.fixture(scope="module")
def run(server):
    """Runs `table`: a table, its results folder, flags -> code, output, errors."""

    def run(table, results_dir, *flags):
        folder = f"--results_dir={results_dir}"
        return server.run("experiments.common.sweep", table, folder, *flags)

    return run


@pytest.fixture(scope="module")
def finished(run, tmp_path_factory):
    """The outcome of the command for both cells, and its results folder."""
    results_dir = tmp_path_factory.mktemp("results")
    return run("toy/1", results_dir, "--workers=2"), results_dir


def test_a_paper_is_a_folder_and_a_failed_cell_stops_no_other(finished):
    outcome, results_dir = finished
    assert outcome.code == 1
    assert "FAILED: glyphs_neg_only_m41 seed 0" in outcome.errors
    assert "--num_negatives=41 must be" in outcome.errors
    assert "1 of 2 runs are done." in outcome.output
    folder = results_dir / "glyphs_fedss_m5" / "seed0"
    assert json.loads((folder / "done.json").read_text())["metric"] == "top1"
    assert "glyphs_fedss_m5 seed 0: done" in outcome.output
    assert "# Two cells" in outcome.output
    assert (results_dir / "table1.md").exists()


def test_what_is_done_is_not_run_again(run, finished):
    _, results_dir = finished
    (path,) = results_dir.glob("*/seed0/metrics.csv")
    before = path.stat().st_mtime_ns
    output, _ = run("toy/1", results_dir, "--cells=*fedss*").ok()
    assert "1 of 1 runs are done." in output
    # Another program may have had the runs; the page is written without any.
    (results_dir / "table1.md").unlink()
    output, _ = run("toy/1", results_dir, "--report").ok()
    assert "# Two cells" in output
    assert (results_dir / "table1.md").exists()
    assert path.stat().st_mtime_ns == before
    for flag, message in (
        ("--rounds=7", "its cell now has --rounds=7"),
        ("--pretrained=a.h5", "seed0 has no --pretrained, which is given now"),
    ):
        outcome = run("toy/1", results_dir, "--cells=*fedss*", flag)
        assert outcome.code == 2 and message in outcome.errors


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize("name", [sources.ARCHIVE, "table1_mini"])
def test_a_folder_of_published_runs_is_only_reported(tmp_path, name, is_list):
    (tmp_path / name).touch()
    with refused(f"holds {name}, whose runs the page would show: give --report"):
        jobs_of("1", tmp_path, [0], list=is_list)
    assert jobs_of("1", tmp_path, [0], list=is_list, report=True)


def test_a_list_has_a_command_for_each_run_that_is_missing(server, run, finished):
    _, results_dir = finished
    output, _ = run("toy/1", results_dir, "--list").ok()
    (line,) = output.splitlines()
    script, python, *arguments = shlex.split(line)
    assert pathlib.Path(script).name == "run.sh" and python == "python"
    module, *flags = arguments[arguments.index("-m") + 1 :]
    again = server.run(module, *flags)
    assert again.code == 2 and "--num_negatives=41 must be" in again.errors


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_table_leaves_runs_that_resume(run, tmp_path, number):
    flags = ("toy/long", f"--results_dir={tmp_path}", "--cells=long")
    arguments = program_server.command("experiments.common.sweep", flags)
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=program_server.environment(),
    ) as process:
        folder = tmp_path / "long/seed0/checkpoints/fedss"
        waiting.wait_until(lambda: list(folder.glob("round_?.npz")), process)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2  # The run and TFF's worker.
        os.kill(process.pid, number)
        process.wait(timeout=waiting.LIMIT)
    waiting.wait_until(lambda: not any(map(waiting.is_alive, children)))
    assert list(folder.glob("round_*.npz"))
    listed = run("toy/long", tmp_path, "--cells=long", "--list").output
    assert len(listed.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["5"], "of fedss, one of 1, 2, 3, 4, figure6, long, .*; found 5"),
        ([], "one of 1, 2, 3, 4, figure6, .*learning_rate; found none"),
        (["glove/1"], "a PAPER of fedss, leap, moco, .*rf_softmax; found gl"),
    ],
)
def test_which_table_must_be_said(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        sweep.find(sweep.Config(), arguments)


def jobs_of(table, folder, seeds, **flags):
    flags = sweep.Config(results_dir=str(folder), seeds=seeds, **flags)
    return sweep.find(flags, [table]).jobs


def test_a_cell_waits_for_the_one_that_it_starts_from(tmp_path):
    options = dict(cells=("d_gamma1",), rounds=2, pretrained="a.h5")
    found = jobs_of("moco/4", tmp_path, [0, 1], **options)
    names = ["a_gamma0 seed 0", "d_gamma1 seed 0", "a_gamma0 seed 1", "d_gamma1 seed 1"]
    assert [job.name for job in found] == names
    first, second, *_ = found
    assert second.start == first.folder == tmp_path / "a_gamma0" / "seed0"
    assert jobs.next_job(found, found) is first
    assert jobs.next_job(found[1:], found) is found[2]
    assert jobs.next_job([second], found) is None
    assert jobs.next_job(found[1:], found[1:]) is second
    assert second.command[3:] == [
        *("--cell=4/mini/d_gamma1", "--seed=0", "--epochs=2"),
        f"--results_dir={tmp_path / 'd_gamma1/seed0'}",
        f"--pretrained={tmp_path / 'a_gamma0/seed0'}",
    ]
    assert "--pretrained=a.h5" in first.command


def test_damaged_flags_of_a_finished_run_are_left_to_the_report(tmp_path):
    folder = run_folders.write_run(tmp_path, "omniglot_fedss_m5", 0, 50.0)
    (folder / "flags.txt").write_bytes(b"--model=\xff\n")
    assert jobs_of("1", tmp_path, [0])[0].is_done


def test_a_run_on_a_cluster_has_no_path_that_is_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    arguments = {}
    for cluster in (None, "auto"):
        options = {"data_dir": "data", "pretrained": "name", "cluster": cluster}
        job, *_ = jobs_of("1", "runs", [0], **options)
        arguments[cluster] = [a.partition("=")[2] for a in job.arguments[1:]]
    assert arguments[None] == ["data", "name", "runs/warm_starts", "0"]
    assert arguments["auto"] == [f"{tmp_path}/data", "name", "0"]


# --- The published cells ----------------------------------------------------------


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
            assert cell.settings["dataset"].partition(":")[0] == dataset
            method, _, rest = name.removeprefix(f"{dataset}_").partition("_m")
            assert cell.settings["method"] == method
            if rest:
                m = int(rest.removesuffix("_uncorrected"))
                assert cell.settings["num_negatives"] == m
            assert cell.settings.get("logit_correction", "inclusion") == (
                "none" if name.endswith("_uncorrected") else "inclusion"
            )


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
        assert {*table.best_of} <= {cell.row for cell in table.cells.values()}
        groups = {}
        for name, cell in table.cells.items():
            groups.setdefault(name.rpartition("/")[0], {})[name] = cell
        for group in groups.values():
            alike = dataclasses.replace(table, cells=group)
            free = {
                "epochs",
                "train_top1",
                *table.kind.cell_flags,
            }
            if "rate" in table.results:
                free |= {"client_learning_rate", "learning_rate", "task"}
            assert {*alike.differing_settings()} <= free


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
    cell = cells.find("leap", "1/mini/cifar10_mini/leap")
    assert option_words.as_texts(cell.settings)["in_turn"] == "true"
    paper = cells.find("leap", "table1/paper/cifar10/spld")
    assert "--learning_rate_drops=23400,46800,62400" in cells.as_arguments(
        paper.settings
    )
