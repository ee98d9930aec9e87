"""The names of layers, by which a file of weights knows them."""

import functools

import pytest
import tensorflow as tf

from tff_fedss import models
from tff_fedss.models.layers import LayerNames

SHAPE = (32, 32, 3)
SLOW = pytest.mark.slow

BUILDERS = {
    **{
        name: functools.partial(build, SHAPE, 8)
        for name, build in models.FEATURE_EXTRACTORS.items()
    },
    **{
        name: functools.partial(build, SHAPE, 8, 0)
        for name, build in models.NETWORKS.items()
    },
    "wide_resnet": functools.partial(
        models.wide_resnet, SHAPE, 4, depth=10, widening=1, dropout=0.3
    ),
    **{
        f"{name} with a head": lambda build=build: models.with_projection_head(
            build(SHAPE)
        )
        for name, build in models.BACKBONES.items()
    },
    "mlp": functools.partial(models.mlp, (5,), 8),
}
_LARGE = {name for name in BUILDERS if name.startswith(("mobile", "resnet", "vgg"))}
_LARGE |= {name for name in models.NETWORKS if name.startswith("wide")}


def names(model):
    return [layer.name for layer in model.layers]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=SLOW if n in _LARGE else ()) for n in BUILDERS]
)
def test_do_not_depend_on_what_was_built_before(name):
    first, second = BUILDERS[name](), BUILDERS[name]()
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


def test_count_by_kind():
    count = LayerNames()
    assert [count(kind) for kind in ("conv", "norm", "conv")] == [
        "conv_1",
        "norm_1",
        "conv_2",
    ]
    assert LayerNames()("conv") == "conv_1"


def test_of_small_cnn_say_what_a_layer_is():
    with_weights = [
        layer.name for layer in models.small_cnn(SHAPE).layers if layer.weights
    ]
    convolutions = [f"{kind}_{i}" for i in range(1, 5) for kind in ("conv", "norm")]
    assert with_weights == [*convolutions, "embedding"]
