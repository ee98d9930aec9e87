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
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import class_sets as class_sets_lib
from tff_fedss import losses, models
from tff_fedss.algorithms import client_update, exchange, one_vector, sparse_sgdm

METHODS = ("fedss", "neg_only", "pos_only", "full_softmax")


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
    after_server_step: Callable[[tf.Tensor], tf.Tensor] | None = None,
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
            learning rate 0.01 (A.2). Its state starts anew in every round. On GPUs one
            by `over_one_vector` is faster.
        server_optimizer: Likewise; by default `build_sparse_sgdm` with learning rate
            1.0 and momentum 0.9 (A.2). It gets the gradient of W as `tf.IndexedSlices`
            (of which TFF's optimizers make a dense one), that of FullSoftmax as a
            tensor.
        batch_size: The local mini-batch (A.2: 32). A last short batch is a step too.
        num_epochs: Passes over the local data (A.2: 1).
        image_dtype: The dtype of the images in the data; the model gets float32.
        seed: Of the initial W.
        after_server_step: Maps W, float32[n, d], to the W that ends the round: a server
            regularization, as FedAwS has one.

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
    client_optimizer = client_optimizer or one_vector.over_one_vector(
        tff.learning.optimizers.build_sgdm(0.01)
    )
    server_optimizer = server_optimizer or sparse_sgdm.build_sparse_sgdm(1.0, 0.9)
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
        return client_update.prepare(client, class_sets, image_shape, image_dtype)

    # Lines 8-11.
    def train_client(phi, rows, task):
        return client_update.train(
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
        exchange.type_of(phi_spec),
        exchange.type_of(w_spec)
        if class_sets.is_everything
        else exchange.sparse_rows_type(embedding_dim),
    )
    def update_server(state, phi_delta, w_delta):
        phi_gradient = tf.nest.map_structure(tf.negative, tuple(phi_delta))
        if class_sets.is_everything:
            w_gradient = -w_delta
        else:
            w_gradient = exchange.gradient_of(w_delta, w_spec)
        optimizer_state, (phi, w) = server_optimizer.next(
            state.optimizer,
            (tuple(state.feature_extractor), state.classifier),
            (phi_gradient, w_gradient),
        )
        if after_server_step is not None:
            w = after_server_step(w)
        return ServerState(phi, w, optimizer_state, state.round_num + 1)

    # Lines 4-12.
    if class_sets.is_everything:
        update_clients = exchange.broadcast_everything(
            prepare_client, train_client, phi_spec, w_spec
        )
    else:
        update_clients = exchange.select_rows(
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
        phi_delta, w_delta, metrics = update_clients(
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
