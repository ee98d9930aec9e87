"""Exchange of W: how its rows travel from the server to the clients of a round.

A client trains on W_{S_k} alone, whatever else it got: `select_rows`, `send_union` and
`send_all` give the same results (FedSS, Algorithm 1, lines 6-7).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import class_sets

# The rows of W that a client gets: those it asks for; those that any client of the
# round asks for; all.
REQUESTS = ("sampled", "union", "all")


class Exchange(NamedTuple):
    """One way to bring W_{S_k} to client k.

    Attributes:
        send: Maps (W at the server, class sets at the clients) to what each client
            gets, inside a `tff.federated_computation`.
        receive: Maps (what a client got, its class set) to W_{S_k}, float32[L, d], and
            the number of rows it got, without padding, int32[], in TensorFlow.
        sent_type: The type of what a client gets, TFF's or a `tf.TensorSpec`.
    """

    send: Callable[[Any, Any], Any]
    receive: Callable[[Any, class_sets.ClassSet], tuple[tf.Tensor, tf.Tensor]]
    sent_type: tff.Type | tf.TensorSpec


def build(
    builder: class_sets.ClassSetBuilder,
    requests: str,
    w_spec: tf.TensorSpec,
    class_set_type: tff.Type,
) -> Exchange:
    """Builds the exchange of a process, one of `REQUESTS`, for W of the spec [n, d]."""
    if builder.is_everything:  # S_k = [n]: nothing is left to gather.
        return send_all(w_spec)._replace(
            receive=lambda w, class_set: (w, tf.size(class_set.keys))
        )
    if requests == "all":
        return send_all(w_spec)
    make = send_union if requests == "union" else select_rows
    return make(w_spec, class_set_type)


def select_rows(w_spec: tf.TensorSpec, class_set_type: tff.Type) -> Exchange:
    """Builds the exchange of Algorithm 1: a client gets the rows it asks for."""
    num_classes, embedding_dim = w_spec.shape
    (size,) = class_set_type.keys.shape
    keys_of = _keys_of(class_set_type)

    @tff.tensorflow.computation(w_spec, np.int32)
    def row_of(w, key):
        return tf.gather(w, key)

    def send(w, sets):
        return tff.federated_select(
            tff.federated_map(keys_of, sets),
            tff.federated_value(num_classes - 1, tff.SERVER),
            w,
            row_of,
        )

    def receive(rows, class_set):
        rows = rows.batch(size, drop_remainder=True).get_single_element()
        return rows, tf.math.count_nonzero(class_set.is_asked, dtype=tf.int32)

    row_type = tff.TensorType(np.float32, [embedding_dim])
    return Exchange(send, receive, tff.SequenceType(row_type))


def union_of_keys(size: int) -> tff.Computation:
    """Builds {int32[size]}@CLIENTS -> int32[?]@SERVER: distinct keys, ascending.

    The server sees only the union over the cohort, as after a private set union (Niu et
    al., MobiCom 2020), whose protocol is not run here.
    """
    list_type = tff.TensorType(np.int32, [None])
    keys_type = tff.TensorType(np.int32, [size])

    @tff.tensorflow.computation
    def no_keys():
        # A constant would fix the list's length at 0.
        return tf.zeros([tf.compat.v1.placeholder_with_default(0, [])], tf.int32)

    def union_of(a, b):
        return tf.sort(tf.unique(tf.concat([a, b], 0)).y)

    add = tff.tensorflow.computation(union_of, list_type, keys_type)
    merge = tff.tensorflow.computation(union_of, list_type, list_type)
    report = tff.tensorflow.computation(lambda keys: keys, list_type)

    @tff.federated_computation(tff.FederatedType(keys_type, tff.CLIENTS))
    def union(keys):
        return tff.federated_aggregate(keys, no_keys(), add, merge, report)

    return union


def send_union(w_spec: tf.TensorSpec, class_set_type: tff.Type) -> Exchange:
    """Builds the exchange that sends each client all rows that any client asks for."""
    _, embedding_dim = w_spec.shape
    keys_of = _keys_of(class_set_type)
    union_of = union_of_keys(*class_set_type.keys.shape)

    @tff.tensorflow.computation(w_spec, union_of.type_signature.result.member)
    def rows_of(w, keys):
        rows = tf.ensure_shape(tf.gather(w, keys), [None, embedding_dim])
        return keys, rows

    def send(w, sets):
        union = union_of(tff.federated_map(keys_of, sets))
        return tff.federated_broadcast(tff.federated_map(rows_of, (w, union)))

    def receive(sent, class_set):
        union, rows = sent
        place = tf.searchsorted(union, class_set.keys)
        return tf.gather(rows, place), tf.size(union)

    return Exchange(send, receive, rows_of.type_signature.result)


def send_all(w_spec: tf.TensorSpec) -> Exchange:
    """Builds the exchange that sends all of W to clients that train some rows."""

    def send(w, sets):
        return tff.federated_broadcast(w)

    def receive(w, class_set):
        return tf.gather(w, class_set.keys), tf.constant(w_spec.shape[0])

    return Exchange(send, receive, w_spec)


def _keys_of(class_set_type: tff.Type) -> tff.Computation:
    return tff.tensorflow.computation(lambda class_set: class_set.keys, class_set_type)
