"""No warning of TensorFlow's or TFF's in the output of programs."""

import sys

import pytest

from tests.datasets.images import own_images
from tests.experiments import program_server


def output_of(module, *flags):
    """Runs a program as `./run.sh` does, and returns all that it prints."""
    return "".join(program_server.run_alone(f"experiments.{module}", *flags).ok())


@pytest.mark.slow
def test_from_images_to_neighbours_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    # Classes of different sizes: R-precision looks for as many neighbours each.
    names = [f"{c}/{i}.png" for c in range(12) for i in range(5 + 4 * c)]
    images = own_images.write(tmp_path / "images", own_images.images(*names))
    run, encoder = tmp_path / "run", tmp_path / "encoder.keras"
    output = output_of(
        "fedss.compare",
        "--dataset=images",
        f"--data_dir={images}",
        "--task=retrieval",
        "--partition=iid:clients=11",
        "--clients_per_round=3",
        "--rounds=2",
        "--rounds_per_evaluation=1",
        f"--results_dir={run}",
    )
    export = ("--method=fedss", f"--results_dir={run}", f"--output={encoder}")
    output += output_of("encoders.export", "--format=keras", *export)
    use = (f"--model={encoder}", f"--images={images}")
    vectors = f"{tmp_path}/vectors.npz"
    output += output_of("encoders.embed", *use, f"--output={vectors}")
    output += output_of("encoders.evaluate", *use, f"--vectors={vectors}")
    page = f"--output={tmp_path / 'page'}"
    output += output_of("encoders.neighbours", *use, f"--vectors={vectors}", page)
    lines = output.splitlines()
    assert not [line for line in lines if "warning" in line.lower()], output
