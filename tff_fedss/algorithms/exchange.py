"""How phi and W travel between the server and the clients of a round.

An exchange is a function (phi, W, clients) -> (mean delta of phi, mean delta of W,
summed metrics) to be called inside of a `tff.federated_computation`. It sends the
clients what they ask for, lets them train and takes the means (FedSS, Algorithm 1,
lines 4-12). The mean delta of W is a tensor [n, d], or a `SparseRows` if the exchange
is sparse.
"""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


class SparseRows(NamedTuple):
    """A sum of rows in a matrix [n, d] that is zero elsewhere.

    Attributes:
        keys: int32[L], the row of each; one that comes up twice counts twice.
        rows: float32[L, d].
    """

    keys: Any
    rows: Any


def sparse_rows_type(embedding_dim: int) -> tff.Type:
    """Returns the TFF type of `SparseRows` of any number.

    Args:
        embedding_dim: d.
    """
    return tff.to_type(
        SparseRows(
            keys=tff.TensorType(np.int32, [None]),
            rows=tff.TensorType(np.float32, [None, embedding_dim]),
        )
    )


def gradient_of(mean_delta: SparseRows, w_spec: tf.TensorSpec) -> tf.IndexedSlices:
    """Returns the gradient of W that a server optimizer takes: minus the mean delta.

    Args:
        mean_delta: As `build_sparse_mean` gives it.
        w_spec: That of W, [n, d].
    """
    return tf.IndexedSlices(
        -mean_delta.rows, mean_delta.keys, tf.constant(w_spec.shape.as_list())
    )


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
    """Builds the sparse exchange of Algorithm 1: rows out, sparse deltas back.

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

    sparse_mean = build_sparse_mean(embedding_dim, size)

    def exchange(phi, w, clients):
        sets = tff.federated_map(draw_class_set, clients)
        # Lines 6-7: the clients ask, the server answers with a row per key.
        rows = tff.federated_select(
            tff.federated_map(keys_of, sets),
            tff.federated_value(num_classes - 1, tff.SERVER),
            w,
            row_of,
        )
        results = tff.federated_map(
            train, (tff.federated_broadcast(phi), rows, sets, clients)
        )
        return (
            _weighted_mean(results.feature_extractor_delta, results.weight),
            sparse_mean(results),
            tff.federated_sum(results.metrics),
        )

    return exchange


def broadcast_everything(
    draw_class_set: tff.Computation,
    train_client: Callable[..., Any],
    phi_spec: Any,
    w_spec: tf.TensorSpec,
) -> Callable[..., Any]:
    """Builds the dense exchange of FullSoftmax: all of W out, a dense delta back.

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
        results = tff.federated_map(
            train,
            (tff.federated_broadcast(phi), tff.federated_broadcast(w), sets, clients),
        )
        return (
            _weighted_mean(results.feature_extractor_delta, results.weight),
            _weighted_mean(results.classifier_delta, results.weight),
            tff.federated_sum(results.metrics),
        )

    return exchange


def _weighted_mean(value, weight):
    """Line 12, dense: sum_k n_k delta_k / sum_k n_k, or zero where no weight is."""
    process = tff.aggregators.MeanFactory(no_nan_division=True).create(
        value.type_signature.member, weight.type_signature.member
    )
    return process.next(process.initialize(), value, weight).result


def build_sparse_mean(embedding_dim: int, size: int) -> Callable[[Any], Any]:
    """Line 12 for sparse deltas: the weighted mean over ALL clients of the round.

    A client without a class counts as zero for it. The accumulator is a growing list of
    (keys, weighted rows), and so is the result: no tensor of shape [n, d] appears.

    Args:
        embedding_dim: d.
        size: The static length of a class set.

    Returns:
        A function from clients' results (`keys` int32[size], `classifier_delta`
        float32[size, d] and `weight` float32[]) to `SparseRows` at the server, to be
        called inside of a `tff.federated_computation`.
    """

    class Accumulator(NamedTuple):
        keys: Any
        rows: Any
        weight: Any

    @tff.tensorflow.computation
    def zero():
        # A constant would fix the length of the list at 0 in the accumulator's type.
        length = tf.compat.v1.placeholder_with_default(0, [])
        return Accumulator(
            keys=tf.zeros([length], tf.int32),
            rows=tf.zeros(tf.stack([length, embedding_dim])),
            weight=tf.constant(0.0),
        )

    accumulator_type = zero.type_signature.result

    @tff.tensorflow.computation(
        accumulator_type,
        collections.OrderedDict(
            keys=tff.TensorType(np.int32, [size]),
            rows=tff.TensorType(np.float32, [size, embedding_dim]),
            weight=tff.TensorType(np.float32),
        ),
    )
    def accumulate(total, update):
        return Accumulator(
            tf.concat([total.keys, update["keys"]], 0),
            tf.concat([total.rows, update["weight"] * update["rows"]], 0),
            total.weight + update["weight"],
        )

    @tff.tensorflow.computation(accumulator_type, accumulator_type)
    def merge(a, b):
        return Accumulator(
            tf.concat([a.keys, b.keys], 0),
            tf.concat([a.rows, b.rows], 0),
            a.weight + b.weight,
        )

    @tff.tensorflow.computation(accumulator_type)
    def report(total):
        return SparseRows(total.keys, tf.math.divide_no_nan(total.rows, total.weight))

    @tff.federated_computation
    def make_zero():
        return zero()

    def sparse_mean(results):
        update = tff.federated_zip(
            collections.OrderedDict(
                keys=results.keys, rows=results.classifier_delta, weight=results.weight
            )
        )
        return tff.federated_aggregate(update, make_zero(), accumulate, merge, report)

    return sparse_mean
