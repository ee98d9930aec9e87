"""How phi and W travel to the clients of a round.

An exchange is a function (phi, W, clients) -> the clients' `client_update.ClientResult`
to be called inside of a `tff.federated_computation`. It sends the clients what they ask
for, or more, and lets them train (FedSS, Algorithm 1, lines 4-11). What a client trains
does not depend on what else it got: the results of `select_rows`, `send_union` and
`send_all` are the same.
"""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss.algorithms import client_update

# What the clients of a round get of W: the rows that each asks for; those that any of
# them asks for; all.
REQUESTS = ("sampled", "union", "all")


def type_of(specs: Any) -> tff.Type:
    """Returns the TFF type of a structure of `tf.TensorSpec`s."""
    return tff.to_type(
        tf.nest.map_structure(
            lambda s: tff.TensorType(s.dtype.as_numpy_dtype, s.shape), specs
        )
    )


def select_rows(
    draw_class_set: tff.Computation,
    train_client: Callable[..., Any],
    phi_spec: Any,
    w_spec: tf.TensorSpec,
    size: int,
) -> Callable[..., Any]:
    """Builds the sparse exchange of Algorithm 1: clients get the rows they ask for.

    Args:
        draw_class_set: A TFF computation from a client's argument to its
            `class_sets.ClassSet`.
        train_client: (phi, rows, class set, client's argument) ->
            `client_update.ClientResult`, in TensorFlow. Images are read there, so that
            those of the clients at work are in memory, and not those of the cohort.
        phi_spec: The `tf.TensorSpec`s of phi.
        w_spec: That of W, [n, d].
        size: The static length of a class set.

    Returns:
        The exchange.
    """
    num_classes, embedding_dim = w_spec.shape
    row_type = tff.TensorType(np.float32, [embedding_dim])
    class_set_type = draw_class_set.type_signature.result
    client_type = draw_class_set.type_signature.parameter

    @tff.tensorflow.computation(class_set_type)
    def keys_of(class_set):
        return class_set.keys

    @tff.tensorflow.computation(type_of(w_spec), np.int32)
    def row_of(w, key):
        return tf.gather(w, key)

    @tff.tensorflow.computation(
        type_of(phi_spec), tff.SequenceType(row_type), class_set_type, client_type
    )
    def train(phi, rows, class_set, client):
        rows = rows.batch(size, drop_remainder=True).get_single_element()
        return train_client(phi, rows, class_set, client)

    def exchange(phi, w, clients):
        sets = tff.federated_map(draw_class_set, clients)
        # Lines 6-7: the clients ask, the server answers with a row per key.
        rows = tff.federated_select(
            tff.federated_map(keys_of, sets),
            tff.federated_value(num_classes - 1, tff.SERVER),
            w,
            row_of,
        )
        return tff.federated_map(
            train, (tff.federated_broadcast(phi), rows, sets, clients)
        )

    return exchange


def send_union(
    draw_class_set: tff.Computation,
    train_client: Callable[..., Any],
    phi_spec: Any,
    w_spec: tf.TensorSpec,
) -> Callable[..., Any]:
    """Builds the exchange in which all clients get the rows that any of them wants.

    Of the requests the server sees their union over the cohort, as a private set union
    gives it to the server (Niu et al., MobiCom 2020); its protocol is not run here.

    Args:
        draw_class_set: See `select_rows`.
        train_client: See `select_rows`.
        phi_spec: See `select_rows`.
        w_spec: See `select_rows`.

    Returns:
        The exchange.
    """
    _, embedding_dim = w_spec.shape
    class_set_type = draw_class_set.type_signature.result
    keys_type = class_set_type.keys
    list_type = tff.TensorType(np.int32, [None])

    @tff.tensorflow.computation(class_set_type)
    def keys_of(class_set):
        return class_set.keys

    @tff.tensorflow.computation
    def no_keys():
        # A constant would fix the list's length at 0.
        return tf.zeros([tf.compat.v1.placeholder_with_default(0, [])], tf.int32)

    @tff.tensorflow.computation(list_type, keys_type)
    def add(keys, of_client):
        return tf.sort(tf.unique(tf.concat([keys, of_client], 0)).y)

    @tff.tensorflow.computation(list_type, list_type)
    def merge(a, b):
        return tf.sort(tf.unique(tf.concat([a, b], 0)).y)

    @tff.tensorflow.computation(list_type)
    def report(keys):
        return keys

    @tff.tensorflow.computation(type_of(w_spec), list_type)
    def rows_of(w, keys):
        return tf.ensure_shape(tf.gather(w, keys), [None, embedding_dim])

    @tff.tensorflow.computation(
        type_of(phi_spec),
        list_type,
        rows_of.type_signature.result,
        class_set_type,
        draw_class_set.type_signature.parameter,
    )
    def train(phi, union, union_rows, class_set, client):
        rows = tf.gather(union_rows, tf.searchsorted(union, class_set.keys))
        result = train_client(phi, rows, class_set, client)
        return _with_num_rows(result, tf.size(union))

    @tff.federated_computation
    def make_no_keys():
        return no_keys()

    def exchange(phi, w, clients):
        sets = tff.federated_map(draw_class_set, clients)
        union = tff.federated_aggregate(
            tff.federated_map(keys_of, sets), make_no_keys(), add, merge, report
        )
        union_rows = tff.federated_map(rows_of, (w, union))
        return tff.federated_map(
            train,
            (
                tff.federated_broadcast(phi),
                tff.federated_broadcast(union),
                tff.federated_broadcast(union_rows),
                sets,
                clients,
            ),
        )

    return exchange


def send_all(
    draw_class_set: tff.Computation,
    train_client: Callable[..., Any],
    phi_spec: Any,
    w_spec: tf.TensorSpec,
) -> Callable[..., Any]:
    """Builds the exchange in which W goes whole to clients that train a part of it.

    Args:
        draw_class_set: See `select_rows`.
        train_client: See `select_rows`.
        phi_spec: See `select_rows`.
        w_spec: See `select_rows`.

    Returns:
        The exchange.
    """

    def train_part(phi, w, class_set, client):
        result = train_client(phi, tf.gather(w, class_set.keys), class_set, client)
        return _with_num_rows(result, tf.constant(w_spec.shape[0]))

    return broadcast_everything(draw_class_set, train_part, phi_spec, w_spec)


def _with_num_rows(
    result: client_update.ClientResult, num_rows: tf.Tensor
) -> client_update.ClientResult:
    """Returns a client's result that tells how many rows of W the client got."""
    metrics = collections.OrderedDict(result.metrics, num_rows=num_rows)
    return result._replace(metrics=metrics)


def broadcast_everything(
    draw_class_set: tff.Computation,
    train_client: Callable[..., Any],
    phi_spec: Any,
    w_spec: tf.TensorSpec,
) -> Callable[..., Any]:
    """Builds the dense exchange of FullSoftmax: all of W goes to all clients.

    Args:
        draw_class_set: See `select_rows`.
        train_client: See `select_rows`.
        phi_spec: See `select_rows`.
        w_spec: See `select_rows`.

    Returns:
        The exchange.
    """

    @tff.tensorflow.computation(
        type_of(phi_spec),
        type_of(w_spec),
        draw_class_set.type_signature.result,
        draw_class_set.type_signature.parameter,
    )
    def train(phi, w, class_set, client):
        return train_client(phi, w, class_set, client)

    def exchange(phi, w, clients):
        sets = tff.federated_map(draw_class_set, clients)
        return tff.federated_map(
            train,
            (tff.federated_broadcast(phi), tff.federated_broadcast(w), sets, clients),
        )

    return exchange
