"""small_cnn, LeNet, VGG-16, ResNet-18 and WideResNet."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import models, runtime

CIFAR = (32, 32, 3)
SLOW = pytest.mark.slow


def num_parameters(model):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def last_images(model):
    """The shape of the last images in it."""
    return [x.output_shape for x in model.layers if len(x.output_shape) == 4][-1]


# 5x5 kernels with biases, then the dense layers.
_LENET_28 = (
    (25 * 1 * 6 + 6)
    + (25 * 6 * 16 + 16)
    + (400 * 120 + 120)
    + (120 * 84 + 84)
    + (84 * 10 + 10)
)


@pytest.mark.parametrize(
    "name, image_shape, side, expected",
    [
        ("lenet", (28, 28, 1), 5, _LENET_28),
        # As known for CIFAR-10: 11.17 M, 36.5 M and 11.0 M. VGG-16 with batch
        # normalization has 14,728,266 with the 4,224 biases of its convolutions.
        ("resnet18", CIFAR, 4, 11_173_962),
        pytest.param("wide_resnet_28_10", CIFAR, 8, 36_479_194, marks=SLOW),
        pytest.param("wide_resnet_16_8", CIFAR, 8, 10_961_370, marks=SLOW),
        pytest.param("vgg16", CIFAR, 1, 14_728_266 - 4_224, marks=SLOW),
    ],
)
def test_networks_have_their_published_size(name, image_shape, side, expected):
    model = models.NETWORKS[name](image_shape, 10, 0)
    assert model.output_shape == (None, 10)
    assert num_parameters(model) == expected
    assert last_images(model)[1] == side


def test_dropout_drops_its_share_and_keeps_the_mean():
    layer = models.CountedDropout(0.3, seed=1)
    ones = tf.ones([100, 100])
    dropped = layer(ones, training=True).numpy()
    assert np.mean(dropped == 0) == pytest.approx(0.3, abs=0.02)
    np.testing.assert_allclose(dropped[dropped > 0], 1 / 0.7, rtol=1e-6)
    np.testing.assert_array_equal(layer(ones, training=False), ones)


def test_dropout_resumes_from_saved_weights():
    ones = tf.ones([20, 20])
    layer, resumed, other = (models.CountedDropout(0.5, seed) for seed in (1, 1, 2))
    first = layer(ones, training=True).numpy()
    assert (first != other(ones, training=True).numpy()).any()
    resumed(ones)
    resumed.set_weights(layer.get_weights())
    second = layer(ones, training=True).numpy()
    assert (first != second).any()
    np.testing.assert_array_equal(resumed(ones, training=True), second)


@pytest.mark.parametrize(
    "name, image_shape",
    [
        ("small_cnn", (16, 16, 1)),
        pytest.param("mobilenet_v3_small", CIFAR, marks=SLOW),
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


NAMED = {
    **{
        name: functools.partial(build, CIFAR, 8)
        for name, build in models.FEATURE_EXTRACTORS.items()
    },
    **{
        name: functools.partial(build, CIFAR, 8, 0)
        for name, build in models.NETWORKS.items()
    },
    "wide_resnet": functools.partial(
        models.wide_resnet, CIFAR, 4, depth=10, widening=1, dropout=0.3
    ),
    **{
        f"{name} with a head": lambda build=build: models.with_projection_head(
            build(CIFAR)
        )
        for name, build in models.BACKBONES.items()
    },
    "mlp": functools.partial(models.mlp, (5,), 8),
}
_LARGE = {name for name in NAMED if name.startswith(("mobile", "resnet", "vgg"))}
_LARGE |= {name for name in models.NETWORKS if name.startswith("wide")}


def names(model):
    return [layer.name for layer in model.layers]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=SLOW if n in _LARGE else ()) for n in NAMED]
)
def test_do_not_depend_on_what_was_built_before(name):
    first, second = NAMED[name](), NAMED[name]()
    assert names(first) == names(second)
    assert first.name == second.name
    assert len(set(names(first))) == len(names(first))
    assert [v.name for v in first.variables] == [v.name for v in second.variables]


def test_do_not_depend_on_graphs():
    def build():
        return models.small_cnn((8, 8, 1), 4)

    expected = names(build())
    for _ in range(2):
        with tf.Graph().as_default():  # As TFF does, for every computation.
            assert names(build()) == expected == names(build())
    assert names(build()) == expected


def mobilenet(seed):
    return models.mobilenet_v3(CIFAR, 8, size="small", alpha=0.25, seed=seed)


def head(seed):
    backbone = models.small_cnn((16, 16, 3), 12, seed=0)
    return models.with_projection_head(backbone, 5, seed).get_weights()[-4:]


def encoder(encoder):
    return [variable.numpy() for variable in encoder.trainable_variables]


WEIGHTS = {
    "small_cnn": lambda seed: models.small_cnn((28, 28, 1), seed=seed).get_weights(),
    "mobilenet": lambda seed: mobilenet(seed).get_weights(),
    "lenet": lambda seed: models.lenet(CIFAR, 5, seed).get_weights(),
    "resnet18": lambda seed: models.resnet18(CIFAR, 5, seed).get_weights(),
    "vgg16": lambda seed: models.vgg16(CIFAR, 5, seed).get_weights(),
    "head": head,
    "lstm": lambda seed: encoder(
        models.LstmEncoder(20, 6, batch_size=2, num_units=5, seed=seed)
    ),
    "sparse": lambda seed: encoder(models.SparseEncoder(20, 6, seed=seed)),
    "classifier": lambda seed: [models.initial_classifier(10, 4, [seed, 0]).numpy()],
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=SLOW if n in ("resnet18", "vgg16") else ())
        for n in WEIGHTS
    ],
)
def test_the_seed_decides_them(name):
    first, again, other = (WEIGHTS[name](seed) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    kernels = [a for a in first if a.ndim > 1]  # The others start constant.
    assert kernels
    for a in kernels:
        for c in other:
            assert a.shape != c.shape or np.abs(a - c).max() > 1e-3


@pytest.mark.parametrize(
    "name, length, most", [("small_cnn", 100, 0.5), ("mobilenet", 60, 0.7)]
)
def test_layers_do_not_share_their_draws(name, length, most):
    kernels = [w for w in WEIGHTS[name](0) if w.ndim > 1]
    flat = [w.ravel()[:length] / w.std() for w in kernels]
    for i, a in enumerate(flat):
        for b in flat[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) < most


def test_it_has_the_size_of_torchvision_s_without_its_classifier():
    model = models.BACKBONES["resnet50"]((64, 64, 3), seed=0)
    assert model.output_shape == (None, 2048)
    trainable = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    # 25,557,032 parameters, of which 2,049,000 are the classifier's.
    assert trainable == 25_557_032 - 2_049_000
    assert model.count_params() - trainable == 53_120  # Moving means and variances.
    # Five times halved: stem, pooling and three stages.
    assert last_images(model) == (None, 2, 2, 2048)


def test_the_head_shares_the_backbone():
    backbone = models.small_cnn((16, 16, 3), 12, seed=0)
    head = models.with_projection_head(backbone, 5, 1)
    assert head.output_shape == (None, 5)
    shapes = [w.shape for w in head.get_weights()[-4:]]
    assert shapes == [(12, 12), (12,), (12, 5), (5,)]
    images = tf.random.stateless_uniform([3, 16, 16, 3], [0, 0], 0.0, 255.0)
    features = backbone(images).numpy()
    kernel_1, bias_1, kernel_2, bias_2 = head.get_weights()[-4:]
    expected = np.maximum(features @ kernel_1 + bias_1, 0) @ kernel_2 + bias_2
    np.testing.assert_allclose(head(images), expected, rtol=1e-4, atol=1e-5)
    backbone.set_weights([0 * w for w in backbone.get_weights()])
    np.testing.assert_allclose(head(images), np.zeros([3, 5]), atol=1e-6)
