import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import models


def test_what_was_read_is_assigned_and_stays_as_it_was():
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    read = models.values(variables)
    variables[0].assign_add([1.0, 1.0])
    variables[1].assign(7)
    np.testing.assert_array_equal(read[0], np.float32([1, 2]))
    models.assign(variables, read)
    np.testing.assert_array_equal(variables[0], np.float32([1, 2]))
    assert int(variables[1]) == 3


@pytest.mark.parametrize("values", [[], [np.float32([1, 2])] * 2, [np.float32([1])]])
def test_values_that_do_not_fit_are_refused(values):
    with pytest.raises(ValueError):
        models.assign([tf.Variable([1.0, 2.0])], values)


def test_is_that_of_the_model():
    model = models.small_cnn((8, 8, 1), 4)
    size = models.model_size(lambda: models.small_cnn((8, 8, 1), 4))
    assert size.parameters == 4 * model.count_params()
    # Convolution and norm before each halving, then the embedding.
    outputs = 2 * (64 * 32 + 16 * 32 + 4 * 64 + 1 * 64) + 4
    assert size.activations == 4 * outputs


def test_takes_no_memory():
    size = models.model_size(lambda: models.small_cnn((100_000, 100_000, 1), 64))
    assert size.parameters == 4 * (65_184 + 6250**2 * 64 * 64 + 64)


def test_leaves_the_mode_of_keras_as_it_was():
    model = models.small_cnn((8, 8, 1), 4)
    models.model_size(lambda: models.small_cnn((8, 8, 1), 4))
    assert tf.executing_eagerly()
    assert len(model.trainable_variables) == 14
    assert models.small_cnn((8, 8, 1), 4)(tf.zeros([1, 8, 8, 1])).shape == (1, 4)


def test_says_nothing(capfd):
    models.model_size(
        lambda: models.wide_resnet((8, 8, 3), 2, depth=10, widening=1, dropout=0.1)
    )
    assert capfd.readouterr() == ("", "")
