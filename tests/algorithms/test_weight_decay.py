import numpy as np
import pytest
import tensorflow as tf

from tff_fedss.algorithms.weight_decay import with_weight_decay


def test_it_is_the_gradient_of_half_the_squared_length():
    variables = [tf.Variable([1.0, -2.0]), tf.Variable([[3.0]])]
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(variables[0] ** 3) * variables[1][0, 0]
        squares = sum(tf.reduce_sum(v**2) for v in variables)
        decayed = loss + 0.1 / 2 * squares
    ours = with_weight_decay(tape.gradient(loss, variables), variables, 0.1)
    for a, b in zip(ours, tape.gradient(decayed, variables), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_every_weight_needs_a_gradient():
    with pytest.raises(ValueError):
        with_weight_decay([tf.zeros([2])], [tf.Variable([0.0, 0.0])] * 2, 0.1)
