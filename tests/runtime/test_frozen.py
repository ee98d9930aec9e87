"""Values survive the way to another process."""

import collections
import pickle
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.toy import same_bytes
from tff_fedss.runtime import frozen


class Pair(NamedTuple):
    z: object
    a: object


def sent(value, type_spec, **kwargs):
    frozen_value = frozen.freeze(value, type_spec)
    return frozen.thaw(pickle.loads(pickle.dumps(frozen_value)), type_spec, **kwargs)


def through_a_computation(value, type_spec):
    """What a computation sees, so that containers do not matter."""

    @tff.tensorflow.computation(type_spec)
    def see(x):
        return x

    return see(value)


def test_structs_tensors_and_names():
    type_spec = tff.to_type(
        collections.OrderedDict(
            z=tff.TensorType(np.float32, [2]), a=[np.int32, np.str_]
        )
    )
    value = collections.OrderedDict(z=tf.constant([1.0, 2.0]), a=[3, "x"])
    same_bytes(
        through_a_computation(sent(value, type_spec), type_spec),
        through_a_computation(value, type_spec),
    )


def test_an_endless_data_set_is_refused():
    with pytest.raises(ValueError, match="An endless data set"):
        frozen.freeze(tf.data.Dataset.range(5).repeat(), tff.SequenceType(np.int64))


@pytest.mark.parametrize("num_examples", [0, 1, 5000])
def test_a_data_set(num_examples):
    # The names of a tuple keep their order where those of a mapping are sorted.
    data = tf.data.Dataset.range(num_examples).map(
        lambda i: Pair(z=tf.cast(i, tf.int32), a=tf.stack([i, 2 * i]))
    )
    element = Pair(z=np.int32, a=tff.TensorType(np.int64, [2]))
    found = sent(data, tff.SequenceType(element))
    same_bytes(
        [tuple(e.values()) for e in found.as_numpy_iterator()],
        [tuple(e) for e in data.as_numpy_iterator()],
    )


def test_a_data_set_of_shapes_that_differ():
    data = tf.data.Dataset.range(4).map(lambda i: {"x": tf.range(i), "y": i})
    type_spec = tff.SequenceType(
        collections.OrderedDict(x=tff.TensorType(np.int64, [None]), y=np.int64)
    )
    found = through_a_computation(sent(data, type_spec), type_spec)
    same_bytes(list(found), list(data.as_numpy_iterator()))


def test_clients_by_name_are_made_where_they_arrive():
    type_spec = tff.FederatedType(np.float32, tff.CLIENTS)
    refs = [frozen.ClientRef(("a", np.array([1, 2], np.int32))), 7.0]
    make = lambda client_id, seed: f"{client_id}{seed[1]}"  # noqa: E731
    assert sent(refs, type_spec, client_fn=make) == ["a2", 7.0]
    # Or before they leave.
    make = lambda client_id, seed: float(seed[0])  # noqa: E731
    assert frozen.freeze(refs, type_spec, make) == [1.0, 7.0]


def test_bytes_are_counted():
    value = (np.zeros(3, np.float32), [frozen.Sequence([np.zeros([2, 2])])], None)
    assert frozen.num_bytes(value) == 12 + 32
