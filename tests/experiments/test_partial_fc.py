"""`./run.sh partial_fc`, and its steps by n and r."""

import subprocess

import numpy as np
import pandas as pd
import pytest

from experiments.common import run_encoder
from experiments.partial_fc import scale
from tests.datasets.images import own_images
from tests.experiments import central_runs, killing, program_server
from tests.faults import programs
from tff_fedss import models

PROGRAM = "experiments.partial_fc.train"
SMALL = (
    *programs.PARTIAL_FC,
    "--learning_rate=0.01",
    "--rounds_per_evaluation=20",
    "--rounds_per_checkpoint=1",
)


@pytest.fixture(scope="module")
def server():
    """A process of its own, with logical devices."""
    server = program_server.Server()
    yield server
    server.close()


def read(folder, *columns):
    rows = central_runs.rows_of(folder)
    return np.array([[float(row[c]) for c in columns] for row in rows[1:]])


def test_a_run_leaves_a_folder_that_explains_it(run, tmp_path):
    folder = tmp_path / "run"
    flags = (
        *SMALL,
        "--num_classes=90",
        "--rounds=3",
        "--num_devices=2",
        "--margin=arcface",
    )
    output, _ = run(*flags, f"--results_dir={folder}").ok()
    assert "n=90 identities" in output and "pprn_0.5: tar_at_far" in output
    with np.load(folder / "pprn_0.5.npz") as weights:
        assert weights["W"].shape == (90, 6) and weights["phi_000"].shape == (64, 256)
    rows = central_runs.rows_of(folder)
    assert [row["steps"] for row in rows] == ["", "2", "4", "6"]
    assert [bool(row["tar_at_far"]) for row in rows] == [True, False, False, True]
    central_runs.assert_explained(
        lambda *other: run("--num_devices=2", *other),
        flags,
        folder,
        ["pprn_0.5.npz"],
        "tar_at_far",
    )


def start(folder, num_devices, *flags):
    flags = (*SMALL, *flags, f"--num_devices={num_devices}", f"--results_dir={folder}")
    command = program_server.command(PROGRAM, flags)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_runs_resume_with_half_and_with_twice_the_devices(tmp_path):
    flags = (
        "--rounds=24",
        "--num_classes=60000",
        "--batch_size=16",
        # With 0.01 rounding grows tenfold in 8 steps, on one device as on several.
        "--learning_rate=0.001",
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    output, _ = start(whole, 2, *flags).communicate()
    assert "Written to" in output
    places = killed / "checkpoints" / "pprn_0.5"
    # First in the midst of a checkpoint, which has another name until it is whole; then
    # during a step, between two of them.
    for _ in range(5):  # It may just have been finished when the signal comes.
        process = start(killed, 2, *flags)
        killing.kill_when(process, lambda: list(places.glob(".round_*.tmp")))
        if list(places.glob(".round_*.tmp")):
            break
    else:
        pytest.fail("no kill came during a checkpoint")
    first = {path.name for path in places.glob("round_?.npz")}

    def a_step_after_a_new_checkpoint():
        there = {path.name for path in places.iterdir()}
        return there - first and not any(name.endswith(".tmp") for name in there)

    killing.kill_when(start(killed, 1, *flags), a_step_after_a_new_checkpoint)
    assert not (killed / "done.json").exists()
    process = start(killed, 4, *flags)
    output, _ = process.communicate()
    assert process.returncode == 0 and "pprn_0.5: resumes after round" in output

    columns = ("steps", "loss", "ca_pcc", "classes_per_step")
    expected, found = read(whole, *columns), read(killed, *columns)
    assert len(expected) == 24
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    with np.load(whole / "pprn_0.5.npz") as a, np.load(killed / "pprn_0.5.npz") as b:
        np.testing.assert_allclose(a["W"], b["W"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("test", ["", ":test=images,test_share=0.4"])
def test_own_images_are_identities(run, tmp_path, test):
    folder = own_images.of_classes(tmp_path / "own", *"abcdefgh", count=5)
    output, _ = run(
        *SMALL,
        f"--dataset=images{test}",
        f"--data_dir={folder}",
        "--rounds=1",
        "--num_devices=2",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()
    if test:
        expected = "n=8 identities with 24 images for training, others of theirs: 16"
    else:
        expected = "n=6 identities with 30 images for training, 2 others with 10 for"
    assert expected in output and "pprn_0.5: tar_at_far" in output
    assert ("top1" in output) == bool(test)
    _, phi, image_input = run_encoder.read(tmp_path / "run")
    assert image_input == models.ImageInput(phi.input_shape[1], resizing="bilinear")


@pytest.mark.slow
def test_omniglot_is_trained_on(test_data, tmp_path):
    process = start(
        tmp_path / "run",
        2,
        "--dataset=omniglot",
        f"--data_dir={test_data / 'omniglot28'}",
        "--rounds=1",
        "--weight_decay=0.0005",
        "--evaluate_on=validation",
    )
    output, _ = process.communicate()
    assert process.returncode == 0 and "n=1,623 identities" in output
    assert "top1" in output and "test images by drawers 13, 14, 15, 16" in output


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--dataset=faces"], "own images need --data_dir: a folder"),
        (["--dataset=faces", "--data_dir="], "own images need --data_dir: a folder"),
        (["--dataset=omniglot", "--num_classes=5"], "--num_classes goes with"),
        (["--evaluate_on=validation"], "--evaluate_on=validation goes with"),
        (["--dataset=omniglot", "--lfw_pairs=x"], "--lfw_pairs goes with images in"),
        (
            ["--model=small_cnn"],
            "small_cnn does not go with --dataset=generated",
        ),
        (["--lfw_dir=/tmp"], "--lfw_pairs=FILE and --lfw_dir=DIR go together"),
        (["--num_strata=1", "--num_devices=2"], "--num_devices=2 is more than --num_s"),
        (["--batch_size=1", "--num_devices=2"], "--num_devices=2 is more than --batch"),
    ],
)
def test_bad_input_is_one_clear_line(run, tmp_path, flags, message):
    flags = ("--num_devices=2", *flags)
    central_runs.assert_refused(run, flags, message, tmp_path / "run")


def test_rates_are_compared_with_the_full_softmax():
    columns = [
        "num_classes",
        "sample_rate",
        "seconds",
        "w_and_momentum_mib",
        "peak_mib",
    ]
    rows = [(2**20, 1.0, 3.0, 512, 1024), (2**20, 0.1, 0.5, 512, 768)]
    table = scale.with_ratios(pd.DataFrame(rows, columns=columns))
    assert table.of_full.tolist() == [1, 6]
    assert table.peak_over_w_and_momentum.tolist() == [2, 1.5]


@pytest.mark.slow
def test_measures_cases_in_processes_of_their_own(tmp_path):
    options = dict(repeats=1, num_classes=(4000,), sample_rates=(1.0, 0.1))
    scale.main(scale.Config(output_dir=str(tmp_path), **options))
    first, second = central_runs.rows_of(tmp_path, "partial_fc.csv")
    assert float(first["classes_per_step"]) == 4000
    assert float(second["classes_per_step"]) == pytest.approx(457, abs=8)
    assert float(second["seconds"]) > 0 and float(second["peak_mib"]) > 100
    assert (tmp_path / "partial_fc.md").exists()
