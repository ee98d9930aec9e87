import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import algorithms


def steps_of(optimizer, gradients):
    """The weights after each step, from two variables of ones and twos."""
    variables = [tf.Variable([1.0, 1.0]), tf.Variable(2.0)]
    optimizer.build(variables)
    found = []
    for gradient in gradients:
        optimizer.apply_gradients(zip(gradient, variables, strict=True))
        found.append([v.numpy().copy() for v in variables])
    return found


GRADIENTS = [
    [tf.constant(np.float32(g)), tf.constant(np.float32(g[0]))]
    for g in np.random.default_rng(0).normal(size=(6, 2))
]


def test_the_rate_multiplies_the_momentum():
    schedule = algorithms.CosineByEpoch(0.4, epochs=3, steps_per_epoch=2)
    found = steps_of(algorithms.SGDUnderRate(schedule, 0.9), GRADIENTS)
    weights = [np.ones(2), np.float64(2.0)]
    momentums = [np.zeros(2), 0.0]
    for step, gradient in enumerate(GRADIENTS):
        rate = 0.4 * 0.5 * (1 + np.cos(np.pi * (step // 2) / 3))
        for i, g in enumerate(gradient):
            momentums[i] = 0.9 * momentums[i] + np.float64(g)
            weights[i] = weights[i] - rate * momentums[i]
            np.testing.assert_allclose(found[step][i], weights[i], rtol=1e-5)


def test_with_a_constant_rate_it_is_keras_s():
    ours = steps_of(algorithms.SGDUnderRate(0.1, 0.9), GRADIENTS)
    theirs = steps_of(tf.keras.optimizers.SGD(0.1, 0.9), GRADIENTS)
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_the_rate_is_that_of_the_epoch():
    schedule = algorithms.CosineByEpoch(0.06, epochs=4, steps_per_epoch=10)
    rates = [float(schedule(tf.constant(step, tf.int64))) for step in range(40)]
    for epoch in range(4):
        own = rates[10 * epoch : 10 * epoch + 10]
        assert len(set(own)) == 1
        assert own[0] == pytest.approx(0.03 * (1 + np.cos(np.pi * epoch / 4)))
    assert rates[0] == pytest.approx(0.06) and rates[-1] > 0
