"""`./run.sh moco`."""

import numpy as np
import pytest

from experiments.common import cells, run_encoder
from tests.datasets.images import own_images
from tests.experiments import central_runs
from tests.experiments.central_runs import rows_of
from tests.faults import programs

PROGRAM = "experiments.moco.train"
SMALL = (*programs.MOCO, "--epochs=2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("images") / "colours"
    programs.image_folders(root)
    return root


@pytest.fixture(scope="module")
def pretrained(run, folders, tmp_path_factory):
    """The flags and the folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    flags = (*SMALL, f"--data_dir={folders}")
    output, _ = run(*flags, f"--results_dir={folder}").ok()
    assert "26 training and 10 test images" in output
    return flags, folder


@pytest.mark.parametrize(
    "number, compared",
    [("1", "a_gamma0"), ("2", "b_gamma0"), ("3", "b_gamma0"), ("4", "b_gamma0")],
)
def test_a_table_compares_its_cells_with_gamma_0(number, compared):
    table = cells.tables_of("moco")[number, "mini"]
    assert next(iter(table.cells)) == "a_gamma0"
    assert {second for _, second in table.pairs} == {table.cells[compared].title}
    assert len(table.pairs) == len(table.cells) - 1


def test_a_run_leaves_a_folder_that_explains_it(run, pretrained):
    flags, folder = pretrained
    rows = rows_of(folder)
    assert [row["steps"] for row in rows] == ["", "3", "6"]
    assert [bool(row["linear_accuracy"]) for row in rows] == [True, False, True]
    assert float(rows[-1]["linear_accuracy"]) == 1.0
    with np.load(folder / "losses.npz") as losses:
        assert {form: losses[form].shape for form in losses} == dict.fromkeys(
            ("plain", "clustered", "filtered"), (24,)
        )
        # Fewer keys that push, and then more that pull: Eq. 1, 6 and 5.
        assert (losses["plain"] >= losses["filtered"]).all()
        assert (losses["filtered"] >= losses["clustered"]).all()
    learned = ["moco.npz", "losses.npz"]
    central_runs.assert_explained(run, flags, folder, learned, "linear_accuracy")


def test_own_images_are_loaded_larger_than_their_views(run, tmp_path):
    folder = own_images.of_classes(tmp_path / "own", "a", "b", count=10, sides=(30, 40))
    output, _ = run(
        *SMALL,
        "--dataset=images",
        f"--data_dir={folder}",
        "--image_size=14",
        "--epochs=1",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()
    assert "own: n=2 classes, 16 training and 4 test images, 16x16x3" in output
    assert "moco: linear top-1" in output
    _, _, image_input = run_encoder.read(tmp_path / "run")
    assert (image_input.image_size, image_input.resize_size) == (14, 16)


def test_post_training_starts_from_a_run(run, pretrained, tmp_path):
    flags, start = pretrained

    def filtered(name, flag):
        run(
            *flags,
            f"--pretrained={start}",
            "--loss=filtered",
            flag,
            f"--results_dir={tmp_path / name}",
        ).ok()
        return rows_of(tmp_path / name)

    first, *rest = filtered("filtered", "--gamma=1")
    assert first["linear_accuracy"] == rows_of(start)[-1]["linear_accuracy"]
    assert all(0 < float(row["cluster_share"]) < 1 for row in rest)
    assert all(0 < float(row["cluster_purity"]) <= 1 for row in rest)

    _, *rest = filtered("oracle", "--clusters=labels")
    assert {row["cluster_purity"] for row in rest} == {"1.0"}

    measured = tmp_path / "measured"
    run(
        *flags,
        "--epochs=0",
        f"--pretrained={start / 'moco.npz'}",
        f"--results_dir={measured}",
    ).ok()
    assert len(rows_of(measured)) == 1
    with np.load(start / "moco.npz") as ours, np.load(measured / "moco.npz") as theirs:
        for name in ours:
            if name not in ("queue", "queue_labels", "pointer"):
                np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.slow
def test_a_killed_run_with_clusters_resumes_to_the_same_bytes(run, folders, tmp_path):
    flags = (*SMALL, f"--data_dir={folders}", "--loss=filtered", "--gamma=1")
    learned = ["moco.npz", "losses.npz"]
    central_runs.assert_resumed(
        run, PROGRAM, "moco", (*flags, "--epochs=40"), tmp_path, learned, rounds="[3-9]"
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--pretrained=/no/such"], "there is no /no/such; expected the results fold"),
        (["--batch_size=21"], "--batch_size=21 is more than the --queue_size=20 keys"),
        (["--batch_size=27", "--queue_size=30"], "is more than the 26 training images"),
        (
            ["--backbone=resnet50_split", "--batch_size=12"],
            "--batch_size=12 must be a multiple of 8 with --backbone=resnet50_split",
        ),
        (["--backbone=resnet50"], "resnet50 needs --image_size of at least 32, found"),
    ],
)
def test_bad_input_is_one_clear_line(run, folders, tmp_path, flags, message):
    flags = (*SMALL, f"--data_dir={folders}", *flags)
    central_runs.assert_refused(run, flags, message, tmp_path / "run")


def test_a_bad_start_is_named(run, pretrained, tmp_path):
    flags, start = pretrained
    damaged = tmp_path / "moco.npz"
    damaged.write_bytes((start / "moco.npz").read_bytes()[:1000])
    last = f"--results_dir={tmp_path / 'run'}"
    code, _, errors = run(*flags, f"--pretrained={damaged}", last)
    assert code == 2 and f"{damaged} is damaged" in errors
    code, _, errors = run(*flags, "--image_size=24", f"--pretrained={start}", last)
    assert code == 2 and "query_012 has the shape (64, 256), not" in errors
    assert "give the flags of the model that it was trained with" in errors
    assert not (tmp_path / "run").exists()
