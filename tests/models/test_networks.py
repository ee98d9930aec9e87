"""small_cnn, LeNet, VGG-16, ResNet-18 and WideResNet."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import models, runtime

CIFAR = (32, 32, 3)
SLOW = pytest.mark.slow


def num_parameters(model):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


# 5x5 kernels with biases, then the dense layers.
_LENET_28 = (
    (25 * 1 * 6 + 6)
    + (25 * 6 * 16 + 16)
    + (400 * 120 + 120)
    + (120 * 84 + 84)
    + (84 * 10 + 10)
)


@pytest.mark.parametrize(
    "name, image_shape, outputs, expected",
    [
        ("lenet", (28, 28, 1), 10, _LENET_28),
        # As known for CIFAR-10: 11.17 M, 36.5 M and 11.0 M. VGG-16 with batch
        # normalization has 14,728,266 with the 4,224 biases of its convolutions.
        ("resnet18", CIFAR, 10, 11_173_962),
        pytest.param("wide_resnet_28_10", CIFAR, 10, 36_479_194, marks=SLOW),
        pytest.param("wide_resnet_16_8", CIFAR, 10, 10_961_370, marks=SLOW),
        pytest.param("vgg16", CIFAR, 10, 14_728_266 - 4_224, marks=SLOW),
    ],
)
def test_networks_have_their_published_size(name, image_shape, outputs, expected):
    model = models.NETWORKS[name](image_shape, outputs, 0)
    assert model.output_shape == (None, outputs)
    assert num_parameters(model) == expected


@pytest.mark.parametrize("image_shape", [(28, 28, 1), CIFAR, (5, 7, 1)])
def test_small_cnn_maps_images_to_embeddings(image_shape):
    model = models.small_cnn(image_shape, embedding_dim=16)
    images = np.random.default_rng(0).integers(0, 256, (3, *image_shape))
    features = model(images.astype(np.float32)).numpy()
    assert features.shape == (3, 16)
    assert np.isfinite(features).all() and features.std() > 0
    assert not model.non_trainable_variables


def test_a_small_wide_resnet_runs():
    model = models.wide_resnet((8, 8, 3), 4, depth=10, widening=1, dropout=0.3)
    assert model(np.zeros([2, 8, 8, 3], np.float32)).shape == (2, 4)
    with pytest.raises(ValueError, match="depth=11 must be"):
        models.wide_resnet((8, 8, 3), 4, depth=11, widening=1, dropout=0.3)


def test_dropout_drops_its_share_and_keeps_the_mean():
    layer = models.CountedDropout(0.3, seed=1)
    ones = tf.ones([100, 100])
    dropped = layer(ones, training=True).numpy()
    assert np.mean(dropped == 0) == pytest.approx(0.3, abs=0.02)
    np.testing.assert_allclose(dropped[dropped > 0], 1 / 0.7, rtol=1e-6)
    np.testing.assert_array_equal(layer(ones, training=False), ones)


def test_dropout_resumes_from_saved_weights():
    ones = tf.ones([20, 20])
    layer, resumed = (models.CountedDropout(0.5, seed=1) for _ in range(2))
    first = layer(ones, training=True).numpy()
    resumed(ones)
    resumed.set_weights(layer.get_weights())
    second = layer(ones, training=True).numpy()
    assert (first != second).any()
    np.testing.assert_array_equal(resumed(ones, training=True), second)


def test_inference_takes_the_weights_of_the_moment():
    model = models.lenet((16, 16, 1), 3)
    infer = models.inference(model)
    images = np.random.default_rng(0).integers(0, 256, (600, 16, 16, 1), np.uint8)
    for _ in range(2):
        expected = model(images.astype(np.float32), training=False)
        np.testing.assert_allclose(infer(images), expected, rtol=1e-4, atol=1e-4)
        model.set_weights([0.5 * w for w in model.get_weights()])


@pytest.mark.parametrize(
    "name, image_shape",
    [
        ("small_cnn", (16, 16, 1)),
        ("lenet", CIFAR),
        *(
            pytest.param(n, CIFAR, marks=SLOW)
            for n in ("mobilenet_v3_small", "resnet18", "vgg16", "wide_resnet_16_8")
        ),
    ],
)
def test_mixed_precision_keeps_weights_and_what_comes_out_in_float32(name, image_shape):
    build = {**models.NETWORKS, **models.FEATURE_EXTRACTORS}[name]
    images = np.random.default_rng(0).integers(0, 256, (4, *image_shape))
    images = images.astype(np.float32)
    expected = build(image_shape, 8, seed=1)
    runtime.configure_gpus(mixed_precision=True)
    try:
        model = build(image_shape, 8, seed=1)
    finally:
        runtime.configure_gpus()
    dtypes = {layer.compute_dtype for layer in model.layers}
    assert dtypes >= {"bfloat16", "float32"}
    for layer in model.layers:
        if isinstance(layer, models.GroupNormalization):
            assert layer.compute_dtype == "float32"
    assert {v.dtype for v in model.trainable_variables} == {tf.float32}
    for a, b in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    found = model(images)
    assert found.dtype == tf.float32
    cosines = tf.reduce_sum(models.unit(found) * models.unit(expected(images)), 1)
    assert tf.reduce_min(cosines) > 0.98
    # The next one is as if nothing had been.
    again = build(image_shape, 8, seed=1)(images)
    np.testing.assert_array_equal(again, expected(images))
