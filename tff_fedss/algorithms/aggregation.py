"""How the clients' updates become one (FedSS, Algorithm 1, line 12).

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

Factory = (
    tff.aggregators.WeightedAggregationFactory
    | tff.aggregators.UnweightedAggregationFactory
)
# From n_k, float32[], to the weight of client k.
ClientWeighting = str | Callable[[tf.Tensor], tf.Tensor]
CLIENT_WEIGHTINGS = ("num_examples", "uniform")


class SparseRows(NamedTuple):
    """A sum of rows in a matrix [n, d] that is zero elsewhere.

    Attributes:
        keys: int32[L], the row of each; one that comes up twice counts twice.
        rows: float32[L, d].
    """

    keys: Any
    rows: Any


class ModelDelta(NamedTuple):
    """The delta of a whole model, as a joint aggregator gets and gives it.

    Attributes:
        phi: A tuple of float32 tensors.
        w: `SparseRows`, or float32[n, d].
    """

    phi: Any
    w: Any


def sparse_rows_type(embedding_dim: int, size: int | None = None) -> tff.Type:
    """Returns the TFF type of `SparseRows`.

    Args:
        embedding_dim: d.
        size: L; None if it is not known beforehand.
    """
    return tff.to_type(
        SparseRows(
            keys=tff.TensorType(np.int32, [size]),
            rows=tff.TensorType(np.float32, [size, embedding_dim]),
        )
    )


def gradient_of(mean_delta: SparseRows, w_spec: tf.TensorSpec) -> tf.IndexedSlices:
    """Returns the gradient of W that a server optimizer takes: minus the mean delta.

    Args:
        mean_delta: As a factory of rows gives it.
        w_spec: That of W, [n, d].
    """
    return tf.IndexedSlices(
        -mean_delta.rows, mean_delta.keys, tf.constant(w_spec.shape.as_list())
    )


def mean_factory() -> tff.aggregators.WeightedAggregationFactory:
    """Line 12, dense: sum_k n_k delta_k / sum_k n_k, or zero where no weight is."""
    return tff.aggregators.MeanFactory(no_nan_division=True)


class GrowingRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """Line 12 for sparse deltas: the weighted mean over ALL clients of the round.

    A client without a class counts as zero for it. The accumulator is a growing list of
    (keys, weighted rows), and so is the result: no tensor of shape [n, d] appears.
    """

    def __init__(self, denominator: float | None = None):
        """Creates it.

        Args:
            denominator: What the weighted sum is divided by; None: by the weights' sum.
        """
        self._denominator = denominator

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """See TFF.

        Args:
            value_type: `sparse_rows_type`, of a size.
            weight_type: float32[].

        Returns:
            A process without a state whose result is `SparseRows` of any number.
        """
        _, embedding_dim = value_type.rows.shape
        denominator = self._denominator

        class Accumulator(NamedTuple):
            keys: Any
            rows: Any
            weight: Any

        @tff.tensorflow.computation
        def zero():
            # A constant would fix the list's length at 0 in the accumulator's type.
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
                keys=value_type.keys, rows=value_type.rows, weight=weight_type
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
            weight = total.weight if denominator is None else denominator
            return SparseRows(total.keys, tf.math.divide_no_nan(total.rows, weight))

        @tff.federated_computation
        def make_zero():
            return zero()

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_round(state, value, weight):
            update = tff.federated_zip(
                collections.OrderedDict(keys=value.keys, rows=value.rows, weight=weight)
            )
            return tff.templates.MeasuredProcessOutput(
                state,
                tff.federated_aggregate(update, make_zero(), accumulate, merge, report),
                tff.federated_value((), tff.SERVER),
            )

        return tff.templates.AggregationProcess(initialize, next_round)


class ThresholdRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """`GrowingRowsFactory`, but rows with fewer than t contributors are dropped.

    What a secure aggregation with a threshold lets the server see. A client contributes
    to a row if it has moved it: what it asks for and leaves as it is does not count. A
    dropped row is zero; the others are what they are without a threshold, also in their
    weight. (In the protocol the counts are summed beside the rows, and rows opened by
    them; here nothing is masked.)

    Measures `dropped_rows`: how many rows had a contributor, but fewer than t.
    """

    def __init__(self, threshold: int):
        """Creates it.

        Args:
            threshold: t; 1 drops nothing.

        Raises:
            ValueError: If it is below 1.
        """
        if threshold < 1:
            raise ValueError(f"threshold must be positive, found {threshold}.")
        self._threshold = threshold

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """See `GrowingRowsFactory`; keys of a client repeat only with rows of zeros."""
        inner = GrowingRowsFactory().create(value_type, weight_type)
        sum_type = inner.next.type_signature.result.result.member
        threshold = self._threshold

        @tff.tensorflow.computation(sum_type)
        def drop(total):
            rows, count = drop_rare_rows(total.keys, total.rows, threshold)
            return SparseRows(total.keys, rows), collections.OrderedDict(
                dropped_rows=count
            )

        @tff.federated_computation(
            inner.initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_round(state, value, weight):
            output = inner.next(state, value, weight)
            result, measurements = tff.federated_map(drop, output.result)
            return tff.templates.MeasuredProcessOutput(
                output.state, result, measurements
            )

        return tff.templates.AggregationProcess(inner.initialize, next_round)


def drop_rare_rows(
    keys: tf.Tensor, rows: tf.Tensor, threshold: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Makes rows zero where fewer than t of the same key are not.

    Args:
        keys: int32[L].
        rows: float32[L, d].
        threshold: t.

    Returns:
        The rows, and how many keys were dropped, int32[].
    """
    contributes = tf.cast(tf.reduce_any(tf.not_equal(rows, 0.0), 1), tf.int32)
    distinct, place = tf.unique(keys)
    counts = tf.math.unsorted_segment_sum(contributes, place, tf.size(distinct))
    is_kept = tf.gather(counts >= threshold, place)
    dropped = tf.reduce_sum(tf.cast((counts > 0) & (counts < threshold), tf.int32))
    return tf.where(is_kept[:, tf.newaxis], rows, 0.0), dropped


class ScatteredRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """Rows as the dense matrix [n, d] that they stand for, in a factory of TFF's.

    For aggregations that have to see every row of every client, or must not tell which
    rows a client has: secure sums, noise, medians. Each client holds and sends [n, d].
    """

    def __init__(self, inner: Factory, num_classes: int):
        """Creates it.

        Args:
            inner: A factory over float32[n, d]. An unweighted one does not heed the
                clients' weights: use it with `client_weighting="uniform"`.
            num_classes: n.

        Raises:
            TypeError: If `inner` is no factory.
        """
        self._inner = check_factory("inner", inner)
        self._num_classes = num_classes

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """See TFF; the result is float32[n, d].

        Args:
            value_type: `sparse_rows_type`, of a size.
            weight_type: float32[].
        """
        num_classes = self._num_classes
        _, embedding_dim = value_type.rows.shape

        @tff.tensorflow.computation(value_type)
        def scatter(value):
            return tf.scatter_nd(
                value.keys[:, tf.newaxis], value.rows, [num_classes, embedding_dim]
            )

        process = _Step(self._inner, scatter.type_signature.result, weight_type)

        @tff.federated_computation(
            process.initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_round(state, value, weight):
            return process.next(state, tff.federated_map(scatter, value), weight)

        return tff.templates.AggregationProcess(process.initialize, next_round)


class _Step:
    """The process of a factory; `next` takes weights, whether they are used or not."""

    def __init__(self, factory: Factory, value_type: tff.Type, weight_type: tff.Type):
        self._is_weighted = isinstance(
            factory, tff.aggregators.WeightedAggregationFactory
        )
        self._process = (
            factory.create(value_type, weight_type)
            if self._is_weighted
            else factory.create(value_type)
        )
        self.initialize = self._process.initialize

    def next(self, state, value, weight):
        """To be called inside of a `tff.federated_computation`."""
        arguments = (state, value, weight) if self._is_weighted else (state, value)
        return self._process.next(*arguments)


class Aggregation:
    """Line 12: from the clients' results of a round to the mean deltas of phi and W.

    Attributes:
        phi_result_type: Of the mean delta of phi.
        w_result_type: Of that of W.
        measurements_type: Of what the processes measure.
    """

    def __init__(
        self,
        phi_type: tff.Type,
        w_type: tff.Type,
        *,
        phi_aggregator: Factory | None,
        rows_aggregator: Factory | None,
        joint_aggregator: Factory | None = None,
        client_weighting: ClientWeighting,
    ):
        """Makes the processes.

        Args:
            phi_type: Of a client's delta of phi.
            w_type: Of its delta of W: `sparse_rows_type`, or that of a dense one.
            phi_aggregator: A factory of `tff.aggregators`; None: `mean_factory`.
            rows_aggregator: Likewise, over `w_type`; None: `GrowingRowsFactory`, or
                `mean_factory` for a dense W.
            joint_aggregator: In the place of both: a factory over `ModelDelta`, whose
                result is another.
            client_weighting: "num_examples", "uniform", or a function from n_k,
                float32[] and positive, to a weight, float32[].

        Raises:
            TypeError: If a factory is none.
            ValueError: If there is no such weighting, an unweighted factory would have
                to weigh, or a joint factory stands beside another.
        """
        is_sparse = isinstance(w_type, tff.StructType)
        default = GrowingRowsFactory() if is_sparse else mean_factory()
        if joint_aggregator is not None:
            if phi_aggregator is not None or rows_aggregator is not None:
                raise ValueError(
                    "joint_aggregator aggregates phi and W: give no phi_aggregator and "
                    "no rows_aggregator with it."
                )
            factories = collections.OrderedDict(joint_aggregator=joint_aggregator)
        else:
            factories = collections.OrderedDict(
                phi_aggregator=phi_aggregator or mean_factory(),
                rows_aggregator=rows_aggregator or default,
            )
        for name, factory in factories.items():
            check_factory(name, factory)
            if client_weighting != "uniform" and not isinstance(
                factory, tff.aggregators.WeightedAggregationFactory
            ):
                raise ValueError(
                    f"{name} is a {type(factory).__name__}, which knows no weights: "
                    'give client_weighting="uniform", too.'
                )
        self._weigh = _weighting(client_weighting)
        weight_type = tff.TensorType(np.float32)
        types = (phi_type, w_type)
        if joint_aggregator is not None:
            types = (tff.to_type(ModelDelta(phi_type, w_type)),)
        self._steps = [
            _Step(factory, value_type, weight_type)
            for factory, value_type in zip(factories.values(), types, strict=True)
        ]

        @tff.federated_computation(
            tff.FederatedType(phi_type, tff.CLIENTS),
            tff.FederatedType(w_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def once(phi_delta, w_delta, num_examples):
            return self.next(self.initialize(), phi_delta, w_delta, num_examples)[1:]

        self.phi_result_type, self.w_result_type, self.measurements_type = (
            t.member for t in once.type_signature.result
        )

    def initialize(self) -> tff.Value:
        """The state at the server, to be called in a `tff.federated_computation`."""
        if self._is_joint:
            return self._steps[0].initialize()
        phi, w = self._steps
        return tff.federated_zip(
            collections.OrderedDict(phi=phi.initialize(), w=w.initialize())
        )

    @property
    def _is_joint(self) -> bool:
        return len(self._steps) == 1

    def next(self, state: Any, phi_delta: Any, w_delta: Any, num_examples: Any) -> Any:
        """Aggregates, inside of a `tff.federated_computation`.

        Args:
            state: From `initialize`, at the server.
            phi_delta: At the clients.
            w_delta: Likewise.
            num_examples: n_k, float32[], likewise; 0 for a client whose update does not
                count, and is zero.

        Returns:
            The next state, the mean deltas of phi and W, and measurements, a struct of
            the processes': all at the server.
        """
        weight = num_examples
        if self._weigh is not None:
            weight = tff.federated_map(self._weigh, num_examples)
        if self._is_joint:
            delta = tff.federated_zip(ModelDelta(phi_delta, w_delta))
            joint = self._steps[0].next(state, delta, weight)
            mean = joint.result
            return joint.state, mean.phi, mean.w, joint.measurements
        phi, w = self._steps
        phi = phi.next(state["phi"], phi_delta, weight)
        w = w.next(state["w"], w_delta, weight)
        state = tff.federated_zip(collections.OrderedDict(phi=phi.state, w=w.state))
        measurements = tff.federated_zip(
            collections.OrderedDict(phi=phi.measurements, w=w.measurements)
        )
        return state, phi.result, w.result, measurements


def check_factory(name: str, factory: Any) -> Factory:
    """Returns a factory.

    Raises:
        TypeError: If it is something else; the message says what to give as `name`.
    """
    if not isinstance(factory, Factory):
        hint = ""
        if isinstance(factory, tff.templates.AggregationProcess):
            hint = " That is what a factory makes: give the factory itself."
        elif isinstance(factory, type):
            hint = f" Call it: {factory.__name__}(...)."
        raise TypeError(
            f"{name} must be a factory of tff.aggregators, such as "
            f"tff.aggregators.MeanFactory(), found {factory!r}.{hint}"
        )
    return factory


def _weighting(client_weighting: ClientWeighting) -> tff.Computation | None:
    """From n_k to a client's weight, zero where n_k is; None: n_k itself."""
    if client_weighting == "num_examples":
        return None
    if client_weighting == "uniform":
        function = tf.ones_like
    elif callable(client_weighting):
        function = client_weighting
    else:
        raise ValueError(
            f"client_weighting must be one of {CLIENT_WEIGHTINGS} or a function from "
            f"n_k, float32[], to a weight, found {client_weighting!r}."
        )

    @tff.tensorflow.computation(np.float32)
    def weigh(num_examples):
        weight = tf.cast(function(num_examples), tf.float32)
        return tf.where(num_examples > 0, tf.ensure_shape(weight, []), 0.0)

    return weigh


def flat_scalars(measurements: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of the scalars in measurements of an aggregation.

    Args:
        measurements: A structure of tensors, by name.
        prefix: Of the names, which are joined by slashes.
    """
    if isinstance(measurements, tuple) and hasattr(measurements, "_fields"):
        measurements = measurements._asdict()
    if isinstance(measurements, Mapping):
        for name, value in measurements.items():
            yield from flat_scalars(value, f"{prefix}/{name}" if prefix else name)
    elif tf.is_tensor(measurements) and measurements.shape.rank == 0:
        yield prefix, measurements
