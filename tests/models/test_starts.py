"""Starts from this project's own files, and from files that hardly fit."""

import h5py
import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import algorithms, errors, models

SHAPE = (8, 8, 1)


def build(embedding_dim=4, shape=SHAPE, seed=0):
    return models.small_cnn(shape, embedding_dim, seed=seed)


def values_for(model, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=v.shape).astype(np.float32) for v in model.weights]


def write_phi(path, values, **others):
    np.savez(path, **{f"phi_{i:03d}": v for i, v in enumerate(values)}, **others)


def check_equal(model, values):
    for actual, expected in zip(model.get_weights(), values, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_takes_the_phi_of_a_run(tmp_path):
    values = values_for(build())
    write_phi(tmp_path / "fedss.npz", values, W=np.zeros([5, 4], np.float32))
    model = build(seed=1)
    report = models.load_pretrained(model, str(tmp_path / "fedss.npz"))
    check_equal(model, values)
    assert len(report.loaded) == 9 and not report.not_loaded
    assert report.unused == ("W",)
    assert report.num_loaded == model.count_params()


def test_takes_the_query_encoder_of_moco(tmp_path):
    moco = algorithms.MoCo(
        lambda: build(embedding_dim=16),
        tf.keras.optimizers.SGD(0.1),
        queue_size=8,
        embedding_dim=6,
    )
    for variable in moco.encoder.variables:
        variable.assign(variable + 1.0)
    np.savez(tmp_path / "moco.npz", **moco.arrays())
    model = build(embedding_dim=16, seed=1)
    report = models.load_pretrained(model, tmp_path / "moco.npz")
    assert "key encoder" in report.unused
    check_equal(model, moco.weights.trainable)
    check_equal(model, [w + 1.0 for w in build(embedding_dim=16).get_weights()])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda v: [v[0][:, :2], *v[1:]], r"phi_000 is \[3, 2, 1, 32\].* \[3, 3, 1, 3"),
        (lambda v: v[:-1], r"phi_013 is missing in the file and \[4\] in the model"),
        (lambda v: [*v, v[0]], r"phi_014 is .* and missing in the model \(of 14 arr"),
        (lambda v: [*v[:3], np.full_like(v[3], np.nan), *v[4:]], "phi_003 has values"),
        (lambda v: [], "query_000 is missing in the file"),
        (lambda v: [np.array(["a"]), *v[1:]], "cannot be read as an .npz .*convert"),
    ],
)
def test_names_the_first_array_that_does_not_fit(change, message, tmp_path):
    path = tmp_path / "fedss.npz"
    write_phi(path, change(values_for(build())), W=np.zeros([5, 4], np.float32))
    model = build()
    before = model.get_weights()
    with pytest.raises(errors.InvalidInputError, match=message) as error:
        models.load_pretrained(model, path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    check_equal(model, before)


def test_arrays_do_not_fill_a_model_with_moving_means(tmp_path):
    model = _with_batch_norm()
    write_phi(tmp_path / "x.npz", [v.numpy() for v in model.trainable_variables])
    with pytest.raises(errors.InvalidInputError, match="no weights such as .*mov"):
        models.load_pretrained(model, tmp_path / "x.npz")


def _with_batch_norm():
    inputs = tf.keras.Input((3,))
    return tf.keras.Model(inputs, tf.keras.layers.BatchNormalization()(inputs))


# --- What fits a part -------------------------------------------------------------


def test_less_than_nine_tenths_is_refused_unless_asked_for(tmp_path):
    build(embedding_dim=4).save_weights(tmp_path / "phi.h5")
    model = build(embedding_dim=200)
    before = model.get_weights()
    total = model.count_params()
    loaded = total - 64 * 200 - 200
    assert loaded < 0.9 * total
    with pytest.raises(models.PartialFitError) as error:
        models.load_pretrained(model, tmp_path / "phi.h5")
    text = str(error.value)
    assert f"{loaded:,} of the {total:,} parameters of small_cnn" in text
    assert "less than the 90% that a start needs: embedding (kernel is [64, 4]" in text
    assert isinstance(error.value, errors.InvalidInputError) and "\n" not in text
    check_equal(model, before)

    report = models.load_pretrained(model, tmp_path / "phi.h5", min_share=0.8)
    assert report.num_loaded == loaded and list(report.not_loaded) == ["embedding"]


def test_the_first_reasons_are_named_and_the_others_counted(tmp_path):
    build().save_weights(tmp_path / "phi.h5")
    with h5py.File(tmp_path / "phi.h5", "r+") as file:
        names = list(file.attrs["layer_names"])
        file.attrs["layer_names"] = [n for n in names if "conv" not in n]
    with pytest.raises(models.PartialFitError) as error:
        models.load_pretrained(build(), tmp_path / "phi.h5")
    missing = "; ".join(f"conv_{i} (not in the file)" for i in (1, 2, 3))
    assert str(error.value).endswith(f"{missing}; and 1 more.")


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
    application = {
        "small": tf.keras.applications.MobileNetV3Small,
        "large": tf.keras.applications.MobileNetV3Large,
    }[name]
    application((32, 32, 3), weights=None, include_top=top).save_weights(
        tmp_path / "imagenet.h5"
    )
    model = models.mobilenet_v3((32, 32, 3), 64, size=name)
    if not top:
        with pytest.raises(models.PartialFitError, match=r"Conv_2 \(not in the file\)"):
            models.load_pretrained(model, tmp_path / "imagenet.h5")
    report = models.load_pretrained(
        model, tmp_path / "imagenet.h5", min_share=0.9 if top else 0.0
    )
    assert report.num_loaded / report.num_parameters == pytest.approx(share, abs=5e-5)


def test_values_that_are_not_finite_are_refused(tmp_path):
    source = build()
    values = values_for(source)
    values[3][0, 0] = np.inf
    source.set_weights(values)
    source.save_weights(tmp_path / "phi.h5")
    model = build()
    before = model.get_weights()
    with pytest.raises(errors.InvalidInputError, match="conv_2 has values that are no"):
        models.load_pretrained(model, tmp_path / "phi.h5")
    check_equal(model, before)


def test_the_digest_is_that_of_the_contents(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    assert models.pretrained_digest(tmp_path / "a") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    with pytest.raises(errors.InvalidInputError, match="x.h5 does not exist"):
        models.pretrained_digest(tmp_path / "x.h5")


def _tree(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return models.pretrained_digest(folder)


def test_the_digest_of_a_folder_is_that_of_names_and_contents(tmp_path):
    files = {"saved_model.pb": b"x", "variables/data": b"y"}
    expected = _tree(tmp_path / "0", files)
    assert _tree(tmp_path / "1", dict(reversed(files.items()))) == expected
    others = (
        {"saved_model.pb": b"x", "variables/data": b"z"},
        {"saved_model.pb": b"x", "variables/index": b"y"},
        {"saved_model.pb": b"xy", "variables/data": b""},
        {"saved_model.pb": b"x"},
    )
    digests = {_tree(tmp_path / f"other{i}", f) for i, f in enumerate(others)}
    assert len(digests) == len(others) and expected not in digests
