"""A finished run, its encoder, and images to use it on, shared by all tests here."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.common import run_encoder
from experiments.encoders import export
from tests.datasets.images import own_images
from tests.models.test_exported_encoder import trained
from tff_fedss import models, progress
from tff_fedss.training import run_files

FLAGS = {"method": "fedss", "dataset": "omniglot"}
ENCODER = run_encoder.Encoder(
    "small_cnn", 16, run_encoder.federated_input("omniglot", 28)
)
CLASSES, EACH = ("a b", "b<i>", "c"), 15


def write_run(folder, phi, *names, encoder=ENCODER, **done):
    """Writes what export reads of the folder of a finished run."""
    folder.mkdir()
    (folder / run_files.FLAGS).write_text(run_files.as_flagfile(FLAGS))
    content = json.dumps(dataclasses.asdict(encoder))
    (folder / run_encoder.NAME).write_text(content)
    (folder / run_files.DONE).write_text(json.dumps(done))
    (folder / run_files.METRICS).write_text("method,round\n")
    arrays = {f"phi_{i:03d}": w for i, w in enumerate(phi.get_weights())}
    for name in names:
        np.savez(folder / f"{name}.npz", **arrays, W=np.ones([5, 16], np.float32))
    return folder


@pytest.fixture(scope="session")
def phi():
    return trained(models.small_cnn((28, 28, 1), 16))


@pytest.fixture(scope="session")
def finished(phi, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return write_run(folder, phi, "fedss", class_names=["a b", "z"])


@pytest.fixture
def run(run_program, monkeypatch):
    # On a busy machine a line of progress may come before an error.
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 3600.0)
    return run_program


@pytest.fixture(scope="session")
def encoder_file(finished, tmp_path_factory):
    path = tmp_path_factory.mktemp("encoders") / "encoder.keras"
    export.main(export.Config(results_dir=str(finished), output=str(path)))
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """45 pictures of three classes: all of the first look alike, of the others thirds.

    The thirds of a class are of different sizes.
    """
    contents = {}
    for c, name in enumerate(CLASSES):
        for k in range(EACH):
            size = (28 + 10 * (k % 3) if c else 28, 28)
            pixels = own_images.picture(c, size) // 16 * 15
            noise = own_images.picture(1000 + 100 * c + k, size) // 16
            image = own_images.encoded(pixels + noise)
            contents[f"{name}/picture {k}.png"] = image
    return own_images.write(tmp_path_factory.mktemp("pictures") / "mine", contents)
