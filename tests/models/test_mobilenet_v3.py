import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import models

SOP_CLASSES, LANDMARKS_CLASSES = 11_318, 2_028


# Building a network takes seconds: the tests share those that they do not change.
@functools.cache
def tiny():
    return models.mobilenet_v3((32, 32, 3), 8, size="small", alpha=0.25)


@functools.cache
def paper(embedding_dim):
    return models.paper_feature_extractor((32, 32, 3), embedding_dim)


def test_an_example_does_not_depend_on_its_batch():
    images = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3))
    images = images.astype(np.float32)
    for training in (False, True):
        together = tiny()(images, training=training).numpy()
        alone = tiny()(images[:1], training=training).numpy()
        np.testing.assert_allclose(together[:1], alone, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "size, alpha",
    [("small", 0.25), pytest.param("large", 0.9, marks=pytest.mark.slow)],
)
def test_every_batch_norm_is_a_group_norm_of_8_channels(size, alpha):
    model = tiny() if size == "small" else paper(64)
    keras_class = getattr(tf.keras.applications, f"MobileNetV3{size.title()}")
    theirs = keras_class((32, 32, 3), alpha=alpha, weights=None, include_top=False)
    kinds = (tf.keras.layers.BatchNormalization, tf.keras.layers.Dropout)
    assert not [layer for layer in model.layers if isinstance(layer, kinds)]
    assert not model.non_trainable_weights
    kind = tf.keras.layers.GroupNormalization
    norms = [layer for layer in model.layers if isinstance(layer, kind)]
    assert [layer.name for layer in norms] == [
        layer.name
        for layer in theirs.layers
        if isinstance(layer, tf.keras.layers.BatchNormalization)
    ]
    assert len(norms) == {"small": 34, "large": 46}[size]
    for layer in norms:
        width = layer.gamma.shape[0]
        assert width % 8 == 0 and layer.groups == width // 8
        assert layer.epsilon == pytest.approx(1e-3)
    # All other weights are Keras's, by name and shape.
    ours = {v.name: v.shape for v in model.weights}
    for variable in theirs.trainable_weights:
        assert ours.pop(variable.name) == variable.shape
    assert sorted(ours) == [
        "Conv_2/bias:0",
        "Conv_2/kernel:0",
        "embedding/bias:0",
        "embedding/kernel:0",
    ]


def build_in_graph(images):
    with tf.Graph().as_default() as graph:
        model = models.mobilenet_v3((32, 32, 3), 8, size="small", alpha=0.25)
        features = model(tf.constant(images))
        # The weights of Keras's own model must not burden the caller's graph.
        variables = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        assert len(variables) == len(model.weights)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run([[v.read_value() for v in model.weights], features])


@pytest.mark.slow
def test_graphs_and_eager_mode_give_the_same_weights_and_features():
    images = np.random.default_rng(3).integers(0, 256, (2, 32, 32, 3))
    images = images.astype(np.float32)
    # Alternately: Keras marks models with the mode that they were built in.
    for _ in range(2):
        graph_weights, graph_features = build_in_graph(images)
        model = models.mobilenet_v3((32, 32, 3), 8, size="small", alpha=0.25)
        features = model(images).numpy()
        for a, b in zip(model.weights, graph_weights, strict=True):
            np.testing.assert_array_equal(a.numpy(), b, err_msg=a.name)
        np.testing.assert_allclose(graph_features, features, rtol=1e-3, atol=1e-5)


def test_every_weight_has_a_gradient():
    model = tiny()
    images = np.random.default_rng(4).integers(0, 256, (8, 32, 32, 3))
    with tf.GradientTape() as tape:
        features = model(images.astype(np.float32), training=True)
        direction = tf.random.stateless_normal(features.shape, [0, 0])
        loss = tf.reduce_sum(features * direction)
    gradients = tape.gradient(loss, model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert gradient is not None, variable.name
        assert np.isfinite(gradient.numpy()).all(), variable.name
        assert np.abs(gradient.numpy()).max() > 0, variable.name


def test_the_papers_feature_extractor_meets_all_four_printed_shares():
    at_64 = sum(v.shape.num_elements() for v in paper(64).weights)
    at_1280 = sum(v.shape.num_elements() for v in paper(1280).weights)
    assert (at_64, at_1280) == (3_677_016, 3_595_032)

    def percent(fraction, digits=0):
        return round(100 * fraction, digits)

    # Section 4.3, in the order of its text and to the digits that it prints.
    assert percent(models.last_layer_share(at_64, SOP_CLASSES, 64)) == 16
    assert percent(models.last_layer_share(at_64, LANDMARKS_CLASSES, 64), 1) == 3.4
    sop = models.communication_saving(at_1280, SOP_CLASSES, 1280, 100)
    assert percent(sop) == 79
    landmarks = models.communication_saving(at_1280, LANDMARKS_CLASSES, 1280, 170)
    assert percent(landmarks) == 38
    # "Only 84 % of the model parameters on every client" (SOP, |S_k| = 100).
    assert percent(1 - models.communication_saving(at_64, SOP_CLASSES, 64, 100)) == 84


def test_shares_by_hand():
    # phi 700, W 30 x 10 = 300 of 1,000; 10 of 30 rows travel.
    assert models.last_layer_share(700, 30, 10) == pytest.approx(0.3)
    assert models.communication_saving(700, 30, 10, 10) == pytest.approx(0.2)
    assert models.communication_saving(700, 30, 10, 30) == 0
