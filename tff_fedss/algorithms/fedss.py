"""Federated sampled softmax (FedSS, Algorithm 1) and its class-set relatives.

FedSS, NegOnly, PosOnly and FullSoftmax are one process. They differ in the classes S_k
that a client asks for and in the loss it minimises over them:

| method       | class set S_k  | loss  |
|--------------|----------------|-------|
| fedss        | P_k u N_k      | Eq. 5 |
| neg_only     | P_k u N_k      | Eq. 7 |
| pos_only     | P_k            | Eq. 8 |
| full_softmax | [n]            | Eq. 2 |

The process is an ordinary `tff.learning.templates.LearningProcess`. The model never
travels whole: the feature extractor phi is broadcast, and of the classification matrix
W ([n, d], a row per class) a client receives the rows it asks for through
`tff.federated_select`. Back come a dense delta of phi and a sparse one of W, which the
server adds to its momentum once per round. (FullSoftmax asks for all of W, so there it
is broadcast and comes back dense.)

The slow and obvious twin of this file, in NumPy, is examples/fedss_numpy.py.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import class_sets as class_sets_lib
from tff_fedss import losses, models
from tff_fedss.algorithms import (
    aggregation,
    client_update,
    exchange,
    one_vector,
    sparse_sgdm,
)

METHODS = ("fedss", "neg_only", "pos_only", "full_softmax")
AfterServerStep = Callable[[tf.Tensor], tuple[tf.Tensor, Mapping[str, tf.Tensor]]]


class ServerState(NamedTuple):
    """The state of the process between rounds.

    Attributes:
        feature_extractor: phi, a tuple of float32 tensors in the order of the Keras
            model's `trainable_variables`.
        classifier: W, float32[n, d].
        optimizer: The state of the server optimizer over (phi, W).
        round_num: int32[], the number of rounds done.
        aggregation: The states of the aggregators of phi and of W's rows.
    """

    feature_extractor: tuple[Any, ...]
    classifier: Any
    optimizer: Any
    round_num: Any
    aggregation: Any = ()


def build_fedss(
    feature_extractor_fn: Callable[[], tf.keras.Model],
    num_classes: int,
    max_positives: int | None,
    *,
    method: str = "fedss",
    num_negatives: int = 0,
    logit_correction: str = "inclusion",
    logit_scale: float = 20.0,
    client_optimizer: tff.learning.optimizers.Optimizer | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    batch_size: int = 32,
    num_epochs: int = 1,
    image_dtype: tf.DType = tf.uint8,
    use_xla: bool = False,
    with_positives: bool = False,
    seed: int = 0,
    initial_norm: float = models.INITIAL_NORM,
    after_server_step: AfterServerStep | None = None,
    phi_aggregator: aggregation.Factory | None = None,
    rows_aggregator: aggregation.Factory | None = None,
    joint_aggregator: aggregation.Factory | None = None,
    client_weighting: aggregation.ClientWeighting = "num_examples",
    loss_fn: Callable[..., tf.Tensor] | None = None,
    class_set_builder: class_sets_lib.ClassSetBuilder | None = None,
    requests: str = "sampled",
) -> tff.learning.templates.LearningProcess:
    """Builds the learning process of Algorithm 1 for one of `METHODS`.

    The client argument of `next` is a list with one mapping per client:

        {"data": tf.data.Dataset of {"image": [h, w, c], "label": int32[]},
         "seed": int32[2]}

    The data are single examples, not batches. The seed decides every random draw of the
    client in this round: its negatives and the order of its examples. Use a fresh one
    for every (round, client), for instance `tff_fedss.training.client_seed`. Where the
    class sets are permanent, there is "permanent_seed": int32[2], too, the same in all
    rounds (`tff_fedss.training.permanent_seed`).

    Args:
        feature_extractor_fn: A no-argument function that builds phi, a Keras model from
            images [examples, h, w, c] to float32[examples, d] without non-trainable
            weights, and the same initial weights at every call (seeded initializers).
        num_classes: n.
        max_positives: The largest |P_k| of any client: class sets are padded to
            max_positives + num_negatives. None with a `class_set_builder`, which knows.
        method: One of `METHODS`.
        num_negatives: m; must be 0 for "pos_only" and "full_softmax", which draw none.
        logit_correction: "inclusion" or "none", see `class_sets.SampledClasses`.
        logit_scale: The fixed scale of the cosine logits (A.2: 20).
        client_optimizer: A `tff.learning.optimizers.Optimizer`; by default SGD with
            learning rate 0.01 (A.2). Its state starts anew in every round. On GPUs one
            by `over_one_vector` is faster.
        server_optimizer: Likewise; by default `build_sparse_sgdm` with learning rate
            1.0 and momentum 0.9 (A.2). It gets the gradient of W as `tf.IndexedSlices`
            (of which TFF's optimizers make a dense one), that of FullSoftmax as a
            tensor.
        batch_size: The local mini-batch (A.2: 32). A last short batch is a step too.
        num_epochs: Passes over the local data (A.2: 1).
        image_dtype: The dtype of the images in the data; the model gets float32.
        use_xla: Whether XLA compiles a client's step (`client_update.train`).
        with_positives: Whether a client's argument has "positives", int32[|P_k|], too:
            its distinct labels. Its data are then read once, when it trains; else
            twice, for the labels first. (TFF selects rows for all clients at once, and
            all must have drawn by then.)
        seed: Of the initial W.
        initial_norm: Of its rows, see `models.initial_classifier`.
        after_server_step: Maps W, float32[n, d], to the W that ends the round, and to
            scalars by name that stand in the metrics: a server regularization, as
            FedAwS has one.
        phi_aggregator: A factory of `tff.aggregators` for the clients' deltas of phi,
            a tuple of tensors: robust, secure, compressed, private; by default the mean
            of line 12. An unweighted one needs `client_weighting="uniform"`.
        rows_aggregator: Likewise for the deltas of W's rows: a factory over
            `aggregation.SparseRows`, whose result is another one or a dense matrix;
            by default `aggregation.GrowingRowsFactory`. Around a factory of TFF's put
            `aggregation.ScatteredRowsFactory`. For FullSoftmax a factory of TFF's, over
            float32[n, d].
        joint_aggregator: In the place of both, where they must be seen as one: a
            factory over `aggregation.ModelDelta`, such as
            `user_level_dp.PrivateMeanFactory`.
        client_weighting: How line 12 weighs a client: "num_examples" is n_k; "uniform"
            1; or a function from n_k, float32[], to float32[]. A client without
            examples, or whose update is rejected, has weight 0 (to an unweighted
            factory it gives zeros).
        loss_fn: (logits float32[b, L], targets int32[b], `class_sets.ClassSet`) ->
            float32[b], what clients minimise in the place of the method's loss. Targets
            are positions in S_k; the logits are not corrected yet.
        class_set_builder: How a client arrives at S_k, in the place of the method's
            way; with it, num_negatives and logit_correction have no meaning and are to
            be left alone.
        requests: What of W a client gets: "sampled", the rows that it asks for;
            "union", those that any client of the cohort asks for; "all". What comes out
            of a round is the same. FullSoftmax knows the first alone: it asks for all.

    Returns:
        A `tff.learning.templates.LearningProcess` whose state is a `ServerState`, whose
        model weights are a `tff.learning.models.ModelWeights` with
        trainable = [*phi, W], and whose metrics are a flat mapping of scalars:

        - loss, accuracy: means over all examples of the cohort, each taken just before
          the example's step; accuracy is among the classes of S_k.
        - num_examples, num_clients: sums over the cohort.
        - classes_per_client, positives_per_client: means of how many classes a client
          asks for (|S_k|), and how many of them are its own (|P_k|).
        - rows_per_client: how many rows of W a client gets.
        - rejected_clients: clients whose update was not finite. They count as if they
          had not taken part.
        - what the aggregators measure, if it is a number, as phi/... and w/..., and
          that of a joint one as it calls it; and what after_server_step measures.

    Raises:
        TypeError: If an object of Keras stands where a function or one of TFF's has to.
        ValueError: If an argument is out of range or the model cannot serve as phi.
    """
    _check_is_no_keras_object(
        feature_extractor_fn=feature_extractor_fn,
        client_optimizer=client_optimizer,
        server_optimizer=server_optimizer,
        loss_fn=loss_fn,
    )
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, found {method!r}.")
    if num_negatives and method in ("pos_only", "full_softmax"):
        raise ValueError(
            f"{method} draws no negatives: num_negatives must be 0, "
            f"found {num_negatives}."
        )
    if not num_negatives and method == "neg_only" and class_set_builder is None:
        raise ValueError("neg_only needs num_negatives of at least 1, found 0.")
    if batch_size < 1 or num_epochs < 1:
        raise ValueError(
            "batch_size and num_epochs must be positive, "
            f"found {batch_size} and {num_epochs}."
        )
    if requests not in exchange.REQUESTS:
        raise ValueError(
            f"requests must be one of {exchange.REQUESTS}, found {requests!r}."
        )
    class_sets = _class_sets(
        class_set_builder,
        method,
        num_classes,
        max_positives,
        num_negatives,
        logit_correction,
    )
    if class_sets.is_everything and requests != "sampled":
        raise ValueError(
            f"requests={requests!r} has no meaning where a client asks for all classes."
        )
    client_optimizer = client_optimizer or one_vector.over_one_vector(
        tff.learning.optimizers.build_sgdm(0.01)
    )
    server_optimizer = server_optimizer or sparse_sgdm.build_sparse_sgdm(1.0, 0.9)
    image_shape, phi_spec, embedding_dim = _inspect(feature_extractor_fn)
    w_spec = tf.TensorSpec([num_classes, embedding_dim], tf.float32)
    aggregate = aggregation.Aggregation(
        exchange.type_of(phi_spec),
        exchange.type_of(w_spec)
        if class_sets.is_everything
        else aggregation.sparse_rows_type(embedding_dim, class_sets.size),
        phi_aggregator=phi_aggregator,
        rows_aggregator=rows_aggregator,
        joint_aggregator=joint_aggregator,
        client_weighting=client_weighting,
    )

    # Line 1.
    @tff.tensorflow.computation
    def initial_state():
        phi = tuple(v.read_value() for v in feature_extractor_fn().trainable_variables)
        w = models.initial_classifier(
            num_classes, embedding_dim, [seed, 0], initial_norm
        )
        return ServerState(
            feature_extractor=phi,
            classifier=w,
            optimizer=server_optimizer.initialize((phi_spec, w_spec)),
            round_num=tf.constant(0, tf.int32),
        )

    @tff.federated_computation
    def initialize():
        state = tff.federated_eval(initial_state, tff.SERVER)
        return tff.federated_zip(
            ServerState(
                state.feature_extractor,
                state.classifier,
                state.optimizer,
                state.round_num,
                aggregate.initialize(),
            )
        )

    state_type = initialize.type_signature.result.member

    client_type = collections.OrderedDict(
        data=tff.SequenceType(
            collections.OrderedDict(
                image=tff.TensorType(image_dtype.as_numpy_dtype, image_shape),
                label=tff.TensorType(np.int32),
            )
        ),
        seed=tff.TensorType(np.int32, [2]),
    )
    if with_positives:
        client_type["positives"] = tff.TensorType(np.int32, [None])
    if class_sets.is_permanent:
        client_type["permanent_seed"] = tff.TensorType(np.int32, [2])

    # Line 5.
    @tff.tensorflow.computation(client_type)
    def draw_class_set(client):
        return client_update.draw_class_set(client, class_sets)

    # Lines 8-11.
    def train_client(phi, rows, class_set, client):
        return client_update.train(
            feature_extractor_fn(),
            phi,
            rows,
            client_update.read(client, class_set, class_sets.may_miss_positives),
            loss_fn=loss_fn or _loss_fn(method),
            logit_scale=logit_scale,
            optimizer=client_optimizer,
            batch_size=batch_size,
            num_epochs=num_epochs,
            use_xla=use_xla,
        )

    # Line 13, with the sign that line 11 asks for: theta + alpha * mean delta. To the
    # server optimizer the negative of the mean delta is the gradient.
    @tff.tensorflow.computation(
        state_type,
        aggregate.phi_result_type,
        aggregate.w_result_type,
        state_type.aggregation,
    )
    def update_server(state, phi_delta, w_delta, aggregation_state):
        phi_gradient = tf.nest.map_structure(tf.negative, tuple(phi_delta))
        if tf.is_tensor(w_delta):
            w_gradient = -w_delta
        else:
            w_gradient = aggregation.gradient_of(w_delta, w_spec)
        optimizer_state, (phi, w) = server_optimizer.next(
            state.optimizer,
            (tuple(state.feature_extractor), state.classifier),
            (phi_gradient, w_gradient),
        )
        w, measured = (w, {}) if after_server_step is None else after_server_step(w)
        new_state = ServerState(
            phi, w, optimizer_state, state.round_num + 1, aggregation_state
        )
        return new_state, collections.OrderedDict(measured)

    # Lines 4-12.
    if class_sets.is_everything:
        update_clients = exchange.broadcast_everything(
            draw_class_set, train_client, phi_spec, w_spec
        )
    elif requests == "sampled":
        update_clients = exchange.select_rows(
            draw_class_set, train_client, phi_spec, w_spec, class_sets.size
        )
    else:
        send = exchange.send_union if requests == "union" else exchange.send_all
        update_clients = send(draw_class_set, train_client, phi_spec, w_spec)

    @tff.tensorflow.computation(
        _SUMS_TYPE, aggregate.measurements_type, update_server.type_signature.result[1]
    )
    def finalize_metrics(sums, measurements, of_server):
        metrics = _finalize_metrics(sums)
        metrics.update(aggregation.flat_scalars(measurements))
        metrics.update(aggregation.flat_scalars(of_server))
        return metrics

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(draw_class_set.type_signature.parameter, tff.CLIENTS),
    )
    def next_round(state, clients):
        results = update_clients(state.feature_extractor, state.classifier, clients)
        aggregation_state, phi_delta, w_delta, measurements = aggregate.next(
            state.aggregation,
            results.feature_extractor_delta,
            results.classifier_delta
            if class_sets.is_everything
            else tff.federated_zip(
                aggregation.SparseRows(results.keys, results.classifier_delta)
            ),
            results.weight,
        )
        updated = tff.federated_map(
            update_server, (state, phi_delta, w_delta, aggregation_state)
        )
        return tff.learning.templates.LearningProcessOutput(
            updated[0],
            tff.federated_map(
                finalize_metrics,
                (tff.federated_sum(results.metrics), measurements, updated[1]),
            ),
        )

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state):
        return tff.learning.models.ModelWeights(
            trainable=[*state.feature_extractor, state.classifier], non_trainable=[]
        )

    @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
    def set_model_weights(state, weights):
        *phi, w = weights.trainable
        return ServerState(
            tuple(phi), w, state.optimizer, state.round_num, state.aggregation
        )

    return tff.learning.templates.LearningProcess(
        initialize, next_round, get_model_weights, set_model_weights
    )


_KERAS_HINTS = {
    "feature_extractor_fn": (
        tf.keras.Model,
        "a function without arguments that builds it, with the same initial weights at "
        "each call, such as functools.partial(models.small_cnn, image_shape)",
    ),
    "client_optimizer": (
        (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer),
        "one of tff.learning.optimizers, such as build_sgdm(0.1)",
    ),
    "loss_fn": (
        tf.keras.losses.Loss,
        "a function (logits, targets, class_set) -> float32[examples]; see `losses`",
    ),
}
_KERAS_HINTS["server_optimizer"] = _KERAS_HINTS["client_optimizer"]


def _check_is_no_keras_object(**arguments: Any) -> None:
    for name, value in arguments.items():
        kind, hint = _KERAS_HINTS[name]
        if isinstance(value, kind):
            raise TypeError(
                f"{name} is a {type(value).__name__} of Keras, whose variables live in "
                f"one place; it has to work on every client: give {hint}."
            )


def _class_sets(
    builder: class_sets_lib.ClassSetBuilder | None,
    method: str,
    num_classes: int,
    max_positives: int | None,
    num_negatives: int,
    logit_correction: str,
) -> class_sets_lib.ClassSetBuilder:
    """Returns how clients arrive at their class sets."""
    if builder is not None:
        if num_negatives:
            raise ValueError(
                f"num_negatives={num_negatives} has no meaning with a "
                "class_set_builder, which draws them."
            )
        if builder.num_classes != num_classes:
            raise ValueError(
                f"class_set_builder is for {builder.num_classes} classes, "
                f"num_classes={num_classes}."
            )
        return builder
    if method == "full_softmax":
        return class_sets_lib.AllClasses(num_classes)
    if max_positives is None:
        raise ValueError(f"{method} needs max_positives, the largest |P_k|.")
    return class_sets_lib.SampledClasses(
        num_classes, num_negatives, max_positives, logit_correction
    )


def _inspect(
    feature_extractor_fn: Callable[[], tf.keras.Model],
) -> tuple[tuple[int, ...], tuple[tf.TensorSpec, ...], int]:
    """Returns the image shape, the weight specs and d of phi; checks that it serves."""
    with tf.Graph().as_default():  # Only shapes are wanted: nothing is computed.
        model = feature_extractor_fn()
        if model.non_trainable_variables:
            raise ValueError(
                "The feature extractor must have trainable weights only: found "
                f"{[v.name for v in model.non_trainable_variables]}. Use GroupNorm "
                "instead of BatchNorm (FedSS, A.2)."
            )
        if len(model.output_shape) != 2 or None in model.input_shape[1:]:
            raise ValueError(
                "The feature extractor must map [examples, height, width, channels] of "
                f"fixed size to [examples, d]: found {model.input_shape} -> "
                f"{model.output_shape}."
            )
        specs = tuple(
            tf.TensorSpec(v.shape, v.dtype) for v in model.trainable_variables
        )
        return tuple(model.input_shape[1:]), specs, model.output_shape[1]


def _loss_fn(method: str) -> Callable[..., tf.Tensor]:
    """Returns the loss of a method as a function of (logits, targets, class set)."""
    if method == "fedss":
        return lambda o, t, s: losses.fedss_loss(o, t, s.is_member, s.log_correction)
    if method == "neg_only":
        return lambda o, t, s: losses.neg_only_loss(
            o, t, s.is_member & ~s.is_positive, s.log_correction
        )
    if method == "pos_only":
        return lambda o, t, s: losses.pos_only_loss(o, t, s.is_positive)
    return lambda o, t, s: losses.softmax_loss(o, t)


_SUMS_TYPE = collections.OrderedDict(
    loss_sum=np.float32,
    num_correct=np.int32,
    num_examples=np.int32,
    num_clients=np.int32,
    num_classes=np.int32,
    num_rows=np.int32,
    num_positives=np.int32,
    num_rejected=np.int32,
)


def _finalize_metrics(
    sums: Mapping[str, tf.Tensor],
) -> "collections.OrderedDict[str, tf.Tensor]":
    """Turns sums over the cohort into the metrics that `build_fedss` documents."""

    def per(total, count):
        return tf.math.divide_no_nan(
            tf.cast(total, tf.float32), tf.cast(count, tf.float32)
        )

    return collections.OrderedDict(
        loss=per(sums["loss_sum"], sums["num_examples"]),
        accuracy=per(sums["num_correct"], sums["num_examples"]),
        num_examples=sums["num_examples"],
        num_clients=sums["num_clients"],
        classes_per_client=per(sums["num_classes"], sums["num_clients"]),
        positives_per_client=per(sums["num_positives"], sums["num_clients"]),
        rows_per_client=per(sums["num_rows"], sums["num_clients"]),
        rejected_clients=sums["num_rejected"],
    )
