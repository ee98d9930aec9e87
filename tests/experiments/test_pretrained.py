"""Runs that start from weights that were trained before."""

import numpy as np
import pytest

from tff_fedss import models

SMALL = (
    "--dataset=glyphs:num_classes=40",
    "--num_negatives=5",
    "--clients_per_round=2",
    "--warm_start_epochs=0",
    "--runtime=in_process",
    "--rounds=1",
)


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
        code, output, errors = run_train(
            *SMALL,
            # What comes out is what went in.
            "--client_learning_rate=0",
            f"--pretrained={start}",
            f"--results_dir={tmp_path / name}",
        )
        assert code == 0, errors
        assert "loaded 9 of 9 layers, 81,632 of 81,632 parameters" in output
        with np.load(tmp_path / name / "fedss.npz") as arrays:
            for i, expected in enumerate(phi):
                np.testing.assert_array_equal(arrays[f"phi_{i:03d}"], expected)


def test_a_start_that_hardly_fits_is_refused(
    run_train, tmp_path, file_of_a_second_model
):
    flags = (
        *SMALL,
        f"--pretrained={file_of_a_second_model[0]}",
        "--embedding_dim=128",
        f"--results_dir={tmp_path / 'run'}",
    )
    code, output, errors = run_train(*flags)
    assert code == 2 and output == ""
    assert errors.startswith("error: --pretrained: ") and errors.count("\n") == 1
    assert "65,184 of the 98,080 parameters" in errors
    assert "--allow_partial_pretrained" in errors
    assert not (tmp_path / "run").exists()

    code, output, errors = run_train(*flags, "--allow_partial_pretrained")
    assert code == 0, errors
    assert "loaded 8 of 9 layers" in output
    flagfile = (tmp_path / "run" / "flags.txt").read_text()
    assert "--allow_partial_pretrained=true\n" in flagfile
