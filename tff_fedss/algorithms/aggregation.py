"""Aggregators of the clients' deltas (FedSS, Algorithm 1, line 12).

In TFF's own terms: a factory of `tff.aggregators` makes the aggregation process of phi,
and one over `SparseRows` that of W's rows. Their states live in the server's state,
their measurements among the metrics of a round.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import errors, models

Factory = (
    tff.aggregators.WeightedAggregationFactory
    | tff.aggregators.UnweightedAggregationFactory
)
# A function from n_k, float32[], to the weight of client k.
ClientWeighting = str | tff.learning.ClientWeighting | Callable[[tf.Tensor], tf.Tensor]
CLIENT_WEIGHTINGS = ("num_examples", "uniform")


class SparseRows(NamedTuple):
    """Rows whose sum is a matrix [n, d] that is zero elsewhere.

    Attributes:
        keys: int32[L], the index of each row; rows of a repeated key are added.
        rows: float32[L, d].
    """

    keys: Any
    rows: Any


class ModelDelta(NamedTuple):
    """The delta of a whole model, a joint aggregator's input and output.

    Attributes:
        phi: A tuple of float32 tensors.
        w: `SparseRows`, or float32[n, d].
    """

    phi: Any
    w: Any


def mean_factory() -> tff.aggregators.WeightedAggregationFactory:
    """Builds line 12, dense: sum_k n_k delta_k / sum_k n_k, or 0 if all n_k are 0."""
    return tff.aggregators.MeanFactory(no_nan_division=True)


class SparseRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """Line 12 for sparse deltas: the weighted mean over ALL clients of the round.

    A client contributes zero to a class that it lacks. The accumulator and the result
    are growing lists of (keys, weighted rows): no tensor has the shape [n, d]. A
    client's keys repeat only with rows of zeros.

    With a threshold t, rows with fewer than t contributors are dropped, as in a secure
    aggregation with a threshold. A client contributes to a row if it has changed it;
    asking for it does not count. A dropped row is zero; the others and their weights
    are as without a threshold. (The protocol sums the counts beside the rows and opens
    rows by them; here nothing is masked.) `dropped_rows` is the number of rows with a
    contributor, but fewer than t.

    Args:
        threshold: t; None drops nothing and measures nothing.
        denominator: Divisor of the weighted sum; None: the weights' sum.

    Raises:
        ValueError: If the threshold is below 1.
    """

    def __init__(self, threshold: int | None = None, denominator: float | None = None):
        if threshold is not None:
            errors.check_range("threshold", threshold, 1, whole=True)
        self._threshold = threshold
        self._denominator = denominator

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """Creates a stateless process whose result is `SparseRows` of any size."""
        threshold, denominator = self._threshold, self._denominator
        _, embedding_dim = value_type.rows.shape

        @tff.tensorflow.computation
        def zero():
            # A constant would fix the list's length at 0 in the accumulator's type.
            length = tf.compat.v1.placeholder_with_default(0, [])
            rows = tf.zeros(tf.stack([length, embedding_dim]))
            return tf.zeros([length], tf.int32), rows, tf.constant(0.0)

        def add(a, b):
            keys, rows = (tf.concat([a[i], b[i]], 0) for i in (0, 1))
            return keys, rows, a[2] + b[2]

        list_type = zero.type_signature.result

        @tff.tensorflow.computation(list_type, (value_type, weight_type))
        def accumulate(total, update):
            value, weight = update
            return add(total, (value.keys, weight * value.rows, weight))

        merge = tff.tensorflow.computation(add, list_type, list_type)

        @tff.tensorflow.computation(list_type)
        def report(total):
            keys, rows, weight = total
            divisor = weight if denominator is None else denominator
            rows = tf.math.divide_no_nan(rows, divisor)
            if threshold is None:
                return SparseRows(keys, rows), ()
            rows, count = drop_rare_rows(keys, rows, threshold)
            return SparseRows(keys, rows), collections.OrderedDict(dropped_rows=count)

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        def next_round(state, value, weight):
            updates = tff.federated_zip((value, weight))
            result, measured = tff.federated_aggregate(
                updates, zero(), accumulate, merge, report
            )
            return tff.templates.MeasuredProcessOutput(state, result, measured)

        return process_of(initialize, next_round, value_type, weight_type)


def drop_rare_rows(
    keys: tf.Tensor, rows: tf.Tensor, threshold: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sets rows to zero if fewer than `threshold` rows of their key are not zero.

    Takes int32[L] and float32[L, d]; returns the rows, and the number of dropped
    keys, int32[].
    """
    contributes = tf.cast(tf.reduce_any(tf.not_equal(rows, 0.0), 1), tf.int32)
    distinct, place = tf.unique(keys)
    counts = tf.math.unsorted_segment_sum(contributes, place, tf.size(distinct))
    is_kept = tf.gather(counts >= threshold, place)
    dropped = tf.reduce_sum(tf.cast((counts > 0) & (counts < threshold), tf.int32))
    return tf.where(is_kept[:, tf.newaxis], rows, 0.0), dropped


class ScatteredRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """A TFF factory over the dense matrix [n, d] of each client's rows.

    For aggregations that need every row of every client, or must hide which rows a
    client has: secure sums, noise, medians. Each client holds and sends [n, d].

    Args:
        inner: A factory over float32[n, d]. An unweighted one needs
            `client_weighting="uniform"`.
        num_classes: n.

    Raises:
        TypeError: If `inner` is no factory.
    """

    def __init__(self, inner: Factory, num_classes: int):
        self.inner = check_factory("inner", inner)
        self._num_classes = num_classes

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """Creates a process whose result is float32[n, d]."""
        num_classes = self._num_classes
        _, embedding_dim = value_type.rows.shape

        @tff.tensorflow.computation(value_type)
        def scatter(value):
            shape = [num_classes, embedding_dim]
            return tf.scatter_nd(models.row_indices(value.keys), value.rows, shape)

        process = weighted(self.inner).create(
            scatter.type_signature.result, weight_type
        )

        def next_round(state, value, weight):
            return process.next(state, tff.federated_map(scatter, value), weight)

        return process_of(process.initialize, next_round, value_type, weight_type)


class PhiAndRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """Aggregates phi and W, each by its own factory.

    Args:
        phi: A factory for deltas of phi.
        w: A factory for deltas of W.
    """

    def __init__(self, phi: Factory, w: Factory):
        self.parts = phi, w

    def create(self, value_type, weight_type) -> tff.templates.AggregationProcess:
        """Creates a process over `ModelDelta`."""
        of_phi, of_w = self.parts
        phi = create("phi_aggregator", of_phi, value_type.phi, weight_type)
        w = create("rows_aggregator", of_w, value_type.w, weight_type)

        def both(of_phi, of_w):
            return tff.federated_zip(collections.OrderedDict(phi=of_phi, w=of_w))

        @tff.federated_computation
        def initialize():
            return both(phi.initialize(), w.initialize())

        def next_round(state, value, weight):
            of_phi = phi.next(state["phi"], value.phi, weight)
            of_w = w.next(state["w"], value.w, weight)
            return tff.templates.MeasuredProcessOutput(
                both(of_phi.state, of_w.state),
                tff.federated_zip(ModelDelta(of_phi.result, of_w.result)),
                both(of_phi.measurements, of_w.measurements),
            )

        return process_of(initialize, next_round, value_type, weight_type)


def default_factory(value_type: tff.Type) -> tff.aggregators.WeightedAggregationFactory:
    """Returns the mean of line 12 for phi, W, `SparseRows` or a `ModelDelta`."""
    if hasattr(value_type, "phi"):
        return PhiAndRowsFactory(mean_factory(), default_factory(value_type.w))
    return SparseRowsFactory() if hasattr(value_type, "rows") else mean_factory()


def process_of(
    initialize: tff.Computation, next_round: Callable[..., Any], *client_types: tff.Type
) -> tff.templates.AggregationProcess:
    """Makes an aggregation process.

    `next_round(state, value)`, or `next_round(state, value, weight)`, returns a
    `MeasuredProcessOutput`; it is traced as a federated computation. `client_types` are
    the types of the value, and of the weight.
    """
    types = [tff.FederatedType(t, tff.CLIENTS) for t in client_types]
    typed = tff.federated_computation(
        next_round, initialize.type_signature.result, *types
    )
    return tff.templates.AggregationProcess(initialize, typed)


def weighted(factory: Factory) -> tff.aggregators.WeightedAggregationFactory:
    """Returns a factory that takes weights; an unweighted one ignores them."""
    if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
        return tff.aggregators.as_weighted_aggregator(factory)
    return factory


def create(
    name: str, factory: Factory, value_type: tff.Type, weight_type: tff.Type
) -> tff.templates.AggregationProcess:
    """Creates a process; TypeError with the factory's name if it takes other values."""
    try:
        return weighted(factory).create(value_type, weight_type)
    except AttributeError as error:
        what = f"a {type(factory).__name__}, which takes other values than it gets here"
        raise TypeError(f"{name} is {what} ({error}): see ServerUpdate.") from error


def uses_weights(factory: Factory) -> bool:
    """Returns whether weights count: of an adapter, whether those inside do."""
    inner = getattr(factory, "inner", None)
    parts = getattr(factory, "parts", () if inner is None else (inner,))
    is_weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    return is_weighted and all(map(uses_weights, parts))


def check_factory(name: str, factory: Any) -> Factory:
    """Returns a factory; raises a TypeError that names the argument if it is none."""
    wanted = "a factory of tff.aggregators, such as tff.aggregators.MeanFactory()"
    errors.check_kind(name, factory, Factory, wanted)
    return factory


def check_weighting(client_weighting: ClientWeighting) -> ClientWeighting:
    """Returns a checked weighting; for a member of TFF's enum, its name here.

    Raises ValueError if it is unknown, or gives a negative or infinite weight.
    """
    if isinstance(client_weighting, tff.learning.ClientWeighting):
        return client_weighting.name.lower()
    if callable(client_weighting):
        for num_examples in (1.0, 2.0, 32.0, 1000.0):
            weight = float(client_weighting(tf.constant(num_examples)))
            errors.check_range(f"client_weighting({num_examples:g})", weight, 0)
    elif client_weighting not in CLIENT_WEIGHTINGS:
        raise ValueError(
            f"client_weighting={client_weighting!r} must be of {CLIENT_WEIGHTINGS}, a "
            "tff.learning.ClientWeighting, or a function from n_k to a weight."
        )
    return client_weighting


def weighting(client_weighting: ClientWeighting) -> tff.Computation | None:
    """Returns the map from n_k, float32[], to a weight, 0 for 0; None: n_k itself."""
    if client_weighting == "num_examples":
        return None
    function = tf.ones_like if client_weighting == "uniform" else client_weighting

    @tff.tensorflow.computation(np.float32)
    def weigh(num_examples):
        weight = tf.cast(function(num_examples), tf.float32)
        return tf.where(num_examples > 0, tf.ensure_shape(weight, []), 0.0)

    return weigh


def flat_scalars(measurements: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of scalars in measurements by name, joined by slashes."""
    if isinstance(measurements, tuple) and hasattr(measurements, "_fields"):
        measurements = measurements._asdict()
    if isinstance(measurements, Mapping):
        for name, value in measurements.items():
            yield from flat_scalars(value, f"{prefix}/{name}" if prefix else name)
    elif tf.is_tensor(measurements) and measurements.shape.rank == 0:
        yield prefix, measurements
