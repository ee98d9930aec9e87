"""Trains for two rounds on a miniature of every data set, in its original layout."""

import functools

import numpy as np
import pytest

from tests import imagenet21k_archive, landmarks_images, sop_archive
from tests.datasets.images import own_images
from tests.experiments import central_runs
from tff_fedss.datasets.imagenet21k import preparation

pytestmark = pytest.mark.usefixtures("one_layer")
TINY = ("--rounds=2", "--image_size=16", "--model=small_cnn", "--num_negatives=2")


@pytest.fixture
def train_on(run_train, tmp_path):
    """Trains, and returns what was printed and the rows of metrics.csv."""

    def train(*flags):
        folder = tmp_path / "run"
        output, _ = run_train(*TINY, *flags, f"--results_dir={folder}").ok()
        with np.load(next(folder.glob("*.npz"))) as weights:
            assert all(np.isfinite(weights[name]).all() for name in weights)
        return output, central_runs.rows_of(folder)

    return train


def test_landmarks(train_on, tmp_path):
    miniature = landmarks_images.make(tmp_path)
    assert landmarks_images.prepare(miniature, tmp_path / "cache") == 0
    output, rows = train_on(
        "--dataset=landmarks",
        f"--data_dir={tmp_path / 'cache'}",
        "--clients_per_round=3",
    )
    assert "n=2,028 classes" in output and "3 clients" in output
    assert "without --pretrained" in output
    assert [row["num_examples"] for row in rows[1:]] == ["12", "12"]  # 5 + 3 + 4


@pytest.fixture
def train_on_sop(train_on, tmp_path):
    products = sop_archive.made_up_products([5] * 60 + [4] * 5)
    train, test = sop_archive.listings(products[:60], products[60:])
    path = tmp_path / "Stanford_Online_Products.zip"
    own_images.write(path, sop_archive.files(train, test))
    flags = ("--dataset=sop", f"--data_dir={path}", "--clients_per_round=2")
    return functools.partial(train_on, *flags)


@pytest.mark.parametrize(
    "method", ["fedss", pytest.param("centralized", marks=pytest.mark.slow)]
)
def test_sop(train_on_sop, method):
    output, rows = train_on_sop(f"--method={method}")
    assert "n=60 classes" in output and "3 clients" in output
    assert "20 test images of other classes" in output
    assert all(0 < float(rows[i]["map_at_10"]) < 1 for i in (0, 2))
    assert "MAP@10" in output


@pytest.mark.parametrize("method", ["fedss", "centralized"])
def test_validation_clients_of_sop(train_on_sop, method):
    output, rows = train_on_sop(
        f"--method={method}", "--validation_share=0.3", "--on_validation"
    )
    # Retrieval among their images, of classes that are trained.
    assert (
        "2 clients of at most" in output
        and "1 clients held out for validation" in output
    )
    assert "test images of other classes" not in output
    assert all(0 < float(rows[i]["map_at_10"]) < 1 for i in (0, 2))


def test_imagenet21k(train_on, tmp_path):
    archive = imagenet21k_archive.write_fall11(
        tmp_path / "raw", imagenet21k_archive.classes([6 + i % 5 for i in range(30)])
    )
    preparation.prepare(archive, tmp_path / "tfds")
    output, rows = train_on(
        "--dataset=imagenet21k:num_clients=4",
        f"--data_dir={tmp_path / 'tfds'}",
        "--clients_per_round=2",
    )
    assert "n=30 classes" in output and "4 clients of at most 20" in output
    assert float(rows[1]["positives_per_client"]) == 20


@pytest.mark.parametrize(
    "partition", ["mixed", pytest.param("dirichlet", marks=pytest.mark.slow)]
)
def test_tiny_imagenet(train_on, test_data, partition):
    output, rows = train_on(
        "--dataset=tiny_imagenet",
        f"--data_dir={test_data / 'tiny-imagenet-sub'}",
        f"--partition={partition}",
        "--clients_per_round=2",
        "--rounds_per_evaluation=2",
    )
    assert "n=200 classes" in output and "200 clients" in output
    # Two clients; only those of `mixed` have 100 images each.
    assert (rows[1]["num_examples"] == "200") == (partition == "mixed")


@pytest.mark.parametrize(
    "partition", ["mixed", pytest.param("drawer", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "task", ["classification", pytest.param("retrieval", marks=pytest.mark.slow)]
)
def test_omniglot(train_on, test_data, task, partition):
    output, rows = train_on(
        "--dataset=omniglot",
        f"--data_dir={test_data / 'omniglot28'}",
        f"--task={task}",
        f"--partition={partition}",
        "--clients_per_round=2",
        "--warm_start_epochs=0",
    )
    metric = {"classification": "top1", "retrieval": "map_at_10"}[task]
    assert rows[2][metric] != ""
    assert ("n=659" if task == "classification" else "n=964") in output
