"""`./run.sh leap`, and wrong labels."""

import dataclasses

import numpy as np
import pytest
import scipy.stats

from experiments.leap.train import with_label_noise
from tests import labelled_blobs
from tests.datasets.images import own_images
from tests.experiments import central_runs, killing
from tests.faults import programs
from tff_fedss.datasets.central import labelled_images

PROGRAM = "experiments.leap.train"
SMALL = (*programs.LEAP, "--rounds_per_evaluation=2")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    labelled_blobs.write(folder)
    return folder


def test_a_run_leaves_a_folder_that_explains_it(run, images, tmp_path):
    folder = tmp_path / "run"
    flags = (*SMALL, f"--data_dir={images}", "--rounds=3")
    output, _ = run(*flags, f"--results_dir={folder}").ok()
    assert "n=3 classes, 60 training and 30 test images" in output
    assert "leap: top-1" in output and "after 9 mini-batches" in output
    rows = central_runs.rows_of(folder)
    assert [row["steps"] for row in rows] == ["", "3", "6", "9"]
    assert [bool(row["top1"]) for row in rows] == [True, False, True, True]
    assert all(float(row["embedding_loss"]) >= 0 for row in rows[1:])
    with np.load(folder / "representations.npz") as saved:
        assert saved["representations"].shape == (60, 4)
        np.testing.assert_array_equal(saved["clusters"] // 2, saved["labels"])
    central_runs.assert_explained(run, flags, folder, ["leap.npz"], "top1")


def test_own_images_of_any_size_are_trained_on(run, tmp_path):
    folder = own_images.of_classes(tmp_path / "own", "a", "b", "c", sides=(16, 20))
    flags = (
        *SMALL,
        "--dataset=images",
        f"--data_dir={folder}",
        "--rounds=1",
        f"--results_dir={tmp_path / 'run'}",
    )
    run(*flags).refused("give --image_size")
    flags = (*flags, "--image_size=16", "--dataset=images:test_share=0.5")
    output, _ = run(*flags).ok()
    assert "own: n=3 classes, 9 training and 9 test images, 16x16x3" in output
    assert "test: 50% of the images" in output
    kept = (tmp_path / "run" / "flags.txt").read_text().splitlines()
    assert "--dataset=images:test_share=0.5" in kept


def test_wrong_labels_are_selected_less_often(run, images, tmp_path):
    folder = tmp_path / "run"
    output, _ = run(
        *SMALL,
        f"--data_dir={images}",
        "--method=spl",
        "--label_noise=0.3",
        "--pace_start=0.4",
        "--pace_cap=0.6",
        "--learning_rate_drops=",
        "--rounds=8",
        f"--results_dir={folder}",
    ).ok()
    assert "30% of the training labels are wrong" in output
    rows = central_runs.rows_of(folder)
    assert float(rows[1]["selected_share"]) == 1  # The first epoch is on all.
    assert float(rows[1]["mislabelled_share"]) == pytest.approx(0.3)
    first = next(row for row in rows[1:] if float(row["selected_share"]) < 1)
    assert float(first["selected_share"]) == pytest.approx(0.4)
    # 0.125. So few images are soon known by heart, and then wrong ones are easy, too.
    assert float(first["mislabelled_share"]) < 0.2
    assert float(rows[-1]["selected_share"]) == pytest.approx(0.6)


@pytest.mark.parametrize("method", ["spld", "random"])
def test_the_baselines_learn(run, images, tmp_path, method):
    run(
        *SMALL,
        f"--data_dir={images}",
        f"--method={method}",
        "--pace_start=0.5",
        "--learning_rate_drops=",
        "--rounds=20",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()
    *_, last = central_runs.rows_of(tmp_path / "run")
    assert float(last["top1"]) > 0.9 and float(last["selected_share"]) == 1
    assert last["embedding_loss"] == ""
    assert not (tmp_path / "run/representations.npz").exists()


@pytest.mark.slow
def test_a_killed_run_with_two_processes_is_resumed(run, images, tmp_path):
    flags = (*SMALL, f"--data_dir={images}", "--noin_turn", "--rounds=60")
    flags = (*flags, "--rounds_per_checkpoint=2")
    folder = tmp_path / "killed"
    killing.kill_after_a_checkpoint(PROGRAM, "leap", flags, folder)
    output, _ = run(*flags, f"--results_dir={folder}").ok()
    assert "leap: resumes after round" in output
    rounds = [row["round"] for row in central_runs.rows_of(folder)]
    assert rounds == [str(i) for i in range(61)]


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--data_dir=/no/such", "--data_dir=/no/such does not exist"),
        ("--clusters_per_batch=6", "--clusters_per_batch=6 must be at least 1 and"),
        ("--num_train=61", "num_train=61 must be at least 3 and at most 60"),
    ],
)
def test_bad_input_is_one_clear_line(run, images, tmp_path, flag, message):
    flags = (*SMALL, f"--data_dir={images}", flag)
    central_runs.assert_refused(run, flags, message, tmp_path / "run")


def test_label_noise_makes_a_share_of_the_labels_wrong():
    data = ten_digits()
    assert data.mislabelled is None
    noisy = with_label_noise(data, 0.4, seed=1)
    is_wrong = noisy.train_labels != data.train_labels
    np.testing.assert_array_equal(noisy.mislabelled, is_wrong)
    assert is_wrong.sum() == round(0.4 * len(data.train_labels))
    # To all other classes alike, within what so few draws allow.
    many = [with_label_noise(data, 0.9, seed=s) for s in range(60)]
    moves = np.concatenate(
        [(m.train_labels - data.train_labels)[m.mislabelled] for m in many]
    )
    counts = np.bincount(moves % data.num_classes, minlength=data.num_classes)
    assert counts[0] == 0 and scipy.stats.chisquare(counts[1:]).pvalue > 1e-4
    np.testing.assert_array_equal(noisy.test_labels, data.test_labels)
    np.testing.assert_array_equal(
        noisy.train_labels, with_label_noise(data, 0.4, seed=1).train_labels
    )
    wrong = "40% of the training labels are wrong"
    assert noisy.note == wrong and wrong in noisy.summary()
    noted = with_label_noise(dataclasses.replace(data, note="test: 10%"), 0.4, seed=1)
    assert noted.note == f"test: 10%; {wrong}"
    assert noisy.fingerprint() != data.fingerprint()


def ten_digits():
    """Images of noise, no two alike."""
    generator = np.random.default_rng(0)
    train_labels, test_labels = (generator.integers(0, 10, n) for n in (400, 50))
    return labelled_images.LabelledImages(
        "digits",
        tuple("0123456789"),
        generator.integers(0, 256, (400, 6, 5, 1)).astype(np.uint8),
        train_labels.astype(np.int32),
        generator.integers(0, 256, (50, 6, 5, 1)).astype(np.uint8),
        test_labels.astype(np.int32),
    )
