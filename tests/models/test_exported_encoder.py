import functools
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from tests.refusals import refused
from tff_fedss import models
from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.errors import InvalidInputError
from tff_fedss.models import ImageInput
from tff_fedss.models.exported_encoder import read_metadata

IMAGE_INPUT = models.ImageInput(28, 1, resizing="box", inverted=True)
SIZES = ((28, 28), (40, 50), (28, 28), (105, 105))

# Loads an encoder where the project cannot be imported, and embeds images.
ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tff_fedss", "experiments"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
import numpy as np
import tensorflow as tf

kind, path, images, output = sys.argv[1:]
images = np.load(images)
if kind == "keras":
    vectors = tf.keras.models.load_model(path)(images).numpy()
elif kind == "saved_model":
    signature = tf.saved_model.load(path).signatures["serving_default"]
    vectors = signature(tf.constant(images))["vectors"].numpy()
elif kind == "onnx":
    import onnxruntime

    (vectors,) = onnxruntime.InferenceSession(path).run(None, {"images": images})
else:
    interpreter = tf.lite.Interpreter(path)
    (place,), (result,) = (
        interpreter.get_input_details(), interpreter.get_output_details()
    )
    interpreter.resize_tensor_input(place["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(place["index"], images)
    interpreter.invoke()
    vectors = interpreter.get_tensor(result["index"])
np.save(output, vectors)
"""


def trained(model):
    """Gives a model weights that no initializer draws, about as far off as training.

    Noise in all kernels would amplify rounding, which depends on the order of sums.
    """
    rng = np.random.default_rng(1)
    model.set_weights(
        [
            w * (1 + 0.3 * rng.normal(size=w.shape))
            + 0.09 * (w.ndim == 1) * rng.normal(size=w.shape)
            for w in model.get_weights()
        ]
    )
    return model


def pictures():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in SIZES]


def features_of(phi, image_input, images):
    """As an evaluation computes them, of length 1."""
    features = [phi(image_input(i[np.newaxis]), training=False) for i in images]
    return tf.math.l2_normalize(tf.concat(features, 0), -1).numpy()


@pytest.fixture(scope="module")
def phi():
    return trained(models.small_cnn((28, 28, 1), 16))


@pytest.fixture(scope="module")
def keras_file(phi, tmp_path_factory):
    path = tmp_path_factory.mktemp("encoder") / "encoder.keras"
    facts = {"method": "fedss", "class_names": ["a", "b"]}
    models.save_encoder(phi, IMAGE_INPUT, path, "keras", facts)
    return path


def test_vectors_are_the_features_of_the_run(phi, keras_file):
    encoder = models.ExportedEncoder(keras_file)
    vectors = encoder.embed(pictures())
    assert vectors.dtype == np.float32 and vectors.shape == (4, encoder.embedding_dim)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    expected = features_of(phi, IMAGE_INPUT, pictures())
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    np.testing.assert_array_equal(encoder.embed(pictures()), vectors)
    assert encoder.embed([]).shape == (0, 16)


def test_the_layers_are_keras_own(keras_file):
    encoder = tf.keras.models.load_model(keras_file)
    phi = encoder.get_layer("small_cnn")
    for layer in (*encoder.layers, *phi.layers):
        assert type(layer).__module__.startswith("keras."), layer


def test_dropout_is_not_exported(phi, tmp_path):
    def with_dropout():
        dropout = models.CountedDropout(0.5, seed=1)
        return tf.keras.Model(phi.inputs, dropout(phi.outputs[0]), name="phi")

    path, arrays = tmp_path / "encoder.keras", tmp_path / "fedss.npz"
    models.save_encoder(with_dropout(), IMAGE_INPUT, path, "keras", {})
    vectors = models.ExportedEncoder(path).embed(pictures())
    expected = features_of(phi, IMAGE_INPUT, pictures())
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)
    # The counter is not among a run's weights either.
    weights = phi.get_weights()
    np.savez(arrays, **{f"phi_{i:03d}": w for i, w in enumerate(weights)})
    assert not models.load_pretrained(with_dropout(), arrays).not_loaded


@pytest.mark.parametrize(
    "kind", ["keras", pytest.param("saved_model", marks=pytest.mark.slow)]
)
def test_pretrained_takes_an_encoder(kind, phi, keras_file, tmp_path):
    path = keras_file
    if kind == "saved_model":
        path = tmp_path / "encoder"
        models.save_encoder(phi, IMAGE_INPUT, path, kind, {})
    other = models.small_cnn((28, 28, 1), 16, seed=5)
    report = models.load_pretrained(other, path)
    assert not report.not_loaded and report.num_loaded == phi.count_params()
    for ours, theirs in zip(other.get_weights(), phi.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", models.FORMATS)
@pytest.mark.parametrize("name", ["small_cnn", "mobilenet_v3_small", "resnet50"])
def test_loads_without_the_project(kind, name, tmp_path):
    image_input = models.ImageInput(32, resize_size=37)
    build = {**models.BACKBONES, **models.FEATURE_EXTRACTORS}[name]
    phi = build((32, 32, 3))
    if name != "resnet50":  # Of random weights, its 50 layers overflow.
        trained(phi)
    path = tmp_path / {"saved_model": "folder"}.get(kind, f"e.{kind}")
    models.save_encoder(phi, image_input, path, kind, {})
    # Two sizes, so that TFLite has to be given one.
    encoder = models.ExportedEncoder(path)
    atol = 1e-5 if kind == "tflite" else 1e-6
    expected = features_of(phi, image_input, pictures())
    np.testing.assert_allclose(encoder.embed(pictures()), expected, rtol=0, atol=atol)
    np.save(tmp_path / "images.npy", np.stack(pictures()[::2]))
    subprocess.run(
        [
            *(sys.executable, "-I", "-c", ALONE, kind, path),
            *(tmp_path / "images.npy", tmp_path / "vectors.npy"),
        ],
        check=True,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
    )
    alone = np.load(tmp_path / "vectors.npy")
    np.testing.assert_allclose(alone, expected[::2], rtol=0, atol=atol)


@pytest.fixture(scope="module", params=models.FORMATS)
def encoder_of_each_format(request, phi, tmp_path_factory):
    path = tmp_path_factory.mktemp("formats") / f"e.{request.param}"
    models.save_encoder(phi, IMAGE_INPUT, path, request.param, {"method": "fedss"})
    return models.ExportedEncoder(path)


def test_every_format_takes_any_number_of_images(encoder_of_each_format, phi):
    encoder = encoder_of_each_format
    assert encoder.metadata["method"] == "fedss"
    images = np.stack(pictures()[::2] * 3)
    expected = features_of(phi, IMAGE_INPUT, images)
    for count in (6, 1, 0):
        vectors = encoder._apply(images[:count])
        assert vectors.shape == (count, 16) and vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, expected[:count], rtol=0, atol=1e-5)


def test_every_format_refuses_floats_in_0_to_1(encoder_of_each_format):
    images = np.stack(pictures()[:1]).astype(np.float32) / 255
    encoder = encoder_of_each_format
    if encoder.metadata["encoder"] == "keras":
        loaded = tf.keras.models.load_model(encoder.path)
        for floats in (images, -255 * np.ones_like(images)):
            with pytest.raises(tf.errors.InvalidArgumentError, match="must be uint8"):
                loaded(floats)
    else:
        with pytest.raises(Exception, match="(?i)uint8"):
            encoder._apply(images)


def without_weights(path, keras_file):
    with zipfile.ZipFile(keras_file) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if name != "model.weights.h5":
                new.writestr(name, old.read(name))


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda path, _: None, "does not exist"),
        (lambda path, _: path.mkdir(), "is not an encoder"),
        (lambda path, _: path.write_text("no model"), "is not an encoder"),
        (
            lambda path, encoder: path.write_bytes(encoder.read_bytes()[:-2000]),
            "is not an encoder",
        ),
        (without_weights, "cannot be loaded"),
    ],
)
def test_what_is_no_encoder_is_refused(write, message, keras_file, tmp_path):
    path = tmp_path / "x.keras"
    write(path, keras_file)
    with refused(f"{path}.*{message}"):
        models.ExportedEncoder(path)


@pytest.mark.parametrize(
    "name, kind, message",
    [
        ("x.h5", "keras", "must end in .keras"),
        ("x.h5", "h5", "kind='h5' must be one of keras, saved_model"),
        ("folder", "tflite", "is no encoder"),
        ("folder", "saved_model", "is no encoder"),
        ("folder/file", "saved_model", "is no encoder"),
    ],
)
def test_nothing_else_is_overwritten(name, kind, message, phi, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    with pytest.raises(InvalidInputError, match=message):
        models.save_encoder(phi, IMAGE_INPUT, tmp_path / name, kind, {})
    assert (tmp_path / "folder" / "file").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_replaced_by_another_export(phi, tmp_path, monkeypatch):
    own = models.FORMATS["saved_model"]._replace(write=lambda *args: args[-1].mkdir())
    monkeypatch.setitem(models.FORMATS, "saved_model", own)
    for number in (1, 2):
        facts = {"number": number}
        models.save_encoder(phi, IMAGE_INPUT, tmp_path / "e", "saved_model", facts)
    assert read_metadata(tmp_path / "e")["number"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


# --- What comes before phi --------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        # The pixels of several images would be reshaped to one.
        (dict(resize_size=4), "resize_size=4 must be at least 8"),
        (dict(channels=2), "channels=2 must be 1 or 3"),
        (dict(resizing="area"), "resizing='area' must be one of antialias, box, bil"),
    ],
)
def test_bad_preprocessing_is_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        ImageInput(8, **arguments)


INPUT_SIZES = ((28, 28), (105, 105), (37, 91), (200, 33), (10, 12), (29, 130), (64, 64))


def inputs():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in INPUT_SIZES]


def as_a_graph(image_input, **options):
    """As in use: TensorFlow optimizes the graph, without a known size."""
    spec = tf.TensorSpec([None, None, None, 3], tf.uint8)
    return tf.function(
        functools.partial(image_input, **options),
        input_signature=[spec],
        autograph=False,
    )


@pytest.mark.parametrize("sizes", [(56, 64), (28, 28), (48, None)])
@pytest.mark.parametrize("of_basic_ops", [False, True])
def test_antialias_gives_the_pixels_of_a_runs_evaluation(sizes, of_basic_ops):
    preprocessing = Preprocessing(*sizes, read=lambda image: image)
    apply = as_a_graph(
        ImageInput(sizes[0], resize_size=preprocessing.resize_size),
        of_basic_ops=of_basic_ops,
    )
    for image in inputs():
        data = tf.data.Dataset.from_tensors({"image": image, "label": 0})
        (example,) = preprocessing.evaluation(data)
        np.testing.assert_array_equal(
            apply(image[np.newaxis])[0], example["image"].numpy()
        )


@pytest.mark.parametrize(
    "image_input",
    [
        ImageInput(28, 1, resizing="box", inverted=True),
        ImageInput(20, resizing="box"),
        ImageInput(20, resizing="bilinear"),
        ImageInput(24, resize_size=28, resizing="bilinear", cut_square=True),
        ImageInput(28, 1, resizing="bilinear", cut_square=True),
    ],
    ids=str,
)
def test_pillows_filters_give_pillows_pixels(image_input):
    apply = as_a_graph(image_input)
    filters = {"box": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR}
    kind, size = filters[image_input.resizing], (image_input.resize_size,) * 2
    first = (image_input.resize_size - image_input.image_size) // 2
    cut = slice(first, first + image_input.image_size)
    for image in inputs():
        pillow = Image.fromarray(image)
        if image_input.channels == 1:
            pillow = pillow.convert("L")
        pillow = (
            ImageOps.fit(pillow, size, kind)
            if image_input.cut_square
            else pillow.resize(size, kind)
        )
        expected = np.asarray(pillow).reshape(*size, -1)[cut, cut].astype(np.float32)
        if image_input.inverted:
            expected = 255 - expected
        np.testing.assert_array_equal(apply(image[np.newaxis])[0], expected)
