"""Eager tensors that leave nothing in memory."""

import tracemalloc

import numpy as np
import tensorflow as tf

from tff_fedss import tensors

ARRAYS = {
    "image": np.arange(24, dtype=np.uint8).reshape(4, 3, 2),
    "name": np.array([b"a", b"bc", b"", b"d"], object),
    "parts": (np.arange(4.0), tf.range(4)),
}


def test_slices_are_those_of_tensorflow():
    found = tensors.slices(ARRAYS)
    expected = tf.data.Dataset.from_tensor_slices(ARRAYS)
    assert found.element_spec == expected.element_spec
    for a, b in zip(found, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, a, b)


def left_objects(make, rounds=300):
    """How many objects stay after data sets have been made and dropped."""
    arrays = [np.arange(4), np.arange(8).reshape(4, 2)]
    make(arrays)
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        for _ in range(rounds):
            make(arrays)
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    made_there = [tracemalloc.Filter(True, "*/constant_op.py")]
    changes = after.filter_traces(made_there).compare_to(
        before.filter_traces(made_there), "filename"
    )
    return sum(change.count_diff for change in changes)


def test_a_data_set_leaves_no_tensor():
    # TensorFlow's own leave one for each array: if not, `tensors` is not needed.
    own = left_objects(lambda x: tf.data.Dataset.from_tensor_slices(tuple(x)))
    assert own >= 600
    # Python keeps some free objects for later ones.
    assert left_objects(lambda x: tensors.slices(tuple(x))) < 150
