"""Adapters for TFF's own factories over the sparse rows of W.

A client's delta of W is `aggregation.SparseRows`: integer keys, and rows that belong to
different classes at different clients. No factory of `tff.aggregators` takes it. Each
adapter wraps one of TFF's and is a `rows_aggregator` of `ServerUpdate` (over
`SparseRows`: W alone) or a `joint_aggregator` (over `aggregation.ModelDelta`: phi and
rows as one value, with one norm; not ScatteredRowsFactory):

| adapter                          | TFF's factory              | a client sends     |
|----------------------------------|----------------------------|--------------------|
| WrappedRowsFactory               | clipping, zeroing          | its rows           |
| NoisedRowsFactory                | DifferentiallyPrivate...   | its rows           |
| UnionRowsFactory                 | any that adds no noise     | rows of the union  |
| aggregation.ScatteredRowsFactory | any                        | all of [n, d]      |

The results equal those of the same factory over dense deltas, up to rounding. With the
first three a client holds no tensor of shape [n, d].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import errors, models
from tff_fedss.algorithms import aggregation, exchange
from tff_fedss.algorithms.aggregation import SparseRows


class WrappedRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """TFF's clipping and zeroing of a client's values, around a sum of sparse rows.

    TFF's wrapper gets the rows alone, float32[L, d], or with phi, `ModelDelta(phi,
    float32[L, d])`, whose norm is that of the dense delta. The keys are kept in the
    client's weight, which wrappers pass on unchanged.

        WrappedRowsFactory(lambda mean: tff.aggregators.clipping_factory(1.0, mean))

    Args:
        wrap: A function from a weighted factory to the one around it: any composition
            of `tff.aggregators.clipping_factory` and `zeroing_factory`, with norms that
            are fixed or estimated.
        inner: The factory that adds afterwards, over `SparseRows` or `ModelDelta`;
            None: the weighted mean of line 12.

    Raises:
        TypeError: If `wrap` returns no weighted factory, or `inner` is no factory.
    """

    def __init__(
        self,
        wrap: Callable[
            [tff.aggregators.WeightedAggregationFactory],
            tff.aggregators.WeightedAggregationFactory,
        ],
        inner: aggregation.Factory | None = None,
    ):
        if inner is not None:
            aggregation.check_factory("inner", inner)
        self.inner = inner
        self.allows_no_clients = getattr(inner, "allows_no_clients", False)
        self._outer = wrap(_KeyedFactory(inner))
        errors.check_kind(
            "the result of wrap",
            self._outer,
            tff.aggregators.WeightedAggregationFactory,
            "a weighted factory around the one that wrap gets",
        )

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """Creates a process whose result is that of the inner factory."""

        @tff.tensorflow.computation(value_type, weight_type)
        def set_keys_aside(value, weight):
            w = _w_of(value)
            return _with_w(value, w.rows), _KeyedWeight(weight, w.keys)

        process = self._outer.create(*set_keys_aside.type_signature.result)

        def next_round(state, value, weight):
            values, keyed = tff.federated_map(set_keys_aside, (value, weight))
            return process.next(state, values, keyed)

        return aggregation.process_of(
            process.initialize, next_round, value_type, weight_type
        )


class _KeyedWeight(NamedTuple):
    """The value that passes through TFF's wrappers as a client's weight."""

    weight: Any
    keys: Any


class _KeyedFactory(tff.aggregators.WeightedAggregationFactory):
    """Joins rows and keys again, and aggregates them."""

    def __init__(self, inner: aggregation.Factory | None):
        self._inner = inner

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        @tff.tensorflow.computation(value_type, weight_type)
        def join(value, keyed):
            rows = SparseRows(keyed.keys, _w_of(value))
            return _with_w(value, rows), keyed.weight

        sparse_type = join.type_signature.result[0]
        inner = self._inner or aggregation.default_factory(sparse_type)
        process = aggregation.weighted(inner).create(*join.type_signature.result)

        def next_round(state, value, weight):
            sparse, plain = tff.federated_map(join, (value, weight))
            return process.next(state, sparse, plain)

        return aggregation.process_of(
            process.initialize, next_round, value_type, weight_type
        )


class UnionRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """A TFF factory over the union of the rows that clients of the round have.

    The server broadcasts the union of the clients' keys. Each client sends a row for
    each key, zeros where it has none, so that a position is the same class at all
    clients, as secure sums, quantization and medians need. The result is `SparseRows`
    of the union.

    The price: server and clients learn the union, and a client holds and sends
    float32[u, d], K times its own rows if no two clients share a class.

    Args:
        inner: A factory over float32[u, d], or over `ModelDelta(phi, float32[u, d])`,
            such as `tff.learning.secure_aggregator()`. An unweighted one needs
            `client_weighting="uniform"`.
        union_size: u, the largest number of distinct classes of a round's clients; K L
            is always enough. A round with more fails.

    Raises:
        TypeError: If `inner` is no factory.
        ValueError: If `union_size` is below 1.
    """

    def __init__(self, inner: aggregation.Factory, union_size: int):
        self.inner = aggregation.check_factory("inner", inner)
        errors.check_range("union_size", union_size, 1, whole=True)
        self._union_size = union_size

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """Creates the process; raises ValueError if the inner factory adds noise."""
        size, (_, embedding_dim) = self._union_size, _w_of(value_type).rows.shape
        union_of = exchange.union_of_keys(*_w_of(value_type).keys.shape)
        list_type = union_of.type_signature.result.member

        @tff.tensorflow.computation(list_type)
        def pad(union):
            too_many = [
                "The clients of the round have more classes than union_size: ",
                tf.size(union),
            ]
            check = tf.debugging.Assert(tf.size(union) <= size, too_many)
            with tf.control_dependencies([check]):
                missing = size - tf.size(union)
            padded = tf.pad(union, [[0, missing]], constant_values=tf.int32.max)
            return tf.ensure_shape(padded, [size])

        @tff.tensorflow.computation(value_type, pad.type_signature.result)
        def align(value, union):
            w = _w_of(value)
            place = models.row_indices(tf.searchsorted(union, w.keys))
            rows = tf.scatter_nd(place, w.rows, [size, embedding_dim])
            return _with_w(value, rows)

        process = aggregation.weighted(self.inner).create(
            align.type_signature.result, weight_type
        )
        if "dp_event" in str(process.initialize.type_signature.result):
            # On the rows of the union alone, where a changed row reveals its client.
            raise ValueError("inner adds noise: give it to NoisedRowsFactory instead.")
        result_type = process.next.type_signature.result.result.member

        @tff.tensorflow.computation(result_type, list_type)
        def name_rows(result, union):
            rows = _w_of(result)[: tf.size(union)]
            return _with_w(result, SparseRows(union, rows))

        def next_round(state, value, weight):
            union = union_of(_w_of(value).keys)
            padded = tff.federated_broadcast(tff.federated_map(pad, union))
            aligned = tff.federated_map(align, (value, padded))
            output = process.next(state, aligned, weight)
            return tff.templates.MeasuredProcessOutput(
                output.state,
                tff.federated_map(name_rows, (output.result, union)),
                output.measurements,
            )

        return aggregation.process_of(
            process.initialize, next_round, value_type, weight_type
        )


class NoisedRowsFactory(tff.aggregators.UnweightedAggregationFactory):
    """TFF's `DifferentiallyPrivateFactory`, with its noise on all rows of W.

    Clients clip their rows (and phi) and send them sparse. The server adds them up and
    adds the noise to phi and to all of [n, d]. Noise on the requested rows alone would
    protect no client (see `user_level_dp`).

    A run that must resume needs `user_level_dp.PrivateMeanFactory`: TFF's Gaussian
    noise has no seed, and the state of its trees grows, which `training.Checkpoints`
    refuses.

    Args:
        private: A factory made by `gaussian_fixed`, `gaussian_adaptive`,
            `tree_aggregation` or `tree_adaptive`. The `record_specs` of a tree are
            those of the dense delta: `tf.TensorSpec([n, d])`, or
            `aggregation.ModelDelta(tuple of phi's specs, tf.TensorSpec([n, d]))`.
        num_classes: n.

    Raises:
        TypeError: If `private` is another factory, or has another
            `record_aggregation_factory` than a `SumFactory`. To zero updates, wrap this
            factory: `WrappedRowsFactory(zeroing, NoisedRowsFactory(...))`.
    """

    # The noise of a round without clients is released as well.
    allows_no_clients = True

    def __init__(
        self, private: tff.aggregators.DifferentiallyPrivateFactory, num_classes: int
    ):
        errors.check_kind(
            "private",
            private,
            tff.aggregators.DifferentiallyPrivateFactory,
            "a tff.aggregators.DifferentiallyPrivateFactory",
        )
        errors.check_kind(
            "record_aggregation_factory of private",
            private._record_aggregation_factory,  # TFF has no public access to it.
            tff.aggregators.SumFactory,
            "left out: only a SumFactory adds sparse rows",
        )
        self._query = private._query
        self._num_classes = num_classes

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates a process whose result has a dense W, float32[n, d]."""
        query, num_classes = self._query, self._num_classes
        _, embedding_dim = _w_of(value_type).rows.shape
        records, place = _sum_of_records(query, value_type)
        add_rows = aggregation.SparseRowsFactory(denominator=1.0).create(
            _w_of(value_type), tff.TensorType(np.float32)
        )
        initial_state = tff.tensorflow.computation(query.initial_global_state)
        bounds_of = tff.tensorflow.computation(query.derive_sample_params)

        @tff.tensorflow.computation
        def record_of(bounds, value):
            w = _w_of(value)
            record = query.preprocess_record(bounds, _with_w(value, w.rows))
            rest = tf.nest.flatten(record)
            rows = rest.pop(place)
            return tuple(rest), SparseRows(w.keys, rows)

        @tff.tensorflow.computation
        def add_noise(state, rest, w):
            shape = [num_classes, embedding_dim]
            total = [*rest]
            w_sum = tf.scatter_nd(models.row_indices(w.keys), w.rows, shape)
            total.insert(place, w_sum)
            result, state, _ = query.get_noised_result(
                tf.nest.pack_sequence_as(records, total), state
            )
            return state, result, query.derive_metrics(state)

        initialize = tff.federated_computation(
            lambda: tff.federated_eval(initial_state, tff.SERVER)
        )

        def next_round(state, value):
            bounds = tff.federated_broadcast(tff.federated_map(bounds_of, state))
            rest, w = tff.federated_map(record_of, (bounds, value))
            ones = tff.federated_value(1.0, tff.CLIENTS)
            w_sum = add_rows.next(add_rows.initialize(), w, ones).result
            return tff.templates.MeasuredProcessOutput(
                *tff.federated_map(add_noise, (state, tff.federated_sum(rest), w_sum))
            )

        return aggregation.process_of(initialize, next_round, value_type)


def _sum_of_records(query: Any, value_type: tff.Type) -> tuple[Any, int]:
    """Returns the structure of a sum of records, and which leaf of it is W's rows."""
    _, embedding_dim = _w_of(value_type).rows.shape

    def zeros(num_rows):
        template = tf.TensorSpec([num_rows, embedding_dim])
        if _is_joint(value_type):
            phi = tuple(tf.TensorSpec(t.shape, t.dtype) for t in value_type.phi)
            template = aggregation.ModelDelta(phi, template)
        return query.initial_sample_state(template)

    with tf.Graph().as_default():
        one, two = zeros(1), zeros(2)
    shapes = [[t.shape for t in tf.nest.flatten(z)] for z in (one, two)]
    return one, [a == b for a, b in zip(*shapes, strict=True)].index(False)


def _is_joint(value: Any) -> bool:
    """Returns whether a value or type is `ModelDelta`, not W's part alone."""
    return hasattr(value, "phi")


def _w_of(value: Any) -> Any:
    """Returns W's part of a value or type."""
    return value.w if _is_joint(value) else value


def _with_w(value: Any, w: Any) -> Any:
    """Returns a value with W's part replaced."""
    return aggregation.ModelDelta(value.phi, w) if _is_joint(value) else w
