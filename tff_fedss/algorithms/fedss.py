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
server scatters into place once per round. (FullSoftmax asks for all of W, so there it
is broadcast and comes back dense.)

The slow and obvious twin of this file, in NumPy, is tests/algorithms/numpy_twin.py.
"""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import class_sets as class_sets_lib
from tff_fedss import losses, models

METHODS = ("fedss", "neg_only", "pos_only", "full_softmax")

# The fold-in constants that give each purpose its own stream of a client's seed.
_NEGATIVES, _ORDER = 0, 1


class ServerState(NamedTuple):
    """The state of the process between rounds.

    Attributes:
        feature_extractor: phi, a tuple of float32 tensors in the order of the Keras
            model's `trainable_variables`.
        classifier: W, float32[n, d].
        optimizer: The state of the server optimizer over (phi, W).
        round_num: int32[], the number of rounds done.
    """

    feature_extractor: tuple[Any, ...]
    classifier: Any
    optimizer: Any
    round_num: Any


class _ClientTask(NamedTuple):
    """What a client holds after line 5: its class set and its data as tensors.

    Attributes:
        class_set: S_k.
        images: [examples, height, width, channels], in the dtype of the data.
        labels: int32[examples].
        seed: int32[2].
    """

    class_set: class_sets_lib.ClassSet
    images: Any
    labels: Any
    seed: Any


class _ClientResult(NamedTuple):
    """What a client sends back (lines 11-12).

    Attributes:
        feature_extractor_delta: theta_k - theta_0 of phi, a tuple of tensors.
        keys: int32[L], S_k, padded.
        classifier_delta: float32[L, d], theta_k - theta_0 of W_{S_k}; zero in padding.
        weight: float32[], n_k, the number of examples; 0 if the update is rejected.
        metrics: Sums to be added over the clients.
    """

    feature_extractor_delta: tuple[Any, ...]
    keys: Any
    classifier_delta: Any
    weight: Any
    metrics: Any


def build_fedss(
    feature_extractor_fn: Callable[[], tf.keras.Model],
    num_classes: int,
    max_positives: int,
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
    seed: int = 0,
) -> tff.learning.templates.LearningProcess:
    """Builds the learning process of Algorithm 1 for one of `METHODS`.

    The client argument of `next` is a list with one mapping per client:

        {"data": tf.data.Dataset of {"image": [h, w, c], "label": int32[]},
         "seed": int32[2]}

    The data are single examples, not batches. The seed decides every random draw of the
    client in this round: its negatives and the order of its examples. Use a fresh one
    for every (round, client), for instance `tff_fedss.training.client_seed`.

    Args:
        feature_extractor_fn: A no-argument function that builds phi, a Keras model from
            images [examples, h, w, c] to float32[examples, d] without non-trainable
            weights, and the same initial weights at every call (seeded initializers).
        num_classes: n.
        max_positives: The largest |P_k| of any client: class sets are padded to
            max_positives + num_negatives.
        method: One of `METHODS`.
        num_negatives: m; must be 0 for "pos_only" and "full_softmax", which draw none.
        logit_correction: "inclusion" or "none", see `class_sets.SampledClasses`.
        logit_scale: The fixed scale of the cosine logits (A.2: 20).
        client_optimizer: A `tff.learning.optimizers.Optimizer`; by default SGD with
            learning rate 0.01 (A.2). Its state starts anew in every round.
        server_optimizer: Likewise; by default learning rate 1.0 and momentum 0.9 (A.2).
        batch_size: The local mini-batch (A.2: 32). A last short batch is a step too.
        num_epochs: Passes over the local data (A.2: 1).
        image_dtype: The dtype of the images in the data; the model gets float32.
        seed: Of the initial W.

    Returns:
        A `tff.learning.templates.LearningProcess` whose state is a `ServerState`, whose
        model weights are a `tff.learning.models.ModelWeights` with
        trainable = [*phi, W], and whose metrics are a flat mapping of scalars:

        - loss, accuracy: means over all examples of the cohort, each taken just before
          the example's step; accuracy is among the classes of S_k.
        - num_examples, num_clients: sums over the cohort.
        - classes_per_client, positives_per_client: means of |S_k| and |P_k|.
        - rejected_clients: clients whose update was not finite. They count as if they
          had not taken part.

    Raises:
        ValueError: If an argument is out of range or the model cannot serve as phi.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, found {method!r}.")
    if num_negatives and method in ("pos_only", "full_softmax"):
        raise ValueError(
            f"{method} draws no negatives: num_negatives must be 0, "
            f"found {num_negatives}."
        )
    if not num_negatives and method == "neg_only":
        raise ValueError("neg_only needs num_negatives of at least 1, found 0.")
    if batch_size < 1 or num_epochs < 1:
        raise ValueError(
            "batch_size and num_epochs must be positive, "
            f"found {batch_size} and {num_epochs}."
        )
    if method == "full_softmax":
        class_sets = class_sets_lib.AllClasses(num_classes)
    else:
        class_sets = class_sets_lib.SampledClasses(
            num_classes, num_negatives, max_positives, logit_correction
        )
    client_optimizer = client_optimizer or tff.learning.optimizers.build_sgdm(0.01)
    server_optimizer = server_optimizer or tff.learning.optimizers.build_sgdm(1.0, 0.9)
    image_shape, phi_spec, embedding_dim = _inspect(feature_extractor_fn)
    w_spec = tf.TensorSpec([num_classes, embedding_dim], tf.float32)

    # Line 1.
    @tff.tensorflow.computation
    def initial_state():
        phi = tuple(v.read_value() for v in feature_extractor_fn().trainable_variables)
        w = models.initial_classifier(num_classes, embedding_dim, [seed, 0])
        return ServerState(
            feature_extractor=phi,
            classifier=w,
            optimizer=server_optimizer.initialize((phi_spec, w_spec)),
            round_num=tf.constant(0, tf.int32),
        )

    # Line 5.
    @tff.tensorflow.computation(
        collections.OrderedDict(
            data=tff.SequenceType(
                collections.OrderedDict(
                    image=tff.TensorType(image_dtype.as_numpy_dtype, image_shape),
                    label=tff.TensorType(np.int32),
                )
            ),
            seed=tff.TensorType(np.int32, [2]),
        )
    )
    def prepare_client(client):
        images, labels = _stack(client["data"], image_shape, image_dtype)
        class_set = class_sets.build(labels, _fold_in(client["seed"], _NEGATIVES))
        return _ClientTask(class_set, images, labels, client["seed"])

    # Lines 8-11.
    def train_client(phi, rows, task):
        return _train_client(
            feature_extractor_fn(),
            phi,
            rows,
            task,
            loss_fn=_loss_fn(method),
            logit_scale=logit_scale,
            optimizer=client_optimizer,
            batch_size=batch_size,
            num_epochs=num_epochs,
        )

    # Line 13, with the sign that line 11 asks for: theta + alpha * mean delta. To the
    # server optimizer the negative of the mean delta is the gradient.
    @tff.tensorflow.computation(
        initial_state.type_signature.result,
        _type_of(phi_spec),
        _type_of(w_spec),
    )
    def update_server(state, phi_delta, w_delta):
        gradient = tf.nest.map_structure(tf.negative, (tuple(phi_delta), w_delta))
        optimizer_state, (phi, w) = server_optimizer.next(
            state.optimizer,
            (tuple(state.feature_extractor), state.classifier),
            gradient,
        )
        return ServerState(phi, w, optimizer_state, state.round_num + 1)

    if class_sets.is_everything:
        exchange = _broadcast_everything(prepare_client, train_client, phi_spec, w_spec)
    else:
        exchange = _select_rows(
            prepare_client, train_client, phi_spec, w_spec, class_sets.size
        )

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(prepare_client.type_signature.parameter, tff.CLIENTS),
    )
    def next_round(state, clients):
        phi_delta, w_delta, metrics = exchange(
            state.feature_extractor, state.classifier, clients
        )
        return tff.learning.templates.LearningProcessOutput(
            tff.federated_map(update_server, (state, phi_delta, w_delta)),
            tff.federated_map(_finalize_metrics, metrics),
        )

    @tff.tensorflow.computation(initial_state.type_signature.result)
    def get_model_weights(state):
        return tff.learning.models.ModelWeights(
            trainable=[*state.feature_extractor, state.classifier], non_trainable=[]
        )

    @tff.tensorflow.computation(
        initial_state.type_signature.result, get_model_weights.type_signature.result
    )
    def set_model_weights(state, weights):
        *phi, w = weights.trainable
        return ServerState(tuple(phi), w, state.optimizer, state.round_num)

    return tff.learning.templates.LearningProcess(
        initialize, next_round, get_model_weights, set_model_weights
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


def _type_of(specs: Any) -> tff.Type:
    """Returns the TFF type of a structure of `tf.TensorSpec`s."""
    return tff.to_type(
        tf.nest.map_structure(
            lambda s: tff.TensorType(s.dtype.as_numpy_dtype, s.shape), specs
        )
    )


def _fold_in(seed: tf.Tensor, purpose: int) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(seed, purpose, alg="philox")


def _stack(
    data: tf.data.Dataset, image_shape: tuple[int, ...], image_dtype: tf.DType
) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads a client's whole data set into tensors, in one pass.

    The training loop slices these. Iterating a tf.data.Dataset inside of a graph is
    several times slower than the training step itself.
    """
    # A data set without elements has no single batch; one dummy element makes one.
    dummy = tf.data.Dataset.from_tensors(
        collections.OrderedDict(
            image=tf.zeros(image_shape, image_dtype), label=tf.constant(0, tf.int32)
        )
    )
    everything = data.concatenate(dummy).batch(tf.int32.max).get_single_element()
    return everything["image"][:-1], everything["label"][:-1]


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


def _train_client(
    model: tf.keras.Model,
    phi: tuple[tf.Tensor, ...],
    rows: tf.Tensor,
    task: _ClientTask,
    *,
    loss_fn: Callable[..., tf.Tensor],
    logit_scale: float,
    optimizer: tff.learning.optimizers.Optimizer,
    batch_size: int,
    num_epochs: int,
) -> _ClientResult:
    """Local optimization (lines 8-11): mini-batches over stacked tensors.

    Args:
        model: phi's Keras model, whose variables serve as working memory.
        phi: Its initial weights.
        rows: float32[L, d], W_{S_k}.
        task: The client's class set and data.
        loss_fn: (logits, targets, class set) -> float32[examples].
        logit_scale: Of the cosine logits.
        optimizer: The client optimizer.
        batch_size: The size of a mini-batch.
        num_epochs: Passes over the data.

    Returns:
        The client's deltas, weight and metrics.
    """
    variables = tuple(model.trainable_variables)
    class_set = task.class_set
    targets = class_sets_lib.positions(class_set, task.labels)
    num_examples = tf.size(targets)

    @tf.function
    def run(phi, rows):
        for variable, value in zip(variables, phi, strict=True):
            variable.assign(value)
        w = rows
        optimizer_state = optimizer.initialize(
            tf.nest.map_structure(
                lambda t: tf.TensorSpec(t.shape, t.dtype), (tuple(phi), rows)
            )
        )
        loss_sum, num_correct = tf.constant(0.0), tf.constant(0)
        for epoch in tf.range(num_epochs):
            order = tf.random.experimental.stateless_shuffle(
                tf.range(num_examples),
                _fold_in(_fold_in(task.seed, _ORDER), epoch),
                alg="philox",
            )
            for start in tf.range(0, num_examples, batch_size):
                batch = order[start : start + batch_size]
                images = tf.cast(tf.gather(task.images, batch), tf.float32)
                batch_targets = tf.gather(targets, batch)
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch((variables, w))
                    logits = models.cosine_logits(
                        model(images, training=True), w, logit_scale
                    )
                    example_losses = loss_fn(logits, batch_targets, class_set)
                    loss = tf.reduce_mean(example_losses)
                gradient = tape.gradient(loss, (variables, w))
                weights = tuple(v.read_value() for v in variables), w
                optimizer_state, (updated, w) = optimizer.next(
                    optimizer_state, weights, gradient
                )
                for variable, value in zip(variables, updated, strict=True):
                    variable.assign(value)
                loss_sum += tf.reduce_sum(example_losses)
                num_correct += _count_correct(logits, batch_targets, class_set)
        phi_delta = tuple(v - value for v, value in zip(variables, phi, strict=True))
        # Padding is no part of S_k, whatever a client optimizer did to it.
        w_delta = tf.where(class_set.is_member[:, tf.newaxis], w - rows, 0.0)
        return phi_delta, w_delta, loss_sum, num_correct

    phi_delta, w_delta, loss_sum, num_correct = run(tuple(phi), rows)
    is_finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(t)) for t in (*phi_delta, w_delta, loss_sum)]
    )
    # A rejected client counts as one that did not take part: zero deltas, zero weight.
    phi_delta, w_delta, loss_sum = tf.nest.map_structure(
        lambda t: tf.where(is_finite, t, tf.zeros_like(t)),
        (phi_delta, w_delta, loss_sum),
    )
    count = tf.where(is_finite, num_examples, 0)
    return _ClientResult(
        feature_extractor_delta=phi_delta,
        keys=class_set.keys,
        classifier_delta=w_delta,
        weight=tf.cast(count, tf.float32),
        metrics=collections.OrderedDict(
            loss_sum=loss_sum,
            num_correct=tf.where(is_finite, num_correct, 0),
            num_examples=count,
            num_clients=tf.constant(1),
            num_classes=_count(class_set.is_member),
            num_positives=_count(class_set.is_positive),
            num_rejected=tf.where(is_finite, 0, 1),
        ),
    )


def _count(mask: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(mask, tf.int32))


def _count_correct(
    logits: tf.Tensor, targets: tf.Tensor, class_set: class_sets_lib.ClassSet
) -> tf.Tensor:
    """Counts the examples whose target has the largest logit in S_k: int32[]."""
    logits = tf.where(class_set.is_member, logits, logits.dtype.min)
    return _count(tf.argmax(logits, 1, tf.int32) == targets)


@tff.tensorflow.computation(
    collections.OrderedDict(
        loss_sum=np.float32,
        num_correct=np.int32,
        num_examples=np.int32,
        num_clients=np.int32,
        num_classes=np.int32,
        num_positives=np.int32,
        num_rejected=np.int32,
    )
)
def _finalize_metrics(sums):
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
        rejected_clients=sums["num_rejected"],
    )


def _select_rows(prepare_client, train_client, phi_spec, w_spec, size):
    """The sparse exchange of Algorithm 1 (lines 5-12): rows out, sparse deltas back."""
    num_classes, embedding_dim = w_spec.shape
    row_type = tff.TensorType(np.float32, [embedding_dim])
    task_type = prepare_client.type_signature.result

    @tff.tensorflow.computation(task_type)
    def keys_of(task):
        return task.class_set.keys

    @tff.tensorflow.computation(_type_of(w_spec), np.int32)
    def row_of(w, key):
        return tf.gather(w, key)

    @tff.tensorflow.computation(
        _type_of(phi_spec), tff.SequenceType(row_type), task_type
    )
    def train(phi, rows, task):
        rows = rows.batch(size, drop_remainder=True).get_single_element()
        return train_client(phi, rows, task)

    scatter_mean = _build_scatter_mean(num_classes, embedding_dim, size)

    def exchange(phi, w, clients):
        tasks = tff.federated_map(prepare_client, clients)
        # Lines 6-7: the clients ask, the server answers with a row per key.
        rows = tff.federated_select(
            tff.federated_map(keys_of, tasks),
            tff.federated_value(num_classes - 1, tff.SERVER),
            w,
            row_of,
        )
        results = tff.federated_map(train, (tff.federated_broadcast(phi), rows, tasks))
        return (
            _weighted_mean(results.feature_extractor_delta, results.weight),
            scatter_mean(results),
            tff.federated_sum(results.metrics),
        )

    return exchange


def _broadcast_everything(prepare_client, train_client, phi_spec, w_spec):
    """The dense exchange of FullSoftmax: all of W out, a dense delta back."""

    @tff.tensorflow.computation(
        _type_of(phi_spec),
        _type_of(w_spec),
        prepare_client.type_signature.result,
    )
    def train(phi, w, task):
        return train_client(phi, w, task)

    def exchange(phi, w, clients):
        tasks = tff.federated_map(prepare_client, clients)
        results = tff.federated_map(
            train, (tff.federated_broadcast(phi), tff.federated_broadcast(w), tasks)
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


def _build_scatter_mean(num_classes: int, embedding_dim: int, size: int):
    """Line 12 for sparse deltas: the weighted mean over ALL clients of the round.

    A client without a class counts as zero for it. The accumulator is a growing list of
    (keys, weighted rows); the one tensor of shape [n, d] appears in `report`.
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
        rows = tf.math.divide_no_nan(total.rows, total.weight)
        return tf.scatter_nd(
            total.keys[:, tf.newaxis], rows, [num_classes, embedding_dim]
        )

    @tff.federated_computation
    def make_zero():
        return zero()

    def scatter_mean(results):
        update = tff.federated_zip(
            collections.OrderedDict(
                keys=results.keys, rows=results.classifier_delta, weight=results.weight
            )
        )
        return tff.federated_aggregate(update, make_zero(), accumulate, merge, report)

    return scatter_mean
