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

examples/fedss_numpy.py is a slow and simple version of this file in NumPy.
"""

import collections
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import class_sets as class_sets_lib
from tff_fedss import errors, losses, models
from tff_fedss.algorithms import aggregation, client_update, exchange, settings
from tff_fedss.algorithms import server_update as server_update_lib
from tff_fedss.algorithms.server_update import ServerState

METHODS = ("fedss", "neg_only", "pos_only", "full_softmax")


@models.building_in_graphs()
def build_fedss(
    feature_extractor_fn: Callable[[], tf.keras.Model],
    num_classes: int,
    class_sets: settings.ClassSets,
    client_training: settings.ClientTraining | None = None,
    server_update: settings.ServerUpdate | None = None,
    *,
    method: str = "fedss",
    seed: int = 0,
    initial_norm: float = models.INITIAL_NORM,
) -> tff.learning.templates.LearningProcess:
    """Builds the learning process of Algorithm 1 for one of `METHODS`.

    The clients' argument of `next` is a list with one mapping per client:

        {"data": tf.data.Dataset of {"image": [h, w, c], "label": int32[]},
         "seed": int32[2]}

    The data are single examples, not batches. The seed decides every random draw of the
    client in this round (negatives, order of the examples, dropout): use a fresh one
    for every (round, client), such as `tff_fedss.training.client_seed`. Permanent class
    sets need "permanent_seed", int32[2], too (`tff_fedss.training.permanent_seed`).

    Args:
        feature_extractor_fn: Builds phi, a Keras model from images [examples, h, w, c]
            to float32[examples, d] without non-trainable weights, with the same initial
            weights at every call. For dropout there is `models.CountedDropout`.
        num_classes: n.
        class_sets: What clients ask for and get (lines 5-7).
        client_training: How clients train (lines 8-11).
        server_update: How their deltas become the next model (lines 12-13).
        method: One of `METHODS`.
        seed: Seed of the initial W.
        initial_norm: Norm of the rows of the initial W, see
            `models.initial_classifier`.

    Returns:
        A process whose state is a `ServerState`, whose model weights have trainable =
        [*phi, W], and whose metrics are those of `finalize_metrics`. A client's update
        that is not finite is left out. A round fails if no client came, or if phi, W or
        the state of the server optimizer, which the error names, is not finite at its
        end.

    Raises:
        TypeError: If a Keras object is given for a function or a TFF object.
        ValueError: If an argument is out of range or the model cannot be phi.
    """
    training = client_training or settings.ClientTraining()
    server = server_update or settings.ServerUpdate()
    _check_settings(class_sets, training, server, method, seed, initial_norm)
    builder = class_sets.builder_of(method, num_classes)
    client_update.check_loss(training.loss_fn, builder.size)
    loss_fn = training.loss_fn or _LOSSES[method]
    image_shape, embedding_dim, initial_phi = _inspect(feature_extractor_fn)
    phi_spec = tuple(tf.TensorSpec(w.shape, w.dtype) for w in initial_phi)
    w_spec = tf.TensorSpec([num_classes, embedding_dim], tf.float32)
    client_spec = _client_spec(image_shape, training, class_sets, builder)

    @tff.tensorflow.computation
    def initialize_model():
        phi = tuple(map(tf.constant, initial_phi))
        w = models.initial_classifier(*w_spec.shape, [seed, 0], initial_norm)
        return phi, w, server.optimizer.initialize((phi_spec, w_spec)), tf.constant(0)

    @tff.tensorflow.computation(client_spec)
    def draw_class_set(client):
        return client_update.draw_class_set(client, builder)

    client_type = draw_class_set.type_signature.parameter
    class_set_type = draw_class_set.type_signature.result
    rows = exchange.build(builder, class_sets.requests, w_spec, class_set_type)

    @tff.tensorflow.computation(
        phi_spec, rows.sent_type, class_set_type, client_type, np.int32
    )
    def train(phi, sent, class_set, client, round_num):
        w, num_rows = rows.receive(sent, class_set)
        task = client_update.read(client, class_set, builder.may_miss_positives)
        model = feature_extractor_fn()
        _check_seeds(model, initial_phi)
        result = client_update.train(model, phi, w, task, training, loss_fn, round_num)
        result.metrics["num_rows"] = num_rows
        if builder.is_everything:
            delta = result.delta._replace(w=result.delta.w.rows)
            result = result._replace(delta=delta)
        return result

    client_update.check_draws(train)
    delta_type = train.type_signature.result.delta
    aggregate = server_update_lib.build_aggregation(server, delta_type)

    @tff.federated_computation
    def initialize():  # Line 1.
        model = tff.federated_eval(initialize_model, tff.SERVER)
        return tff.federated_zip(ServerState(*model, aggregate.initialize()))

    state_type = initialize.type_signature.result
    update_server = server_update_lib.build_step(server)
    finalize = tff.tensorflow.computation(finalize_metrics)

    @tff.federated_computation(state_type, tff.FederatedType(client_type, tff.CLIENTS))
    def next_round(state, clients):
        sets = tff.federated_map(draw_class_set, clients)  # Line 5.
        sent = rows.send(state.classifier, sets)  # Lines 6-7.
        phi = tff.federated_broadcast(state.feature_extractor)
        round_num = tff.federated_broadcast(state.round_num)
        given = (phi, sent, sets, clients, round_num)
        results = tff.federated_map(train, given)  # Lines 8-11.
        mean = aggregate.next(state.aggregation, results.delta, results.weight)  # 12.
        sums = tff.federated_sum(results.metrics)
        step = (state, mean.result, mean.state, sums["num_clients"])
        state, measured = tff.federated_map(update_server, step)  # Line 13.
        metrics = tff.federated_map(finalize, (sums, mean.measurements, measured))
        return tff.learning.templates.LearningProcessOutput(state, metrics)

    return tff.learning.templates.LearningProcess(
        initialize, next_round, *_weights_functions(state_type.member)
    )


def _check_settings(
    class_sets: settings.ClassSets,
    client_training: settings.ClientTraining,
    server_update: settings.ServerUpdate,
    method: str,
    seed: int,
    initial_norm: float,
) -> None:
    for name, value, kind in (
        ("class_sets", class_sets, settings.ClassSets),
        ("client_training", client_training, settings.ClientTraining),
        ("server_update", server_update, settings.ServerUpdate),
    ):
        errors.check_kind(name, value, kind, f"algorithms.{kind.__name__}(...)")
    errors.check_choice("method", method, METHODS)
    errors.check_kind("seed", seed, numbers.Integral, "a whole number")
    errors.check_range("initial_norm", initial_norm, 0, above=True)


def _client_spec(
    image_shape: tuple[int, ...],
    training: settings.ClientTraining,
    class_sets: settings.ClassSets,
    builder: class_sets_lib.ClassSetBuilder,
) -> "collections.OrderedDict[str, Any]":
    """Returns the specs of a client's argument."""
    element = collections.OrderedDict(
        image=tf.TensorSpec(image_shape, training.image_dtype),
        label=tf.TensorSpec([], tf.int32),
    )
    seed = tf.TensorSpec([2], tf.int32)
    spec = collections.OrderedDict(data=tf.data.DatasetSpec(element), seed=seed)
    if class_sets.with_positives:
        spec["positives"] = tf.TensorSpec([None], tf.int32)
    if builder.is_permanent:
        spec["permanent_seed"] = seed
    return spec


# The loss of each method, of (logits, targets, class set).
_LOSSES = {
    "fedss": lambda o, t, s: losses.fedss_loss(o, t, s.is_member, s.log_correction),
    "neg_only": lambda o, t, s: losses.neg_only_loss(
        o, t, s.is_member & ~s.is_positive, s.log_correction
    ),
    "pos_only": lambda o, t, s: losses.pos_only_loss(o, t, s.is_positive),
    "full_softmax": lambda o, t, s: losses.softmax_loss(o, t),
}


def finalize_metrics(
    sums: Mapping[str, tf.Tensor], measurements: Any, of_server: Any
) -> "collections.OrderedDict[str, tf.Tensor]":
    """Computes the metrics of a round, all scalars, from its sums and measurements.

    Args:
        sums: Sums of `client_update.ClientResult.metrics`, and of "num_rows", over the
            cohort.
        of_server: Measurements of `settings.ServerUpdate.after_step`.

    Returns:
        By name:

        - loss, accuracy: means over all examples of the cohort and all epochs, measured
          just before the example's step; accuracy is among the classes of S_k. NaN
          without examples, such as when all clients were rejected.
        - num_examples, num_clients: sums over the cohort.
        - classes_per_client, positives_per_client: mean numbers of classes that a
          client asks for (|S_k|), and of its own among them (|P_k|).
        - rows_per_client: mean number of rows of W that a client gets.
        - rejected_clients: clients whose update was not finite; their weight is 0.
        - the aggregators' scalar measurements, as phi/... and w/..., those of a joint
          aggregator by its own names; and those of after_step.
    """
    as_float = {name: tf.cast(value, tf.float32) for name, value in sums.items()}

    def per_client(name):
        return tf.math.divide_no_nan(as_float[name], as_float["num_clients"])

    return collections.OrderedDict(
        loss=as_float["loss_sum"] / as_float["num_seen"],
        accuracy=as_float["num_correct"] / as_float["num_seen"],
        num_examples=sums["num_examples"],
        num_clients=sums["num_clients"],
        classes_per_client=per_client("num_classes"),
        positives_per_client=per_client("num_positives"),
        rows_per_client=per_client("num_rows"),
        rejected_clients=sums["num_rejected"],
        **dict(aggregation.flat_scalars(measurements)),
        **dict(aggregation.flat_scalars(of_server)),
    )


def _weights_functions(state_type: tff.Type) -> tuple[tff.Computation, tff.Computation]:
    """Returns two functions, which get and set the model weights of a state."""

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state):
        return tff.learning.models.ModelWeights(
            trainable=[*state.feature_extractor, state.classifier], non_trainable=[]
        )

    @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
    def set_model_weights(state, weights):
        *phi, w = weights.trainable
        return state._replace(feature_extractor=tuple(phi), classifier=w)

    return get_model_weights, set_model_weights


def compose_dataset_computation(
    dataset_computation: tff.Computation,
    process: tff.learning.templates.LearningProcess,
) -> tff.learning.templates.LearningProcess:
    """Composes a process with a computation that makes a client's data set from its id.

    Replaces `tff.simulation.compose_dataset_computation_with_learning_process` for the
    processes of this package: TFF's expects clients that are data sets; here a client
    is a mapping with a seed beside its "data".

    Args:
        dataset_computation: A computation from T to "data", a sequence as in
            `build_fedss`. In a `tff.simulation.datasets.ClientData` T is the client's
            id, a string.
        process: From `build_fedss` or `build_fedaws`.

    Returns:
        The process whose clients have a T as their "data". It makes each data set twice
        a round, since clients do not keep it between drawing the class set and
        training.

    Raises:
        TypeError: If the data are not those that the process takes, or an argument is
            of another type.
    """
    for name, value, kind in (
        ("dataset_computation", dataset_computation, tff.Computation),
        ("process", process, tff.learning.templates.LearningProcess),
    ):
        errors.check_kind(name, value, kind, f"a tff {kind.__name__}")
    state_type, clients_type = process.next.type_signature.parameter
    client_type = collections.OrderedDict(
        tff.structure.iter_elements(clients_type.member)
    )
    expected, made = client_type["data"], dataset_computation.type_signature.result
    if not expected.is_assignable_from(made):
        raise TypeError(f"dataset_computation must give {expected}, found {made}.")
    client_type["data"] = dataset_computation.type_signature.parameter

    @tff.tensorflow.computation(client_type)
    def make_data(client):
        data = dataset_computation(client["data"])
        return collections.OrderedDict(client, data=data)

    @tff.federated_computation(state_type, tff.FederatedType(client_type, tff.CLIENTS))
    def next_round(state, clients):
        return process.next(state, tff.federated_map(make_data, clients))

    return tff.learning.templates.LearningProcess(
        process.initialize,
        next_round,
        process.get_model_weights,
        process.set_model_weights,
    )


def _inspect(
    feature_extractor_fn: Callable[[], tf.keras.Model],
) -> tuple[tuple[int, ...], int, list[np.ndarray]]:
    """Checks phi; returns its image shape, d and its initial weights."""
    models.check_feature_extractor_fn(feature_extractor_fn)
    with tf.Graph().as_default():  # Keeps the names of eager models as they are.
        model = feature_extractor_fn()
        input_shape, output_shape = (
            getattr(model, name, None) for name in ("input_shape", "output_shape")
        )
        are_shapes = isinstance(input_shape, tuple) and isinstance(output_shape, tuple)
        if not are_shapes or None in input_shape[1:] or len(output_shape) != 2:
            found = f"{model!r:.70} from {input_shape} to {output_shape}"
            wanted = "a Keras model from [examples, ...] of fixed size to [examples, d]"
            raise ValueError(f"feature_extractor_fn must return {wanted}, not {found}.")
        others = models.without_counts(model, model.non_trainable_variables)
        if others:
            raise ValueError(
                "feature_extractor_fn has weights that are not trainable, "
                f"{[v.name for v in others]}: for BatchNorm use GroupNorm (FedSS, A.2)."
            )
        if not all(tf.is_symbolic_tensor(v.handle) for v in model.trainable_variables):
            raise ValueError(
                "feature_extractor_fn must build a new model at each call, and not "
                "return one that is there."
            )
        if model.losses:
            raise ValueError(
                "feature_extractor_fn has regularizers, which no client would add to "
                "its loss: use weight decay of its optimizer."
            )
        if model.output.dtype != tf.float32:
            raise ValueError(
                f"feature_extractor_fn has features of {model.output.dtype.name}; "
                'expected float32: give the last layer dtype="float32".'
            )
        unusable = [
            v.name
            for v in model.trainable_variables
            if v.constraint is not None or v.dtype != tf.float32
        ]
        if unusable:
            raise ValueError(
                "feature_extractor_fn has weights with a constraint, which no client "
                f"would apply, or of another dtype than float32: {unusable}."
            )
        weights = _initial_values(model.trainable_variables)
    return input_shape[1:], output_shape[1], weights


def _check_seeds(model: tf.keras.Model, initial_weights: Sequence[np.ndarray]) -> None:
    """Checks in the default graph that phi has the initial weights that it had."""
    again = _initial_values(model.trainable_variables)
    if not all(map(np.array_equal, initial_weights, again)):
        cure = "give its initializers seeds, such as GlorotUniform(seed=0)"
        raise ValueError(f"feature_extractor_fn gives other weights each time: {cure}.")


def _initial_values(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    """Computes initial values in the default graph, on the CPU."""
    values = [v.read_value() for v in variables]
    on_cpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.compat.v1.Session(config=on_cpu) as session:
        session.run([v.initializer for v in variables])
        return session.run(values)
