"""Each layer against those of Keras that it stands for, gradients included."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tff_fedss.models import (
    layers,
    mobilenet_layers,
)


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


def in_model(layer, shape):
    """A layer whose shape is known, as it is in a model."""
    tf.keras.Model(inputs := tf.keras.Input(shape[1:]), layer(inputs))
    return layer


def test_hard_swish():
    shape = (2, 5, 4, 3)
    assert_same_as_keras(in_model(mobilenet_layers.HardSwish(name="h"), shape), shape)


def test_hard_swish_bends_at_3():
    x = tf.constant([-4.0, -3.0, -1.5, 0.0, 3.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = mobilenet_layers.HardSwish()(x)
    np.testing.assert_allclose(y, [0, 0, -0.375, 0, 3, 4], atol=1e-6)
    slope = tape.gradient(y, x).numpy()
    np.testing.assert_allclose(slope[[0, 2, 3, 5]], [0, 0, 0.5, 1], atol=1e-6)


def test_squeeze():
    shape = (3, 5, 4, 2)
    assert_same_as_keras(in_model(mobilenet_layers.Squeeze(name="s"), shape), shape)


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
