import dataclasses
import json
import zipfile

import numpy as np
import onnx
import pytest
import tensorflow as tf

from experiments.common import run_encoder
from experiments.encoders import export
from tests.experiments import central_runs
from tests.experiments.encoders.conftest import FLAGS, write_run
from tff_fedss import models, tasks
from tff_fedss.datasets import synthetic


def test_a_run_of_train_becomes_its_own_features(run_train, run, tmp_path, one_layer):
    folder, path = tmp_path / "run", tmp_path / "encoder.keras"
    run_train(
        *central_runs.GLYPHS,
        "--clients_per_round=2",
        "--rounds=1",
        f"--results_dir={folder}",
    ).ok()
    output, _ = run(export, f"--results_dir={folder}", f"--output={path}").ok()
    assert "small_cnn of fedss, 50,240 parameters, 28x28 pixels to 64" in output

    dataset = synthetic.glyphs(40)
    task = tasks.Classification(
        dataset, lambda: models.small_cnn(dataset.image_shape, 64)
    )
    with np.load(folder / "fedss.npz") as arrays:
        weights = [arrays[name] for name in sorted(arrays) if name != "W"]
        measured = tf.keras.models.clone_model(task.feature_extractor_fn())
        measured.set_weights(weights)
    images = np.stack(
        [e["image"] for e in dataset.test.data.take(20).as_numpy_iterator()]
    )
    expected = tf.math.l2_normalize(models.inference(measured)(images), -1)
    vectors = models.ExportedEncoder(path).embed(list(np.repeat(images, 3, -1)))
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)
    assert task.metric in json.loads((folder / "done.json").read_text())["metric"]


def test_the_encoder_says_where_it_comes_from(encoder_file):
    metadata = models.ExportedEncoder(encoder_file).metadata
    assert metadata["flags"] == FLAGS
    assert metadata["method"] == "fedss" and metadata["model"] == "small_cnn"
    assert metadata["class_names"] == ["a b", "z"]
    assert metadata["image_input"]["inverted"] is True
    assert len(metadata["weights_sha256"]) == 64


def test_an_onnx_file_is_verified_and_has_a_card(run, finished, tmp_path, monkeypatch):
    path = tmp_path / "e.onnx"
    flags = f"--results_dir={finished}", f"--output={path}", "--format=onnx"
    output, _ = run(export, *flags).ok()
    deviation = float(output.split("from the run's vectors ")[1].split()[0])
    assert 0 <= deviation <= 1e-5
    assert models.ExportedEncoder(path).metadata["flags"] == FLAGS
    assert [value.name for value in onnx.load(path).graph.input] == ["images"]
    card = (tmp_path / "model_card.md").read_text()
    assert "- Data: omniglot, 2 classes" in card and "(to be filled in)" in card
    (tmp_path / "model_card.md").write_text("# e.onnx\nmine")
    flags = flags[0], f"--output={tmp_path / 'e.keras'}"
    run(export, *flags).ok()
    assert (tmp_path / "e.keras.model_card.md").exists()
    monkeypatch.setattr(export, "_MOST_DEVIATION", -1.0)
    code, output, errors = run(export, *flags)
    assert code == 1 and "expected at most -1" in errors
    assert (tmp_path / "model_card.md").read_text() == "# e.onnx\nmine"


def test_the_card_has_an_interval(finished):
    read = export.read_run(str(finished))
    known = dataclasses.replace(read, percent=20.0, num_test_images=10_000)
    # 1.96 sqrt(0.2 * 0.8 / 10,000) = 0.784 %.
    text = "fedss: 20.0 ± 0.8 % on 10,000 test images"
    assert text in export._card(known, "e.onnx", "onnx")
    assert "±" not in export._card(read, "e.onnx", "onnx")


def test_the_card_has_the_round_of_the_weights(phi, tmp_path):
    done = {"outcomes": {"fedss": {"kept_round": 0}}, "last_rounds": {"fedss": 7}}
    folder = write_run(tmp_path / "run", phi, "fedss", **done)
    card = export._card(export.read_run(str(folder)), "e.onnx", "onnx")
    assert "\n- Rounds: 0\n" in card


def test_the_card_of_rf_softmax_has_its_data(finished):
    read = export.read_run(str(finished))
    flags = {"task": "tiny_imagenet", "sampler": "exp"}
    other = dataclasses.replace(read, facts={**read.facts, "flags": flags})
    assert "- Data: tiny_imagenet, 2" in export._card(other, "e.onnx", "onnx")


def test_one_of_several_methods(run, phi, tmp_path):
    folder = write_run(tmp_path / "run", phi, "fedss", "full_softmax")
    flags = f"--results_dir={folder}", f"--output={tmp_path / 'x.keras'}"
    run(export, *flags).refused("of fedss, full_softmax: choose one by --method")
    other = run(export, *flags, "--method=pos_only")
    other.refused("pos_only.npz, but fedss, full_softmax")
    output, _ = run(export, *flags, "--method=full_softmax").ok()
    assert "of full_softmax" in output


@pytest.mark.parametrize(
    "data, expected",
    [
        (("tiny_imagenet", 32), models.ImageInput(32, resize_size=37)),
        (("tiny_imagenet", 32, 40), models.ImageInput(32, resize_size=40)),
        (("glyphs", 28), models.ImageInput(28, 1, resizing="box")),
        (("omniglot", 28), models.ImageInput(28, 1, resizing="box", inverted=True)),
    ],
)
def test_images_are_made_ready_as_the_run_has(data, expected, tmp_path):
    assert run_encoder.federated_input(*data) == expected
    encoder = run_encoder.Encoder("small_cnn", 16, expected)
    phi = models.small_cnn((expected.image_size,) * 2 + (expected.channels,), 16, 3)
    folder = write_run(tmp_path / "run", phi, "name", encoder=encoder)
    finished = export.read_run(str(folder))
    assert finished.image_input == expected and finished.facts["method"] == "name"
    for ours, theirs in zip(finished.phi.get_weights(), phi.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_a_backbone_of_moco_has_its_moving_averages(run, tmp_path):
    backbone = models.BACKBONES["resnet50"]((32, 32, 3))
    rng = np.random.default_rng(0)
    for variable in backbone.variables:
        variable.assign(variable * 0.9 + 0.01 * rng.uniform(size=variable.shape))
    full = models.with_projection_head(backbone, 128)
    image_input = models.ImageInput(32, resizing="bilinear", cut_square=True)
    encoder = run_encoder.Encoder("resnet50", None, image_input)
    folder = write_run(tmp_path / "run", backbone, encoder=encoder)
    arrays = {f"query_{i:03d}": v.numpy() for i, v in enumerate(full.variables)}
    np.savez(folder / "moco.npz", **arrays)
    np.savez(folder / "losses.npz", plain=np.zeros(3))
    path = tmp_path / "x.keras"
    run(export, f"--results_dir={folder}", f"--output={path}").ok()
    images = rng.integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    expected = tf.math.l2_normalize(models.inference(backbone)(images), -1)
    vectors = models.ExportedEncoder(path).embed(list(images))
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)


def remove(name):
    return lambda folder: (folder / name).unlink()


def change(**changes):
    def change_encoder(folder):
        path = folder / "encoder.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change_encoder


@pytest.mark.parametrize(
    "spoil, message",
    [
        (remove("done.json"), "is not finished"),
        (remove("encoder.json"), "encoder.json is missing: the run has no enc"),
        (change(image_input={}), "encoder.json is damaged"),
        (change(embedding_dim=17), "fedss.npz does not fit small_cnn"),
        (
            lambda folder: (folder / "fedss.npz").write_bytes(b"PK\3\4no"),
            "fedss.npz cannot be read",
        ),
    ],
)
def test_what_is_no_finished_run_is_refused(spoil, message, run, phi, tmp_path):
    folder = write_run(tmp_path / "run", phi, "fedss")
    spoil(folder)
    path = tmp_path / "x.keras"
    run(export, f"--results_dir={folder}", f"--output={path}").refused(message)
    assert not path.exists()


def test_a_full_disk_leaves_nothing(run, finished, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    path = tmp_path / "x.keras"
    code, _, errors = run(export, f"--results_dir={finished}", f"--output={path}")
    assert code == 1 and "x.keras cannot be written" in errors
    assert not list(tmp_path.iterdir())
