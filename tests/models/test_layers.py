import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.arrays import assert_close
from tff_fedss import models
from tff_fedss.models import layers, mobilenet_layers
from tff_fedss.models.layers import SplitBatchNormalization


def _numpy_group_norm(x, gamma, beta, groups, epsilon):
    """Group Normalization, Eq. 1-7, in float64."""
    *outer, channels = x.shape
    split = np.float64(x).reshape(*outer, groups, channels // groups)
    axes = (*range(1, len(outer)), len(outer) + 1)
    deviations = split - split.mean(axes, keepdims=True)
    y = deviations / np.sqrt(split.var(axes, keepdims=True) + epsilon)
    return y.reshape(x.shape) * gamma + beta


def _pair(shape, groups, epsilon=1e-3):
    """Ours and Keras's, with the same random weights."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(1, 0.5, shape[-1]), rng.normal(0, 0.5, shape[-1])]
    layers = [
        cls(groups, epsilon=epsilon)
        for cls in (models.GroupNormalization, tf.keras.layers.GroupNormalization)
    ]
    for layer in layers:
        layer.build(shape)
        layer.set_weights(weights)
    return layers, weights


@pytest.fixture(params=["for_cpus", "for_gpus"])
def device(request):
    """Both ways in which the layer is written down."""
    if request.param == "for_cpus":
        yield
    else:
        with layers.as_if_gpus():
            yield


SHAPES = [((3, 6, 5, 8), 4), ((2, 1, 1, 6), 3), ((4, 7, 12), 1), ((2, 3, 3, 4), 4)]


@pytest.mark.parametrize("shape, groups", SHAPES)
def test_equals_the_definition(shape, groups, device):
    (ours, _), (gamma, beta) = _pair(shape, groups)
    x = np.random.default_rng(1).normal(5, 2, shape).astype(np.float32)
    np.testing.assert_allclose(
        ours(x), _numpy_group_norm(x, gamma, beta, groups, 1e-3), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("shape, groups", SHAPES)
def test_its_gradient_is_that_of_keras_layer(shape, groups, device):
    (ours, keras), _ = _pair(shape, groups)
    rng = np.random.default_rng(2)
    x = tf.constant(rng.normal(5, 2, shape), tf.float32)
    direction = rng.normal(size=shape)
    gradients = []
    for layer in (ours, keras):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) * direction)
        gradients.append(tape.gradient(loss, [x, layer.gamma, layer.beta]))
    assert_close(*gradients, 1e-3, 1e-4)


def test_a_large_mean_loses_nothing(device):
    # As a difference of moments, the variance would be lost in rounding here.
    shape = (2, 8, 8, 4)
    (ours, _), (gamma, beta) = _pair(shape, 2, epsilon=1e-5)
    x = np.random.default_rng(4).normal(5000, 0.5, shape).astype(np.float32)
    np.testing.assert_allclose(
        ours(x), _numpy_group_norm(x, gamma, beta, 2, 1e-5), rtol=1e-2, atol=1e-2
    )


OPTIONS = dict(momentum=0.8, epsilon=1e-3)
IMAGES_SHAPE = (12, 3, 3, 5)


def built(num_splits):
    layer = SplitBatchNormalization(num_splits, **OPTIONS)
    layer.build((None, *IMAGES_SHAPE[1:]))
    rng = np.random.default_rng(0)
    layer.set_weights([rng.uniform(0.5, 1.5, 5) for _ in range(4)])
    return layer


@pytest.fixture(scope="module")
def images():
    # Parts that differ, so that their statistics do.
    rng = np.random.default_rng(1)
    shifts = np.repeat(np.arange(4.0), 3)[:, np.newaxis, np.newaxis, np.newaxis]
    return (rng.normal(size=IMAGES_SHAPE) + shifts).astype(np.float32)


def test_each_part_is_normalized_by_itself(images):
    layer = built(4)
    gamma, beta, mean, variance = layer.get_weights()
    outputs = layer(images, training=True).numpy()
    means, variances = [], []
    for part in range(4):
        own = np.float64(images[3 * part : 3 * part + 3])
        means.append(own.mean((0, 1, 2)))
        variances.append(own.var((0, 1, 2), ddof=1))
        deviation = np.sqrt(own.var((0, 1, 2)) + 1e-3)
        expected = gamma * (own - means[-1]) / deviation + beta
        np.testing.assert_allclose(
            outputs[3 * part : 3 * part + 3], expected, rtol=1e-4, atol=1e-4
        )
    _, _, new_mean, new_variance = layer.get_weights()
    np.testing.assert_allclose(
        new_mean, 0.8 * mean + 0.2 * np.mean(means, 0), rtol=1e-5
    )
    np.testing.assert_allclose(
        new_variance, 0.8 * variance + 0.2 * np.mean(variances, 0), rtol=1e-5
    )


def test_an_exported_layer_is_keras_s_own(images):
    layer = built(4)
    exported = layer.as_keras()
    assert type(exported) is tf.keras.layers.BatchNormalization
    exported.build((None, *IMAGES_SHAPE[1:]))
    exported.set_weights(layer.get_weights())
    expected = layer(images, training=False).numpy()
    np.testing.assert_array_equal(exported(images, training=False), expected)


def test_one_part_is_batch_normalization(images):
    ours, plain = built(1), tf.keras.layers.BatchNormalization(**OPTIONS)
    plain.build((None, *IMAGES_SHAPE[1:]))
    plain.set_weights(ours.get_weights())
    assert [w.name.split("/")[-1] for w in ours.weights] == [
        w.name.split("/")[-1] for w in plain.weights
    ]
    for training in (True, False):
        x = tf.constant(images)
        gradients = []
        for layer in (ours, plain):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=training)
                loss = tf.reduce_mean(y**3)
            gradients.append([y, *tape.gradient(loss, [x, *layer.trainable_weights])])
        assert_close(*gradients, 1e-3, 1e-3)


def test_a_batch_that_cannot_be_split_is_refused(images):
    with pytest.raises(tf.errors.InvalidArgumentError, match="no multiple of the 5"):
        built(5)(images, training=True)
    built(5)(images, training=False)


# --- Layers of MobileNetV3 --------------------------------------------------------


def outputs_and_gradients(layer, x, directions):
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.nest.flatten(layer(x))
        loss = tf.add_n(
            [tf.reduce_sum(o * d) for o, d in zip(outputs, directions, strict=True)]
        )
    weights = layer.trainable_variables
    return [*outputs, *tape.gradient(loss, [x, *weights])]


def assert_same_as_keras(layer, shape):
    """Args: layer, and the shape of what it maps."""
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(0, 4, shape), tf.float32)
    directions = [rng.normal(size=o.shape) for o in tf.nest.flatten(layer(x))]
    keras = layer.as_keras()
    assert keras.name == layer.name
    keras(x)
    keras.set_weights(layer.get_weights())
    ours = outputs_and_gradients(layer, x, directions)
    theirs = outputs_and_gradients(keras, x, directions)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize(
    "kind, shape",
    [
        (mobilenet_layers.HardSwish, (2, 5, 4, 3)),
        (mobilenet_layers.Squeeze, (3, 5, 4, 2)),
    ],
)
def test_hard_swish_and_squeeze(kind, shape):
    layer = kind(name="x")
    # In a model its shape is known.
    tf.keras.Model(inputs := tf.keras.Input(shape[1:]), layer(inputs))
    assert_same_as_keras(layer, shape)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("device", [contextlib.nullcontext, layers.as_if_gpus])
def test_pointwise_convolutions(use_bias, device):
    layer = mobilenet_layers.PointwiseConv2D(5, 1, use_bias=use_bias, name="p")
    with device():
        assert_same_as_keras(layer, (2, 3, 4, 6))


@pytest.mark.parametrize("side", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("kernel_size", [3, 5])
def test_depthwise_convolutions(side, strides, kernel_size):
    layer = mobilenet_layers.DepthwiseConv2D(
        kernel_size, strides=strides, padding="same", use_bias=False, name="d"
    )
    assert_same_as_keras(layer, (4, side, side + 1, 3))


@pytest.mark.parametrize(
    "shape, options, is_own",
    [
        ((2, 6, 6, 3), {}, True),
        ((2, 12, 12, 3), {}, False),
        ((2, 6, 6, 3), {"padding": "valid"}, False),
        ((2, 6, 6, 3), {"use_bias": True}, False),
        ((2, 6, 6, 3), {"depth_multiplier": 2}, False),
    ],
)
def test_only_small_plain_ones_have_a_gradient_of_their_own(
    monkeypatch, shape, options, is_own
):
    called = []
    own = mobilenet_layers._kernel_gradient
    monkeypatch.setattr(
        mobilenet_layers,
        "_kernel_gradient",
        lambda *args: called.append(1) or own(*args),
    )
    options = {"padding": "same", "use_bias": False, **options}
    layer = mobilenet_layers.DepthwiseConv2D(3, **options, name="d")
    assert_same_as_keras(layer, shape)
    assert bool(called) == is_own


def test_gpus_have_tensorflows_gradient(monkeypatch):
    monkeypatch.delattr(mobilenet_layers, "_kernel_gradient")
    with layers.as_if_gpus():
        layer = mobilenet_layers.DepthwiseConv2D(
            3, padding="same", use_bias=False, name="d"
        )
        assert_same_as_keras(layer, (2, 6, 6, 3))


# --- The cosine classifier --------------------------------------------------------


def test_logits_are_scaled_cosines():
    rng = np.random.default_rng(0)
    f, w = rng.normal(size=(5, 3)), rng.normal(size=(7, 3))
    cosines = (f @ w.T) / np.outer(np.linalg.norm(f, axis=1), np.linalg.norm(w, axis=1))
    logits = models.cosine_logits(tf.constant(f), tf.constant(w), scale=20.0)
    np.testing.assert_allclose(logits, 20 * cosines, rtol=1e-9)


def test_zero_vectors_have_cosine_zero_and_a_finite_gradient():
    f, w = tf.zeros([2, 3]), tf.zeros([4, 3])
    with tf.GradientTape() as tape:
        tape.watch((f, w))
        logits = models.cosine_logits(f, w)
    np.testing.assert_array_equal(logits, 0.0)
    for gradient in tape.gradient(logits, (f, w)):
        assert np.isfinite(gradient).all()


def test_logits_never_exceed_the_scale():
    rng = np.random.default_rng(0)
    f = rng.normal(size=(500, 7)).astype(np.float32)
    unit = f / np.linalg.norm(f, axis=1, keepdims=True)
    assert (unit @ unit.T).max() > 1.0  # This is what rounding does.
    assert models.cosine_logits(f, f, scale=20.0).numpy().max() == 20.0
    assert models.cosine_logits(f, -f, scale=20.0).numpy().min() == -20.0


@pytest.mark.parametrize("num_classes, embedding_dim", [(2000, 64), (300, 1280)])
def test_initial_rows_have_a_norm_of_about_a_third(num_classes, embedding_dim):
    w = models.initial_classifier(num_classes, embedding_dim, [0, 0])
    norms = np.linalg.norm(w, axis=1)
    assert norms.mean() == pytest.approx(0.3, rel=0.02)
    # The directions are unrelated: cosines have mean 0 and deviation 1 / sqrt(d).
    cosines = models.cosine_logits(w, w, scale=1.0).numpy()
    others = cosines[~np.eye(num_classes, dtype=bool)]
    assert abs(others.mean()) < 1e-3
    assert others.std() == pytest.approx(embedding_dim**-0.5, rel=0.02)


@pytest.mark.parametrize("num_classes", [11, 2028])
def test_at_adacos_scale_a_class_at_45_degrees_has_half_the_probability(num_classes):
    cosines = np.zeros(num_classes)
    cosines[0] = np.cos(np.pi / 4)
    odds = np.exp(models.adacos_scale(num_classes) * cosines)
    np.testing.assert_allclose(odds[0] / odds.sum(), 1 / 2, rtol=1e-6)
    assert models.adacos_scale(2) == 3.0
