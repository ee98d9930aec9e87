import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import models
from tff_fedss.models import layers
from tff_fedss.models.layers import SplitBatchNormalization


def _numpy_group_norm(x, gamma, beta, groups, epsilon):
    """Group Normalization, Eq. 1-7, in float64."""
    x = x.astype(np.float64)
    y = np.empty_like(x)
    size = x.shape[-1] // groups
    for example in range(len(x)):
        for g in range(groups):
            channels = slice(g * size, (g + 1) * size)
            group = x[example, ..., channels]
            sigma = np.sqrt(group.var() + epsilon)
            y[example, ..., channels] = (group - group.mean()) / sigma
    return y * gamma + beta


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
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_its_gradient_is_that_of_the_definition(device):
    shape, groups = (2, 3, 2, 4), 2
    (ours, _), (gamma, beta) = _pair(shape, groups)
    rng = np.random.default_rng(3)
    x, direction = rng.normal(size=shape), rng.normal(size=shape)
    with tf.GradientTape() as tape:
        variable = tf.constant(x, tf.float32)
        tape.watch(variable)
        loss = tf.reduce_sum(ours(variable) * direction)
    gradient = tape.gradient(loss, variable).numpy()
    step, numeric = 1e-5, np.empty(shape)
    for index in np.ndindex(shape):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            y = _numpy_group_norm(moved, gamma, beta, groups, 1e-3)
            values.append((y * direction).sum())
        numeric[index] = (values[0] - values[1]) / (2 * step)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-3, atol=1e-4)


def test_a_large_mean_loses_nothing(device):
    # As a difference of moments, the variance would be lost in rounding here.
    shape = (2, 8, 8, 4)
    (ours, _), (gamma, beta) = _pair(shape, 2, epsilon=1e-5)
    x = np.random.default_rng(4).normal(5000, 0.5, shape).astype(np.float32)
    np.testing.assert_allclose(
        ours(x), _numpy_group_norm(x, gamma, beta, 2, 1e-5), rtol=1e-2, atol=1e-2
    )


def test_images_of_any_size():
    layer = models.GroupNormalization(2)
    layer.build((None, None, None, 4))
    function = tf.function(
        layer, input_signature=[tf.TensorSpec([None, None, None, 4])]
    )
    for shape in [(2, 3, 5, 4), (0, 3, 5, 4)]:
        x = np.random.default_rng(5).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(function(x), layer(x), rtol=1e-6)
        assert function(x).shape == shape


def test_a_model_with_it_is_built_again_from_its_configuration():
    inputs = tf.keras.Input((4, 4, 6))
    model = tf.keras.Model(inputs, models.GroupNormalization(3)(inputs))
    again = tf.keras.Model.from_config(model.get_config())
    assert isinstance(again.layers[-1], models.GroupNormalization)
    assert again.layers[-1].groups == 3


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
        for a, b in zip(*gradients, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_a_batch_that_cannot_be_split_is_refused(images):
    with pytest.raises(tf.errors.InvalidArgumentError, match="no multiple of the 5"):
        built(5)(images, training=True)
    built(5)(images, training=False)
