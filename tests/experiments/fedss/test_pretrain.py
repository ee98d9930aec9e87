"""Runs that start from weights that were trained before, and `./run.sh pretrain`."""

import numpy as np
import pytest

from experiments.fedss import pretrain, run_config, run_parts
from tests.datasets.images import own_images
from tests.experiments import central_runs
from tff_fedss import models

PROGRAM = "experiments.fedss.pretrain"
TESTS = {"classification": "images", "retrieval": "classes"}
SMALL = ("--image_size=16", "--epochs=2", "--batch_size=8", "--embedding_dim=8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    return (
        own_images.of_classes(root / "own", *"abcdefgh", sides=(18, 24)),
        own_images.of_classes(root / "more", "x", "y", sides=(20,)),
    )


@pytest.fixture(scope="module")
def pretrained(run, folders, tmp_path_factory):
    """The flags and the folder of a finished run."""
    own, more = folders
    flags = (
        *SMALL,
        "--dataset=images:num_public_classes=5",
        f"--data_dir={own}",
        f"--also=images:{more}",
    )
    folder = tmp_path_factory.mktemp("runs") / "pretrained"
    output, _ = run(*flags, f"--results_dir={folder}").ok()
    assert "of 5 classes, 16x16x3; the probe has 10 of 2 others" in output
    assert f"--pretrained={folder}/pretrain.h5" in output
    return flags, folder


def test_a_run_leaves_weights_and_says_what_they_are_worth(run, pretrained):
    flags, folder = pretrained
    rows = central_runs.rows_of(folder)
    assert [row["round"] for row in rows] == ["0", "1", "2"]
    assert all(0 <= float(row["probe_top1"]) <= 1 for row in rows)
    assert (folder / "curves.png").exists()
    output, _ = run(*flags, f"--results_dir={folder}").ok()
    assert "Already done, nothing to run." in output


def test_a_federated_run_starts_from_it(run_train, pretrained, folders, tmp_path):
    _, folder = pretrained
    output, _ = run_train(
        "--dataset=images:num_public_classes=5",
        "--partition=iid:clients=2",
        f"--data_dir={folders[0]}",
        "--image_size=16",
        "--embedding_dim=8",
        "--num_negatives=1",
        "--clients_per_round=2",
        "--rounds=1",
        f"--pretrained={folder / 'pretrain.h5'}",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()
    assert "loaded 9 of 9 layers" in output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--dataset=omniglot:num_public_classes=5",), "'omniglot' has no option num_"),
        (("--dataset=glyphs", "--also=faces:x"), "--also=faces:x: expected NAME:DIR"),
        (("--dataset=glyphs", "--also=images"), "--also=images: expected NAME:DIR"),
        (("--dataset=glyphs", "--normalization=batch"), "needs a MobileNetV3, found"),
        (("--dataset=glyphs", "--task=retrieval"), "which has classification."),
        (("--dataset=images",), "say how many by --dataset=images:num_public_classes="),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(run, folders, tmp_path, flags, message):
    if flags == ("--dataset=images",):
        flags = (*flags, f"--data_dir={folders[0]}", "--image_size=16")
    central_runs.assert_refused(run, flags, message, tmp_path / "run")


@pytest.mark.parametrize("task", ["classification", "retrieval"])
def test_public_classes_are_those_of_the_federated_run(folders, task):
    images = f"images:num_public_classes=3,test={TESTS[task]}"
    flags = {"dataset": images, "task": task, "data_dir": str(folders[0])}
    found = pretrain._public_classes(pretrain._with_defaults(pretrain.Config(**flags)))
    config = run_config.with_defaults(run_config.RunConfig(**flags))
    theirs = run_parts.load_dataset(config).public_examples()
    expected = np.stack([example["image"] for example in theirs.as_numpy_iterator()])
    np.testing.assert_array_equal(found.images, expected)


FEDERATED = (*central_runs.GLYPHS, "--clients_per_round=2", "--rounds=1")


@pytest.fixture(scope="module")
def file_of_a_second_model(tmp_path_factory):
    models.small_cnn((28, 28, 1))
    model = models.small_cnn((28, 28, 1), seed=7)
    path = tmp_path_factory.mktemp("weights") / "phi.h5"
    model.save_weights(path)
    return path, model.get_weights()


def test_a_run_starts_from_a_file_and_another_from_its_result(
    run_train, tmp_path, file_of_a_second_model
):
    path, phi = file_of_a_second_model
    for name, start in (("a", path), ("b", tmp_path / "a" / "fedss.npz")):
        output, _ = run_train(
            *FEDERATED,
            # The output equals the input.
            "--client_learning_rate=0",
            f"--pretrained={start}",
            f"--results_dir={tmp_path / name}",
        ).ok()
        assert "loaded 9 of 9 layers, 81,632 of 81,632 parameters" in output
        with np.load(tmp_path / name / "fedss.npz") as arrays:
            for i, expected in enumerate(phi):
                np.testing.assert_array_equal(arrays[f"phi_{i:03d}"], expected)


def test_a_start_that_hardly_fits_is_refused(
    run_train, tmp_path, file_of_a_second_model
):
    path, _ = file_of_a_second_model
    flags = (*FEDERATED, f"--pretrained={path}", "--embedding_dim=128")
    message = "65,184 of the 98,080 parameters"
    line = central_runs.assert_refused(run_train, flags, message, tmp_path / "run")
    assert line.startswith("error: --pretrained: ")
