import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import metrics


@pytest.mark.parametrize("class_block", [1, 7, 100, 1000])
def test_blocks_change_nothing(class_block):
    rng = np.random.default_rng(0)
    f = rng.normal(size=(20, 5)).astype(np.float32)
    w = rng.normal(size=(100, 5)).astype(np.float32)
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    np.testing.assert_array_equal(
        metrics.nearest_classes(f, w, tf.constant(class_block)), (f @ unit.T).argmax(1)
    )


def test_the_smallest_class_wins_among_equals():
    w = tf.constant([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0], [4.0, 0.0]])
    for class_block in (1, 2, 4):
        nearest = metrics.nearest_classes(
            tf.constant([[3.0, 0.0]]), w, tf.constant(class_block)
        )
        np.testing.assert_array_equal(nearest, [1])
