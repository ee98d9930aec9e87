import numpy as np
import pytest
import tensorflow as tf

from tff_fedss.models.split_batch_normalization import SplitBatchNormalization

OPTIONS = dict(momentum=0.8, epsilon=1e-3)
SHAPE = (12, 3, 3, 5)


def built(num_splits):
    layer = SplitBatchNormalization(num_splits, **OPTIONS)
    layer.build((None, *SHAPE[1:]))
    rng = np.random.default_rng(0)
    layer.set_weights([rng.uniform(0.5, 1.5, 5) for _ in range(4)])
    return layer


@pytest.fixture(scope="module")
def images():
    # Parts that differ, so that their statistics do.
    rng = np.random.default_rng(1)
    shifts = np.repeat(np.arange(4.0), 3)[:, np.newaxis, np.newaxis, np.newaxis]
    return (rng.normal(size=SHAPE) + shifts).astype(np.float32)


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
    plain.build((None, *SHAPE[1:]))
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
