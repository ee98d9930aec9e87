import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import losses


def slow_magnet_loss(r, classes, alpha):
    """Eq. 1, term by term."""
    num_clusters, per_cluster, _ = r.shape
    means = [cluster.mean(0) for cluster in r]
    variance = sum(
        np.sum((r[m, d] - means[m]) ** 2)
        for m in range(num_clusters)
        for d in range(per_cluster)
    ) / (num_clusters * per_cluster - 1)
    result = np.zeros([num_clusters, per_cluster])
    for m in range(num_clusters):
        for d in range(per_cluster):
            own = np.sum((r[m, d] - means[m]) ** 2)
            others = [
                np.exp(-np.sum((r[m, d] - means[j]) ** 2) / (2 * variance))
                for j in range(num_clusters)
                if classes[j] != classes[m]
            ]
            if others:
                share = np.exp(-own / (2 * variance) - alpha) / sum(others)
                result[m, d] = max(0.0, -np.log(share))
    return result


def batch(seed, spread=1.0, shape=(5, 4, 3)):
    generator = np.random.default_rng(seed)
    centers = spread * generator.standard_normal([shape[0], 1, shape[2]])
    return (centers + generator.standard_normal(shape)).astype(np.float32)


CLASSES = np.array([0, 1, 1, 2, 0], np.int32)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_it_is_equation_1(alpha, spread):
    r = batch(0, spread)
    expected = slow_magnet_loss(r.astype(np.float64), CLASSES, alpha)
    assert (expected > 0).any()
    np.testing.assert_allclose(
        losses.magnet_loss(r, CLASSES, alpha), expected, rtol=1e-4, atol=1e-5
    )


def test_the_gradient_is_that_of_the_loss():
    (gradient,), (differences,) = tf.test.compute_gradient(
        lambda r: tf.reduce_mean(losses.magnet_loss(r, CLASSES, 1.0)),
        [batch(2).astype(np.float64)],
        1e-6,
    )
    np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    "r, classes",
    [
        (batch(3), np.zeros(5, np.int32)),  # no other class
        (np.zeros([5, 4, 3], np.float32), CLASSES),  # no variance
    ],
)
def test_nothing_becomes_nan(r, classes):
    variable = tf.constant(r)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        values = losses.magnet_loss(variable, classes)
        loss = tf.reduce_mean(values)
    assert np.isfinite(values).all()
    assert np.isfinite(tape.gradient(loss, variable)).all()
    if not classes.any():
        assert (values.numpy() == 0).all()
