"""A client's part of a round (FedSS, Algorithm 1, lines 5 and 8-11)."""

import collections
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import class_sets, models, seeds, tensors
from tff_fedss.algorithms import aggregation, optimizers, settings


class ClientTask(NamedTuple):
    """A client's class set and data, as tensors, after line 5.

    Attributes:
        class_set: S_k.
        images: [examples, height, width, channels], in the dtype of the data.
        labels: int32[examples].
        seed: int32[2].
    """

    class_set: class_sets.ClassSet
    images: Any
    labels: Any
    seed: Any


class ClientResult(NamedTuple):
    """The result that a client sends back (lines 11-12).

    Attributes:
        delta: theta_k - theta_0 of phi and of the rows W_{S_k}; zero in padding.
        weight: float32[], n_k, the number of examples; 0 if the update is rejected.
        metrics: Numbers to be summed over the clients.
    """

    delta: aggregation.ModelDelta
    weight: Any
    metrics: Any


def draw_class_set(
    client: Any, builder: class_sets.ClassSetBuilder
) -> class_sets.ClassSet:
    """Draws a client's class set (line 5).

    Args:
        client: {"data": a tf.data.Dataset of {"image", "label"}, "seed": int32[2]}, and
            optionally "positives": int32[|P_k|]. Without it, the labels are read and
            the images not kept. A permanent builder needs "permanent_seed": int32[2].
        builder: The builder of S_k.
    """
    if "positives" in client:
        labels = client["positives"]
    else:
        labels = tensors.stacked(client["data"].map(lambda example: example["label"]))
    permanent = {}
    if builder.is_permanent:
        permanent["permanent_seed"] = negatives_seed(client["permanent_seed"])
    return builder.build(labels, negatives_seed(client["seed"]), **permanent)


def read(
    client: Any, class_set: class_sets.ClassSet, may_miss_positives: bool = False
) -> ClientTask:
    """Reads a client's data, given its class set.

    With `may_miss_positives`, examples whose class is not in the set are left out.
    When it runs, tf.errors.InvalidArgumentError if a label is not among the client's
    "positives".
    """
    data = tensors.stacked(client["data"])
    labels = data["label"]
    if "positives" in client:
        known = class_sets.contains(tf.sort(client["positives"]), labels)
        with tf.control_dependencies(
            [
                tf.debugging.Assert(
                    tf.reduce_all(known),
                    ['labels not among "positives":', tf.boolean_mask(labels, ~known)],
                )
            ]
        ):
            labels = tf.identity(labels)
    images = data["image"]
    if may_miss_positives:
        members = tf.boolean_mask(class_set.keys, class_set.is_member)
        is_trained = class_sets.contains(members, labels)
        images = tf.boolean_mask(images, is_trained)
        labels = tf.boolean_mask(labels, is_trained)
    return ClientTask(class_set, images, labels, client["seed"])


def negatives_seed(seed: tf.Tensor) -> tf.Tensor:
    """Returns the seed, int32[2], of a client's negatives, from the client's seed."""
    return seeds.fold_in(seed, seeds.Stream.NEGATIVES)


def example_order(num_examples: tf.Tensor, seed: tf.Tensor, epoch: int) -> tf.Tensor:
    """Returns the order, int32[n_k], of a client's examples in a local epoch."""
    epoch_seed = seeds.fold_in(seeds.fold_in(seed, seeds.Stream.ORDER), epoch)
    return tf.random.experimental.stateless_shuffle(
        tf.range(num_examples), epoch_seed, alg="philox"
    )


def train(
    model: tf.keras.Model,
    phi: tuple[tf.Tensor, ...],
    rows: tf.Tensor,
    task: ClientTask,
    training: settings.ClientTraining,
    loss_fn: Callable[..., tf.Tensor],
    round_num: tf.Tensor | int = 0,
) -> ClientResult:
    """Local optimization (lines 8-11): mini-batches over stacked tensors.

    The model's variables serve as working memory; `rows` are W_{S_k}, float32[L, d];
    the round counts from 0. `loss_fn` maps (logits float32[b, L], targets int32[b],
    class set) to float32[b], and is used instead of that of `training`. Returns the
    client's deltas, weight and metrics.
    """
    variables = tuple(model.trainable_variables)
    class_set, optimizer = task.class_set, training.optimizer
    targets = class_sets.positions(class_set, task.labels)
    num_examples = tf.size(targets)
    step = build_step(model, class_set, training, loss_fn)
    if training.use_xla:
        step = tf.function(step, jit_compile=True)

    @tf.function
    def run(phi, rows):
        for variable, value in zip(variables, phi, strict=True):
            variable.assign(value)
        for index, layer in enumerate(models.counted_dropouts(model)):
            stream = seeds.fold_in(task.seed, seeds.Stream.DROPOUT)
            layer.start(seeds.fold_in(stream, index))
        w = rows
        optimizer_state = optimizer.initialize(
            tf.nest.map_structure(
                lambda t: tf.TensorSpec(t.shape, t.dtype), (tuple(phi), rows)
            )
        )
        optimizer_state = optimizers.with_rate(
            optimizer, optimizer_state, training.learning_rate_fn, round_num
        )
        loss_sum, num_correct = tf.constant(0.0), tf.constant(0)
        for epoch in tf.range(training.num_epochs):
            order = example_order(num_examples, task.seed, epoch)
            if training.use_xla:
                # Whole batches, of static shape: surplus places repeat an example.
                num_batches = -(-num_examples // training.batch_size)
                places = tf.range(num_batches * training.batch_size)
                order = tf.gather(order, tf.minimum(places, num_examples - 1))
            # Once an epoch: uint8 is gathered on the host whatever the device, so a GPU
            # that gathered each batch would send all images to the host each time.
            epoch_images = tf.gather(task.images, order)
            epoch_targets = tf.gather(targets, order)
            for start in tf.range(0, num_examples, training.batch_size):
                batch, counts = slice(start, start + training.batch_size), None
                images, batch_targets = epoch_images[batch], epoch_targets[batch]
                if training.use_xla:
                    images.set_shape([training.batch_size, *images.shape[1:]])
                    batch_targets.set_shape([training.batch_size])
                    counts = start + tf.range(training.batch_size) < num_examples
                w, optimizer_state, losses, correct = step(
                    images, batch_targets, counts, w, optimizer_state, (phi, rows)
                )
                loss_sum += losses
                num_correct += correct
        phi_delta = tuple(v - value for v, value in zip(variables, phi, strict=True))
        # Padding is not in S_k, so what an optimizer did to it does not count.
        w_delta = tf.where(class_set.is_member[:, tf.newaxis], w - rows, 0.0)
        return phi_delta, w_delta, loss_sum, num_correct

    *deltas, loss_sum, num_correct = run(tuple(phi), rows)
    return _result(
        class_set, deltas, loss_sum, num_correct, num_examples, training.num_epochs
    )


def _result(
    class_set: class_sets.ClassSet,
    deltas: Any,
    loss_sum: tf.Tensor,
    num_correct: tf.Tensor,
    num_examples: tf.Tensor,
    num_epochs: int,
) -> ClientResult:
    """Returns a client's result, rejected if it is not finite.

    A rejected client counts as absent: zero deltas, zero weight.
    """
    values = tf.nest.flatten((deltas, loss_sum))
    is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values])

    def accepted(value):
        return tf.where(is_finite, value, tf.zeros_like(value))

    phi_delta, w_delta = tf.nest.map_structure(accepted, deltas)
    num_accepted = accepted(num_examples)
    return ClientResult(
        delta=aggregation.ModelDelta(
            phi_delta, aggregation.SparseRows(class_set.keys, w_delta)
        ),
        weight=tf.cast(num_accepted, tf.float32),
        metrics=collections.OrderedDict(
            loss_sum=accepted(loss_sum),
            num_correct=accepted(num_correct),
            num_seen=num_epochs * num_accepted,
            num_examples=num_accepted,
            num_clients=tf.constant(1),
            num_classes=_count(class_set.is_asked),
            num_positives=_count(class_set.is_positive),
            num_rejected=tf.where(is_finite, 0, 1),
        ),
    )


def build_step(
    model: tf.keras.Model,
    class_set: class_sets.ClassSet,
    training: settings.ClientTraining,
    loss_fn: Callable[..., tf.Tensor],
) -> Callable[..., tuple[tf.Tensor, Any, tf.Tensor, tf.Tensor]]:
    """Builds one step of a client's SGD (line 10), which updates the model's variables.

    Returns:
        A function from (images [b, ...], targets int32[b], counts bool[b] or None,
        W_{S_k}, state of the optimizer, phi and W_{S_k} at the round's start) to
        (W_{S_k}, the state, the sum of the losses, the number classified correctly).
        `counts` masks the examples that count.
    """
    variables = tuple(model.trainable_variables)
    scale = training.logit_scale

    def step(images, targets, counts, w, optimizer_state, start):
        images = tf.cast(images, tf.float32)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((variables, w))
            logits = models.cosine_logits(model(images, training=True), w, scale)
            example_losses = loss_fn(logits, targets, class_set)
            if counts is None:
                loss = tf.reduce_mean(example_losses)
            else:
                example_losses = tf.where(counts, example_losses, 0.0)
                num_counted = tf.reduce_sum(tf.cast(counts, tf.float32))
                loss = tf.reduce_sum(example_losses) / num_counted
        # Zeros, not None, of a weight that the loss does not depend on.
        zero = tf.UnconnectedGradients.ZERO
        gradient = tape.gradient(loss, (variables, w), unconnected_gradients=zero)
        weights = tuple(v.read_value() for v in variables), w
        if training.proximal:
            gradient = tf.nest.map_structure(
                lambda g, now, was: g + training.proximal * (now - was),
                gradient,
                weights,
                start,
            )
        optimizer_state, (updated, w) = training.optimizer.next(
            optimizer_state, weights, gradient
        )
        for variable, value in zip(variables, updated, strict=True):
            variable.assign(value)
        is_correct = _is_correct(logits, targets, class_set)
        if counts is not None:
            is_correct &= counts
        return w, optimizer_state, tf.reduce_sum(example_losses), _count(is_correct)

    return step


# Operations, by type in a graph, whose draws the client's seed does not decide.
_DRAWS = re.compile("(Random|Rng|Multinomial|TruncatedNormal)|Stateful(?!Part)")


def check_draws(computation: tff.Computation) -> None:
    """Raises ValueError if `train` draws without the client's seed.

    Only the functions of the computation's graph are searched: what is outside makes
    initial values.
    """
    graph = tf.compat.v1.GraphDef()
    proto = tff.framework.ConcreteComputation.get_proto(computation)
    proto.tensorflow.graph_def.Unpack(graph)
    for function in graph.library.function:
        for node in function.node_def:
            if _DRAWS.match(node.op):
                raise ValueError(
                    f"Training draws at random ({node.name}) without the client's seed."
                    " For dropout use models.CountedDropout; augment images in the "
                    "data set."
                )


def check_loss(loss_fn: Callable[..., tf.Tensor] | None, size: int) -> None:
    """Raises ValueError unless a loss gives one number for each example.

    `size` is the length L of class sets; None instead of a loss is not checked.
    """
    if loss_fn is None:
        return
    flags = tf.ones([size], tf.bool)
    class_set = class_sets.ClassSet(
        tf.range(size), flags, flags, flags, tf.zeros([size])
    )
    found = loss_fn(tf.zeros([2, size]), tf.zeros([2], tf.int32), class_set)
    dtype, shape = getattr(found, "dtype", found), getattr(found, "shape", None)
    if (dtype, shape) != (tf.float32, [2]):
        raise ValueError(
            "loss_fn must give one number for each example, float32[examples]; for two "
            f"examples it gave {getattr(dtype, 'name', dtype)} of shape {shape}."
        )


def _count(mask: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(mask, tf.int32))


def _is_correct(
    logits: tf.Tensor, targets: tf.Tensor, class_set: class_sets.ClassSet
) -> tf.Tensor:
    """Returns whether each target has the largest logit in S_k, bool[examples]."""
    logits = tf.where(class_set.is_member, logits, logits.dtype.min)
    # Not `==`: in TFF's graphs it compares Python objects, and is always false.
    return tf.equal(tf.argmax(logits, 1, tf.int32), targets)
