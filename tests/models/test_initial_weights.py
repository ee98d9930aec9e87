"""Initial weights follow from the seed, and layers do not share their draws."""

import numpy as np
import pytest

from tff_fedss import models

SLOW = pytest.mark.slow
CIFAR = (32, 32, 3)


def mobilenet(seed):
    return models.mobilenet_v3(CIFAR, 8, size="small", alpha=0.25, seed=seed)


def head(seed):
    backbone = models.small_cnn((16, 16, 3), 12, seed=0)
    return models.with_projection_head(backbone, 5, seed).get_weights()[-4:]


def encoder(encoder):
    return [variable.numpy() for variable in encoder.trainable_variables]


BUILDERS = {
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
        for n in BUILDERS
    ],
)
def test_the_seed_decides_them(name):
    first, again, other = (BUILDERS[name](seed) for seed in (1, 1, 2))
    kernels = 0
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        if a.ndim > 1:  # The others start constant.
            kernels += 1
            assert np.abs(a - c).max() > 1e-3
    assert kernels


@pytest.mark.parametrize(
    "name, length, most", [("small_cnn", 100, 0.5), ("mobilenet", 60, 0.7)]
)
def test_layers_do_not_share_their_draws(name, length, most):
    kernels = [w for w in BUILDERS[name](0) if w.ndim > 1]
    flat = [w.ravel()[:length] / w.std() for w in kernels]
    for i, a in enumerate(flat):
        for b in flat[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) < most
