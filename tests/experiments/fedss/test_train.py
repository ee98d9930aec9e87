import json
import subprocess
import sys

import psutil
import pytest

from experiments.common import results
from experiments.fedss import pages
from tests import waiting
from tests.experiments import central_runs
from tff_fedss import tasks

TRAIN = "experiments.fedss.train"
SMALL = (*central_runs.GLYPHS, "--clients_per_round=3", "--rounds_per_evaluation=2")


def test_a_run_leaves_a_folder_that_explains_it(run_train, tmp_path, one_layer):
    folder = tmp_path / "run"
    flags = (*SMALL, "--rounds=3")
    output, _ = run_train(*flags, f"--results_dir={folder}").ok()
    assert "n=40 classes" in output and "chance: 2.5 %" in output
    assert "Clients waited for data for " in output
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "curves.pdf",
        "curves.png",
        "data.json",
        "done.json",
        "encoder.json",
        "fedss.npz",
        "flags.txt",
        "metrics.csv",
        "run.json",
        "speed.csv",
        "table.csv",
        "tensorboard",
    ]
    rows = central_runs.rows_of(folder)
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert [bool(row["top1"]) for row in rows] == [True, False, True, True]
    assert [bool(row["loss"]) for row in rows] == [False, True, True, True]
    (table,) = central_runs.rows_of(folder, "table.csv")
    assert float(table["top1_percent"]) == 100 * float(rows[-1]["top1"])
    central_runs.assert_repeated(run_train, flags, folder, ["fedss.npz"])


@pytest.mark.parametrize(
    "method, runtime",
    [
        pytest.param("fedss", "native", marks=pytest.mark.slow),
        ("fedss", "in_process"),
        pytest.param("centralized", "native", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_to_the_same_bytes(run_train, tmp_path, method, runtime):
    flags = (
        *SMALL,
        f"--method={method}",
        f"--runtime={runtime}",
        "--rounds=9",
        "--rounds_per_checkpoint=2",
    )
    learned = (f"{method}.npz", "table.csv")
    central_runs.assert_resumed(run_train, TRAIN, method, flags, tmp_path, learned)
    assert not (tmp_path / "killed" / "checkpoints").exists()


def test_a_run_that_diverges_says_so_and_keeps_what_was_good(run_train, tmp_path):
    folder = tmp_path / "run"
    flags = (*SMALL, "--rounds=9", "--client_learning_rate=1e20")
    code, _, errors = run_train(*flags, f"--results_dir={folder}")
    assert code == 1
    *_, last = errors.splitlines()
    assert last.startswith(
        "error: fedss has diverged in round 3: for 3 rounds in a row"
    )
    assert "smaller learning rate" in last and "Traceback" not in errors
    rows = central_runs.rows_of(folder)
    assert [row["rejected_clients"] for row in rows] == ["", "3", "3"]
    assert all(row["loss"] == row["accuracy"] == "" for row in rows)
    assert not (folder / "done.json").exists()


def test_a_run_that_collapses_says_so(run_train, tmp_path):
    # Not from nothing, but no further than chance: with a rate that lets phi stay.
    folder = tmp_path / "run"
    output, errors = run_train(
        *SMALL,
        "--rounds=1",
        "--client_learning_rate=0.3",
        f"--results_dir={folder}",
    ).ok()
    row = central_runs.rows_of(folder)[-1]
    cosine = float(row["mean_cosine"])
    is_collapsed = cosine > 0.95 and float(row["top1"]) <= 5 / 40
    assert is_collapsed
    assert "collapsed" not in errors  # One measurement says little.
    assert "FedSS: top-1 2.5 % before training, " in output
    assert f"phi has collapsed: the mean cosine of two images is {cosine:.3f}" in output
    command = f"./run.sh train --flagfile={folder}/flags.txt"
    assert f"{command} --client_learning_rate=0.03 --results_dir=" in output
    outcome = json.loads((folder / "done.json").read_text())["outcomes"]["fedss"]
    assert outcome["collapsed"] is True


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            ["--num_negatives=41"],
            "--num_negatives=41 must be at least 0 and at mo",
        ),
        (["--clients_per_round=9"], "--clients_per_round=9 is more than the 8 clients"),
        (["--model=mobilenet_v3_small"], "--image_size of at least 32, found 28"),
        (["--pretrained=/no/such.h5"], "/no/such.h5"),
        (
            ["--method=fedaws:neighbors=40"],
            "spreadout_neighbors=40 must be at least 1 and at most 39",
        ),
        (["--data_dir=."], "--data_dir=. has no effect on --dataset=glyphs"),
        (
            ["--task=retrieval", "--dataset=glyphs:num_classes=40,seed=1"],
            "does not go with --dataset=glyphs:num_classes=40,seed=1, which",
        ),
        (["--partition=drawer"], "--partition=drawer: --dataset=glyphs has one way"),
        (["--keep=last", "--patience=3"], "--patience=3 needs --keep=best"),
    ],
)
def test_bad_input_is_one_clear_line(run_train, tmp_path, flags, message):
    folder = tmp_path / "run"
    run_train(*SMALL, f"--results_dir={folder}", *flags).refused(message, prints=True)
    assert not folder.exists()


# TFDS makes the folder that it is given.
@pytest.mark.parametrize("dataset", sorted(set(tasks.DATASETS) - {"glyphs", "tfds"}))
def test_missing_data_are_named(run_train, tmp_path, dataset):
    flags = (f"--dataset={dataset}", "--data_dir=/no/such/folder")
    message = "--data_dir=/no/such/folder"
    central_runs.assert_refused(run_train, flags, message, tmp_path / "run")


def test_an_interrupted_run_keeps_what_it_measured(server, tmp_path):
    flags = (*SMALL, "--rounds=100000", f"--results_dir={tmp_path}")
    code, _, errors = server.run(TRAIN, *flags, stop_after_rows=5)
    assert code == 130 and "Traceback" not in errors, errors
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 6
    assert (tmp_path / "curves.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_terminated_run_ends_its_worker(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", TRAIN, *SMALL]
    flags = ["--rounds=100000", f"--results_dir={folder}", "--runtime=native"]
    with subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        metrics = folder / "metrics.csv"
        waiting.wait_until(
            lambda: metrics.exists() and metrics.read_text().count("\n") >= 5, process
        )
        workers = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, errors = process.communicate(timeout=waiting.LIMIT)
        assert process.returncode == 143, errors
        assert "Traceback" not in errors
    assert workers and not any(worker.is_running() for worker in workers)
    assert metrics.read_text().count("\n") >= 5
    assert (folder / "curves.png").stat().st_size > 1000


def test_the_best_round_of_validation_clients_is_kept(run_train, tmp_path, one_layer):
    best, last = tmp_path / "best", tmp_path / "last"
    learns = ("--warm_start_epochs=2", "--client_learning_rate=0.03")
    flags = (*SMALL, *learns, "--rounds_per_evaluation=1")
    output, _ = run_train(
        *flags, "--rounds=30", "--patience=2", f"--results_dir={best}"
    ).ok()
    rows = central_runs.rows_of(best)
    values = [float(row["validation_top1"]) for row in rows]
    kept = values.index(max(values))
    assert 2 < kept + 2 == len(rows) - 1 < 30
    done = json.loads((best / "done.json").read_text())
    assert done["last_rounds"] == {"fedss": kept + 2}
    outcome = done["outcomes"]["fedss"]
    assert outcome["kept_round"] == kept
    assert outcome["percent"] == 100 * float(rows[kept]["top1"])
    assert f"; kept: round {kept} (" in output
    run = results.read_run(best, pages.KIND)
    assert run.rounds_done == kept + 2

    # The same clients, up to that round: its weights, to the bit.
    run_train(
        *flags,
        "--validation_share=0.1",
        f"--rounds={kept}",
        f"--results_dir={last}",
    ).ok()
    assert (best / "fedss.npz").read_bytes() == (last / "fedss.npz").read_bytes()
    rows_of_last = central_runs.rows_of(last)
    for row, other in zip(rows, rows_of_last, strict=False):
        assert {name: row[name] for name in other} == other


def test_a_folder_is_of_deterministic_runs_or_of_others(run_train, tmp_path, one_layer):
    folder = tmp_path / "run"
    # With the largest seed.
    flags = (*SMALL, "--rounds=1", "--deterministic", f"--seed={2**31 - 1}")
    run_train(*flags, f"--results_dir={folder}").ok()
    assert "--deterministic=true" in (folder / "flags.txt").read_text()
    described = json.loads((folder / "run.json").read_text())
    assert described["flags"]["deterministic"] == "true"
    for flag, difference in {
        "--nodeterministic": "--deterministic=true there, --deterministic=(unset) here",
        "--precision=tf32": "--precision=(unset) there, --precision=tf32 here",
    }.items():
        other = run_train(*flags, flag, f"--results_dir={folder}")
        other.refused(difference)
