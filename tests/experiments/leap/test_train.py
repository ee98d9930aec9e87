import csv
import json

import numpy as np
import pytest

from experiments.common import cells
from tests import labelled_blobs
from tests.datasets.images import own_images
from tests.experiments import killing, program_server

PRESETS = [
    f"1/{scale}/{name}"
    for scale in ("mini", "paper")
    for name in cells.tables_of("leap")["1", scale].cells
]
SMALL = (
    "--dataset=mnist",
    "--student=lenet",
    "--embedding=lenet",
    "--embedding_dim=4",
    "--in_turn",
    "--clusters_per_class=2",
    "--clusters_per_batch=3",
    "--examples_per_cluster=4",
    "--embedding_learning_rate=0.003",
    "--batch_size=8",
    "--learning_rate=0.02",
    "--learning_rate_drops=9,15",
    "--steps_per_round=3",
    "--rounds_per_evaluation=2",
)


@pytest.fixture(scope="module")
def run():
    """Runs the program in its own process: flags -> (exit code, stdout, stderr)."""
    with program_server.serve("experiments.leap.train") as run:
        yield run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    labelled_blobs.write(folder)
    return folder


def test_a_run_leaves_a_folder_that_explains_it(run, images, tmp_path):
    folder = tmp_path / "run"
    flags = (*SMALL, f"--data_dir={images}", "--rounds=3")
    code, output, errors = run(*flags, f"--results_dir={folder}")
    assert code == 0, errors
    assert "n=3 classes, 60 training and 30 test images" in output
    assert "leap: top-1" in output and "after 9 mini-batches" in output
    names = {path.name for path in folder.iterdir()}
    assert {"metrics.csv", "speed.csv", "curves.png", "leap.npz"} <= names
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["steps"] for row in rows] == ["", "3", "6", "9"]
    assert [bool(row["top1"]) for row in rows] == [True, False, True, True]
    assert all(float(row["embedding_loss"]) >= 0 for row in rows[1:])
    done = json.loads((folder / "done.json").read_text())
    assert done["top1"] == float(rows[-1]["top1"])
    with np.load(folder / "representations.npz") as saved:
        assert saved["representations"].shape == (60, 4)
        np.testing.assert_array_equal(saved["clusters"] // 2, saved["labels"])

    again = tmp_path / "again"
    code, _, errors = run(
        f"--flagfile={folder / 'flags.txt'}", f"--results_dir={again}"
    )
    assert code == 0, errors
    for name in ("metrics.csv", "leap.npz"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    code, output, _ = run(*flags, f"--results_dir={folder}")
    assert code == 0 and "Done before, nothing to run." in output
    code, _, errors = run(*flags, "--noin_turn", f"--results_dir={folder}")
    assert code == 2 and "--in_turn=true there, --in_turn=false here" in errors


def test_own_images_of_any_size_are_trained_on(run, tmp_path):
    folder = own_images.of_classes(tmp_path / "own", "a", "b", "c", sides=(16, 20))
    flags = (
        *SMALL,
        "--dataset=images",
        f"--data_dir={folder}",
        "--rounds=1",
        f"--results_dir={tmp_path / 'run'}",
    )
    code, _, errors = run(*flags)
    assert code == 2 and "expected images of one size, or an --image_size" in errors
    code, output, errors = run(*flags, "--image_size=16", "--test_share=0.5")
    assert code == 0, errors
    assert "own: n=3 classes, 9 training and 9 test images, 16x16x3" in output
    assert "test: 50% of the images" in output
    kept = (tmp_path / "run" / "flags.txt").read_text().splitlines()
    assert kept[-1] == "--test_share=0.5"


def test_wrong_labels_are_selected_less_often(run, images, tmp_path):
    folder = tmp_path / "run"
    code, output, errors = run(
        *SMALL,
        f"--data_dir={images}",
        "--method=spl",
        "--label_noise=0.3",
        "--pace_start=0.4",
        "--pace_cap=0.6",
        "--learning_rate_drops=",
        "--rounds=8",
        f"--results_dir={folder}",
    )
    assert code == 0, errors
    assert "30% of the training labels are wrong" in output
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert float(rows[1]["selected_share"]) == 1  # The first epoch is on all.
    assert float(rows[1]["mislabelled_share"]) == pytest.approx(0.3)
    first = next(row for row in rows[1:] if float(row["selected_share"]) < 1)
    assert float(first["selected_share"]) == pytest.approx(0.4)
    # 0.125. So few images are soon known by heart, and then wrong ones are easy, too.
    assert float(first["mislabelled_share"]) < 0.2
    assert float(rows[-1]["selected_share"]) == pytest.approx(0.6)


def test_long_tails_and_near_duplicates(run, tmp_path):
    labelled_blobs.write(tmp_path / "four", num_train=120, num_classes=4)
    code, output, errors = run(
        *SMALL,
        f"--data_dir={tmp_path / 'four'}",
        "--merge_classes=2",
        "--imbalance=5",
        "--near_duplicates=0.5",
        "--embedding_warmup=2",
        "--rounds=2",
        f"--results_dir={tmp_path / 'run'}",
    )
    assert code == 0, errors
    # 30 and 6 of each class, of which half are copies.
    assert "n=2 classes, 72 training and 30 test images" in output
    assert "4 subclasses, the largest 5 times the smallest" in output
    assert "50% of the training images are near copies of 2 others" in output
    rows = list(csv.DictReader((tmp_path / "run/metrics.csv").open()))
    assert [bool(row["rare_top1"]) for row in rows] == [True, False, True]
    assert float(rows[1]["selected_share"]) == 1
    assert float(rows[1]["rare_share"]) == pytest.approx(12 / 72)
    assert float(rows[1]["copied_share"]) == pytest.approx(0.5)


@pytest.mark.parametrize("method", ["spld", "random"])
def test_the_baselines_learn(run, images, tmp_path, method):
    code, _, errors = run(
        *SMALL,
        f"--data_dir={images}",
        f"--method={method}",
        "--pace_start=0.5",
        "--learning_rate_drops=",
        "--rounds=20",
        f"--results_dir={tmp_path / 'run'}",
    )
    assert code == 0, errors
    *_, last = csv.DictReader((tmp_path / "run/metrics.csv").open())
    assert float(last["top1"]) > 0.9 and float(last["selected_share"]) == 1
    assert last["embedding_loss"] == ""
    assert not (tmp_path / "run/representations.npz").exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_in_turn", [True, False])
def test_a_killed_run_goes_on(run, images, tmp_path, is_in_turn):
    flags = (
        *SMALL,
        f"--data_dir={images}",
        "--in_turn" if is_in_turn else "--noin_turn",
        "--rounds=60",
        "--rounds_per_checkpoint=2",
    )
    folder = tmp_path / "killed"
    killing.kill_after_a_checkpoint(
        "experiments.leap.train", "leap", flags, folder, seconds=400
    )
    code, output, errors = run(*flags, f"--results_dir={folder}")
    assert code == 0, errors
    assert "leap: goes on after round" in output
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["round"] for row in rows] == [str(i) for i in range(61)]
    if is_in_turn:  # The other mode depends on the machine's speed.
        code, _, errors = run(*flags, f"--results_dir={tmp_path / 'whole'}")
        assert code == 0, errors
        for name in ("metrics.csv", "leap.npz", "representations.npz"):
            whole = (tmp_path / "whole" / name).read_bytes()
            assert (folder / name).read_bytes() == whole, name


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--data_dir=/no/such"], "--data_dir=/no/such does not exist"),
        (["--dataset=tiny_imagenet"], "--dataset=tiny_imagenet needs --data_dir"),
        (["--dataset=images"], "--dataset=images needs --data_dir=DIR"),
        (["--dataset=tfds"], "--dataset=tfds needs --tfds_name=NAME"),
        (
            ["--test=images"],
            "--test goes with --dataset=images or tfds only, found --d",
        ),
        (["--method=best"], "--method=best: value should be one of <leap|spld|spl|ran"),
        (["--dataset=imagenette"], "--dataset=imagenette: value should be one of"),
        (
            ["--learning_rate_drops=20,10"],
            "=20,10 must be numbers of mini-b",
        ),
        (["--pace_growth=0"], "--pace_growth=0"),
        (["--pace=threshold", "--pace_cap=0.6"], "--pace_cap=0.6 is a share, and goes"),
        (
            ["--method=spl", "--diversity=0.5"],
            "--diversity=0.5 goes with --method=leap",
        ),
        (
            ["--method=spld", "--embedding_warmup=5"],
            "--embedding_warmup=5 goes with --method=leap --in_turn",
        ),
        (["--label_noise=1"], "--label_noise=1"),
        (["--imbalance=10"], "--imbalance=10 goes with --merge_classes"),
        (["--merge_classes=1"], "--merge_classes=1"),
        (["--near_duplicates=1"], "--near_duplicates=1"),
        (["--examples_per_cluster=1"], "--examples_per_cluster=1"),
    ],
)
def test_bad_input_is_one_clear_line(run, tmp_path, flags, message):
    code, output, errors = run(*flags, f"--results_dir={tmp_path / 'run'}")
    assert code == 2, errors
    assert output == "" and errors.count("\n") == 1
    assert message in errors
    assert not (tmp_path / "run").exists()


def test_input_that_does_not_go_with_the_data_is_named(run, images, tmp_path):
    for flags, message in (
        (["--clusters_per_batch=6"], "--clusters_per_batch=6 must be at most 5"),
        (["--num_train=61"], "num_train=61 must be in 3..60"),
        ([], "--results_dir=DIR is needed"),
    ):
        where = [f"--results_dir={tmp_path / 'run'}"] if flags else []
        code, _, errors = run(*SMALL, f"--data_dir={images}", *flags, *where)
        assert code == 2 and message in errors


@pytest.mark.parametrize("cell", PRESETS)
def test_a_preset_is_read(run, tmp_path, cell):
    code, _, errors = run(
        f"--cell={cell}", "--data_dir=/no/such", f"--results_dir={tmp_path / 'run'}"
    )
    assert code == 2 and "--data_dir=/no/such does not exist" in errors


def test_help_shows_the_flags_by_topic(run):
    code, output, _ = run("--help")
    assert code == 0
    for text in ("./run.sh leap", "\nPace (leap, spld, spl):\n", "--[no]in_turn"):
        assert text in output
