"""Server update: mean of the clients' deltas, and next state (lines 12-13)."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss.algorithms import aggregation, optimizers, settings


class ServerState(NamedTuple):
    """The state of the process between rounds.

    Attributes:
        feature_extractor: phi, a tuple of float32 tensors in the order of the Keras
            model's `trainable_variables`.
        classifier: W, float32[n, d].
        optimizer: The state of the server optimizer over (phi, W).
        round_num: int32[], the number of completed rounds.
        aggregation: The states of the aggregators of phi and of W's rows.
    """

    feature_extractor: tuple[Any, ...]
    classifier: Any
    optimizer: Any
    round_num: Any
    aggregation: Any


def build_aggregation(
    update: settings.ServerUpdate, delta_type: tff.Type
) -> tff.templates.AggregationProcess:
    """Builds line 12: the mean of the clients' `aggregation.ModelDelta`s.

    A client's weight is n_k, float32[]; 0 if it is rejected, and its update is zero.
    """
    factory = update.joint_aggregator
    if isinstance(delta_type.w, tff.StructType):
        _check_takes_rows("joint_aggregator", factory)
        _check_takes_rows("rows_aggregator", update.rows_aggregator)
    if factory is None:
        factory = aggregation.PhiAndRowsFactory(
            update.phi_aggregator or aggregation.default_factory(delta_type.phi),
            update.rows_aggregator or aggregation.default_factory(delta_type.w),
        )
    weight_type = tff.TensorType(np.float32)
    process = aggregation.create("joint_aggregator", factory, delta_type, weight_type)
    weigh = aggregation.weighting(update.client_weighting)
    if weigh is None:
        return process

    def next_round(state, value, weight):
        return process.next(state, value, tff.federated_map(weigh, weight))

    return aggregation.process_of(
        process.initialize, next_round, delta_type, weight_type
    )


def _check_takes_rows(name: str, factory: aggregation.Factory | None) -> None:
    """Checks that a factory is not one of TFF's, which would also add up keys."""
    if type(factory).__module__.startswith("tensorflow_federated."):
        cure = "wrap it by algorithms.adapters, such as UnionRowsFactory"
        raise TypeError(f"{name} is TFF's {type(factory).__name__}: {cure}.")


def build_step(update: settings.ServerUpdate) -> tff.Computation:
    """Builds line 13 with the sign of line 11: theta + alpha * mean delta.

    The server optimizer's gradient is the negative mean delta.

    Returns:
        A function from (`ServerState`, mean `aggregation.ModelDelta`, state of the
        aggregators, number of clients) to the next state and the measurements of
        `after_step`. It fails without clients, unless a joint aggregator adds noise
        also then.
    """
    min_clients = 1
    if getattr(update.joint_aggregator, "allows_no_clients", False):
        min_clients = 0

    @tff.tensorflow.computation
    def step(state, mean, aggregation_state, num_clients):
        check = tf.debugging.Assert(
            num_clients >= min_clients,
            ["A round needs clients: process.next got none."],
        )
        with tf.control_dependencies([check]):
            mean = tf.nest.map_structure(tf.identity, mean)
        phi_gradient = tf.nest.map_structure(tf.negative, tuple(mean.phi))
        if tf.is_tensor(mean.w):
            expected = state.classifier.shape
            if not mean.w.shape.is_compatible_with(expected):
                found = f"of shape {mean.w.shape}, expected {expected}"
                raise ValueError(f"the aggregator's W is {found}: see its num_classes.")
            w_gradient = -mean.w
        else:
            shape = tf.constant(state.classifier.shape.as_list())
            w_gradient = tf.IndexedSlices(-mean.w.rows, mean.w.keys, shape)
        before = optimizers.with_rate(
            update.optimizer,
            state.optimizer,
            update.learning_rate_fn,
            state.round_num,
        )
        optimizer_state, (phi, w) = update.optimizer.next(
            before,
            (tuple(state.feature_extractor), state.classifier),
            (phi_gradient, w_gradient),
        )
        w, measured = (w, {}) if update.after_step is None else update.after_step(w)
        new_state = ServerState(
            feature_extractor=_checked("phi", phi),
            classifier=_checked("W", w),
            optimizer=_checked("the state of the server optimizer", optimizer_state),
            round_num=state.round_num + 1,
            aggregation=aggregation_state,
        )
        return new_state, collections.OrderedDict(measured)

    return step


def _checked(name: str, values: Any) -> Any:
    """Returns a server state's values; the round fails if one is not finite."""
    message = (
        f"{name} is not finite after the server step: try a smaller learning rate, or "
        "an aggregator that clips."
    )
    check = tf.debugging.Assert(_are_finite(tf.nest.flatten(values)), [message])
    with tf.control_dependencies([check]):
        return tf.nest.map_structure(tf.identity, values)


def _are_finite(values: Sequence[tf.Tensor]) -> tf.Tensor:
    floats = [t for t in values if t.dtype.is_floating]
    # A sum needs no second [n, d], but it may overflow although no value is infinite.
    return tf.cond(
        tf.reduce_all([tf.math.is_finite(tf.reduce_sum(t)) for t in floats]),
        lambda: True,
        lambda: tf.reduce_all([tf.reduce_all(tf.math.is_finite(t)) for t in floats]),
    )
