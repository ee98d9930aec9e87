import numpy as np
import tensorflow as tf

from tff_fedss.algorithms.in_place import InPlace


def test_weight_decay_is_the_gradient_of_half_the_squared_length():
    variables = [tf.Variable([1.0, -2.0]), tf.Variable([[3.0]])]
    start = [v.numpy() for v in variables]
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(variables[0] ** 3) * variables[1][0, 0]
        squares = sum(tf.reduce_sum(v**2) for v in variables)
        decayed = loss + 0.1 / 2 * squares
    trained = InPlace(variables, tf.keras.optimizers.SGD(1.0), weight_decay=0.1)
    expected = tape.gradient(decayed, variables)
    trained._descend(tape.gradient(loss, variables))
    for before, after, g in zip(start, trained.weights.trainable, expected):
        np.testing.assert_allclose(before - after, g, rtol=1e-5)
