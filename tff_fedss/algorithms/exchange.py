"""How phi and W travel to the clients of a round.

An exchange is a function (phi, W, clients) -> the clients' `client_update.ClientResult`
to be called inside of a `tff.federated_computation`. It sends the clients what they ask
for and lets them train (FedSS, Algorithm 1, lines 4-11).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def type_of(specs: Any) -> tff.Type:
    """Returns the TFF type of a structure of `tf.TensorSpec`s."""
    return tff.to_type(
        tf.nest.map_structure(
            lambda s: tff.TensorType(s.dtype.as_numpy_dtype, s.shape), specs
        )
    )


def select_rows(
    prepare_client: tff.Computation,
    train_client: Callable[..., Any],
    phi_spec: Any,
    w_spec: tf.TensorSpec,
    size: int,
) -> Callable[..., Any]:
    """Builds the sparse exchange of Algorithm 1: clients get the rows they ask for.

    Args:
        prepare_client: A TFF computation from a client's argument to its
            `client_update.ClientTask`.
        train_client: (phi, rows, task) -> `client_update.ClientResult`, in TensorFlow.
        phi_spec: The `tf.TensorSpec`s of phi.
        w_spec: That of W, [n, d].
        size: The static length of a class set.

    Returns:
        The exchange.
    """
    num_classes, embedding_dim = w_spec.shape
    row_type = tff.TensorType(np.float32, [embedding_dim])
    task_type = prepare_client.type_signature.result

    @tff.tensorflow.computation(task_type)
    def keys_of(task):
        return task.class_set.keys

    @tff.tensorflow.computation(type_of(w_spec), np.int32)
    def row_of(w, key):
        return tf.gather(w, key)

    @tff.tensorflow.computation(
        type_of(phi_spec), tff.SequenceType(row_type), task_type
    )
    def train(phi, rows, task):
        rows = rows.batch(size, drop_remainder=True).get_single_element()
        return train_client(phi, rows, task)

    def exchange(phi, w, clients):
        tasks = tff.federated_map(prepare_client, clients)
        # Lines 6-7: the clients ask, the server answers with a row per key.
        rows = tff.federated_select(
            tff.federated_map(keys_of, tasks),
            tff.federated_value(num_classes - 1, tff.SERVER),
            w,
            row_of,
        )
        return tff.federated_map(train, (tff.federated_broadcast(phi), rows, tasks))

    return exchange


def broadcast_everything(
    prepare_client: tff.Computation,
    train_client: Callable[..., Any],
    phi_spec: Any,
    w_spec: tf.TensorSpec,
) -> Callable[..., Any]:
    """Builds the dense exchange of FullSoftmax: all of W goes to all clients.

    Args:
        prepare_client: See `select_rows`.
        train_client: See `select_rows`.
        phi_spec: See `select_rows`.
        w_spec: See `select_rows`.

    Returns:
        The exchange.
    """

    @tff.tensorflow.computation(
        type_of(phi_spec),
        type_of(w_spec),
        prepare_client.type_signature.result,
    )
    def train(phi, w, task):
        return train_client(phi, w, task)

    def exchange(phi, w, clients):
        tasks = tff.federated_map(prepare_client, clients)
        return tff.federated_map(
            train, (tff.federated_broadcast(phi), tff.federated_broadcast(w), tasks)
        )

    return exchange
