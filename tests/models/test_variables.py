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
