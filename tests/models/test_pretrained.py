"""Starts from files of Keras and of this project, and from files that hardly fit."""

import functools
import hashlib
import pathlib
import shutil

import h5py
import numpy as np
import pytest
import tensorflow as tf
from keras.src.applications import mobilenet_v3

from tests.arrays import assert_same
from tests.refusals import message_of, refused
from tff_fedss import algorithms, models

SHAPE, ALPHA = (32, 32, 3), 0.25


@pytest.fixture(scope="module")
def source():
    """A MobileNetV3 with BatchNorm, as trained: no weight has its initial value."""
    model = tf.keras.applications.MobileNetV3Small(
        SHAPE, alpha=ALPHA, weights=None, classes=5
    )
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.1, 1.0, w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def weights_file(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "imagenet.h5"
    source.save_weights(path)
    return path


@functools.cache
def _shared(embedding_dim):
    return models.mobilenet_v3(SHAPE, embedding_dim, size="small", alpha=ALPHA)


@pytest.fixture
def build():
    """Models at their initial weights; they are put back after the test."""
    used = []
    # Keras is left in the mode of the model built last, maybe a graph's: reset it.
    inputs = tf.keras.Input((1,))
    tf.keras.Model(inputs, inputs)

    def build(embedding_dim=8):
        model = _shared(embedding_dim)
        used.append((model, model.get_weights()))
        return model

    yield build
    for model, weights in used:
        model.set_weights(weights)


def check_equal_to(source, model, report):
    """Every weight of the loaded layers is the source's of that name."""
    theirs = {v.name: v.numpy() for v in source.weights}
    num_loaded = 0
    for name in report.loaded:
        for variable in model.get_layer(name).weights:
            np.testing.assert_array_equal(variable.numpy(), theirs[variable.name])
            num_loaded += variable.numpy().size
    assert num_loaded == report.num_loaded > 0
    assert report.num_parameters == model.count_params()


@pytest.mark.parametrize(
    "name",
    [
        None,  # Its weights alone.
        "whole.h5",
        "model.keras",
        pytest.param("saved_model", marks=pytest.mark.slow),
    ],
)
def test_loads_all_but_the_embedding(name, source, weights_file, tmp_path, build):
    path = tmp_path / name if name else weights_file
    if name:
        source.save(path)
    model = build()
    embedding = model.get_layer("embedding").get_weights()
    report = models.load_pretrained(model, str(path))
    with_weights = [layer.name for layer in model.layers if layer.weights]
    assert sorted([*report.loaded, *report.not_loaded]) == sorted(with_weights)
    check_equal_to(source, model, report)
    assert report.not_loaded == {"embedding": "not in the file"}
    assert report.unused == ("Logits",)
    assert_same(embedding, model.get_layer("embedding").get_weights())
    # Gamma and beta are among them, for every norm.
    assert sum(name.endswith("BatchNorm") for name in report.loaded) == 34
    num_embedding = sum(w.size for w in embedding)
    assert report.num_loaded == report.num_parameters - num_embedding
    text = str(report)
    assert "\n" not in text
    assert f"loaded {len(report.loaded)} of {len(report.loaded) + 1} layers" in text
    assert "embedding (not in the file)" in text and "not used: Logits" in text


def test_the_loaded_network_computes_what_the_source_would_with_group_norm(
    source, weights_file, build
):
    model = build(embedding_dim=1024)  # The features of Conv_2.
    models.load_pretrained(model, str(weights_file))

    def with_group_norm(layer):
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            width = layer.gamma.shape[0]
            return tf.keras.layers.GroupNormalization(
                width // 8, epsilon=layer.epsilon, name=layer.name
            )
        return type(layer).from_config(layer.get_config())

    features = tf.keras.Model(source.input, source.get_layer("Logits").input)
    oracle = tf.keras.models.clone_model(features, clone_function=with_group_norm)
    oracle.set_weights([v.numpy() for v in features.trainable_weights])
    images = np.random.default_rng(1).uniform(0, 255, (2, *SHAPE)).astype(np.float32)
    expected = oracle(images, training=False).numpy().reshape(2, 1024)
    assert expected.std() > 0
    np.testing.assert_allclose(model(images).numpy(), expected, rtol=1e-3)


def test_loads_into_a_model_older_than_a_learning_process(weights_file, build):
    model = build()
    with tf.Graph().as_default():  # As `build_fedss` does.
        models.mobilenet_v3(SHAPE, 8, size="small", alpha=ALPHA)
    report = models.load_pretrained(model, str(weights_file))
    assert list(report.not_loaded) == ["embedding"]


def test_imagenet_weights_lie_in_the_cache_of_keras(
    weights_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    path = models.imagenet_file("mobilenet_v3_small")
    assert models.imagenet_file("small_cnn") is None
    assert path == tmp_path / ".keras" / "models" / path.name
    path.parent.mkdir(parents=True)
    shutil.copy(weights_file, path)
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(
        mobilenet_v3.WEIGHTS_HASHES, "small_224_1.0_float", (digest, digest)
    )
    assert models.fetch_imagenet("mobilenet_v3_small") == path


def test_without_a_network_the_message_says_where_the_weights_belong(
    tmp_path, monkeypatch
):
    def fail(*args, **options):
        raise OSError("no network")

    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    monkeypatch.setattr(tf.keras.utils, "get_file", fail)
    message = message_of(models.fetch_imagenet, "mobilenet_v3_large")
    assert "weights_mobilenet_v3_large_224_1.0_float.h5 cannot be downloaded" in message
    assert "59e551e166be033d707958cf9e29a6a7" in message and str(tmp_path) in message
    with refused("no ImageNet weights of small"):
        models.fetch_imagenet("small_cnn")


def small_cnn(embedding_dim=4, seed=0):
    return models.small_cnn((8, 8, 1), embedding_dim, seed=seed)


def values_for(model):
    rng = np.random.default_rng(0)
    return [rng.normal(size=v.shape).astype(np.float32) for v in model.weights]


def write_phi(path, values, **others):
    np.savez(path, **{f"phi_{i:03d}": v for i, v in enumerate(values)}, **others)


def test_takes_the_phi_of_a_run(tmp_path):
    values = values_for(small_cnn())
    write_phi(tmp_path / "fedss.npz", values, W=np.zeros([5, 4], np.float32))
    model = small_cnn(seed=1)
    report = models.load_pretrained(model, str(tmp_path / "fedss.npz"))
    assert_same(model.get_weights(), values)
    assert len(report.loaded) == 9 and not report.not_loaded
    assert report.unused == ("W",)
    assert report.num_loaded == model.count_params()


def test_phi_of_a_run_has_no_moving_statistics(tmp_path):
    vectors = tf.keras.Input((4,))
    model = tf.keras.Model(vectors, tf.keras.layers.BatchNormalization()(vectors))
    write_phi(tmp_path / "x.npz", [np.ones(4, np.float32)] * 2)
    with refused("holds no weights such as .*moving_mean"):
        models.load_pretrained(model, tmp_path / "x.npz")


def test_takes_the_query_encoder_of_moco(tmp_path):
    moco = algorithms.MoCo(
        lambda: small_cnn(embedding_dim=16),
        tf.keras.optimizers.SGD(0.1),
        queue_size=8,
        embedding_dim=6,
    )
    for variable in moco.encoder.variables:
        variable.assign(variable + 1.0)
    np.savez(tmp_path / "moco.npz", **moco.arrays())
    model = small_cnn(embedding_dim=16, seed=1)
    report = models.load_pretrained(model, tmp_path / "moco.npz")
    assert "key encoder" in report.unused
    assert_same(model.get_weights(), moco.weights.trainable)
    assert_same(
        model.get_weights(),
        [w + 1.0 for w in small_cnn(embedding_dim=16).get_weights()],
    )


# --- What fits a part -------------------------------------------------------------


def test_less_than_nine_tenths_is_refused_unless_asked_for(tmp_path):
    small_cnn(embedding_dim=4).save_weights(tmp_path / "phi.h5")
    model = small_cnn(embedding_dim=200)
    before = model.get_weights()
    total = model.count_params()
    loaded = total - 64 * 200 - 200
    assert loaded < 0.9 * total
    text = message_of(models.load_pretrained, model, tmp_path / "phi.h5")
    assert f"{loaded:,} of the {total:,} parameters of small_cnn" in text
    assert "less than the 90% that a start needs: embedding (kernel is [64, 4]" in text
    assert_same(model.get_weights(), before)

    report = models.load_pretrained(model, tmp_path / "phi.h5", min_share=0.8)
    assert report.num_loaded == loaded and list(report.not_loaded) == ["embedding"]


@pytest.mark.parametrize(
    "name, top, share",
    [
        ("small", True, 0.9586),
        pytest.param("small", False, 0.5854, marks=pytest.mark.slow),
        pytest.param("large", True, 0.9809, marks=pytest.mark.slow),
        pytest.param("large", False, 0.6937, marks=pytest.mark.slow),
    ],
)
def test_imagenet_files_pass_with_their_top(name, top, share, tmp_path):
    application = getattr(tf.keras.applications, f"MobileNetV3{name.title()}")
    application((32, 32, 3), weights=None, include_top=top).save_weights(
        tmp_path / "imagenet.h5"
    )
    model = models.mobilenet_v3((32, 32, 3), 64, size=name)
    if not top:
        with refused(r"Conv_2 \(not in the file\)"):
            models.load_pretrained(model, tmp_path / "imagenet.h5")
    report = models.load_pretrained(
        model, tmp_path / "imagenet.h5", min_share=0.9 if top else 0.0
    )
    assert report.num_loaded / report.num_parameters == pytest.approx(share, abs=5e-5)


# --- What does not fit --------------------------------------------------------------


def write_other_network(path):
    images = tf.keras.Input((4,))
    outputs = tf.keras.layers.Dense(2, name="other_layer")(images)
    tf.keras.Model(images, outputs).save_weights(path)


def write_other_hdf5(path):
    with h5py.File(path, "w") as file:
        file["pixels"] = np.zeros(3)


def write_truncated(path):
    write_other_network(path)
    path.write_bytes(path.read_bytes()[:1000])


def write_infinite(path):
    source = small_cnn()
    values = values_for(source)
    values[3][0, 0] = np.inf
    source.set_weights(values)
    source.save_weights(path)


def phi_with(change):
    def write(path):
        write_phi(path, change(values_for(small_cnn())), W=np.zeros([5, 4], np.float32))

    return write


@pytest.mark.parametrize(
    "name, write, message",
    [
        ("x.h5", lambda path: None, "cannot be read as Keras.* No such file"),
        ("x.h5", write_truncated, "cannot be read as Keras"),
        ("x.h5", write_other_hdf5, "attribute.*layer_names"),
        ("x.h5", write_other_network, "fits no layer of .* found other_layer"),
        ("x.h5", write_infinite, "conv_2 has values that are no"),
        ("x.npz", lambda path: path.write_text("none"), "cannot be read as an .npz"),
        # The first array that does not fit is named.
        (
            "x.npz",
            phi_with(lambda v: [v[0][:, :2], *v[1:]]),
            r"phi_000 is \[3, 2, 1, 32\].* \[3, 3, 1, 3",
        ),
        (
            "x.npz",
            phi_with(lambda v: [*v, v[0]]),
            r"phi_014 is .* and missing in the model \(of 14 arr",
        ),
        (
            "x.npz",
            phi_with(lambda v: [*v[:3], np.full_like(v[3], np.nan), *v[4:]]),
            "phi_003 has values",
        ),
        (
            "x.npz",
            phi_with(lambda v: [np.array(["a"]), *v[1:]]),
            "cannot be read as an .npz .*convert",
        ),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(name, write, message, tmp_path):
    path = tmp_path / name
    write(path)
    model = small_cnn()
    before = model.get_weights()
    with refused(message) as error:
        models.load_pretrained(model, path)
    assert str(path) in str(error.value)
    assert_same(model.get_weights(), before)


def test_the_digest_is_that_of_the_contents(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    assert models.pretrained_digest(tmp_path / "a") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    with refused("x.h5 does not exist"):
        models.pretrained_digest(tmp_path / "x.h5")
