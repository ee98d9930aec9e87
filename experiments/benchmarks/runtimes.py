"""Measures rounds in both runtimes beside a plain TensorFlow loop.

    ./run.sh python -m experiments.benchmarks.runtimes --output_dir=DIR

First, training: a FedSS round over 8 clients of 96 images, with the small CNN at 28x28
and with MobileNetV3 (small) at 96x96, in the native runtime, in the in-process one, and
as a plain loop: one tf.function step per batch, called from Python, for the same
clients, weights, rows of W and mean. The loop is the limit of what a round can reach.
The three take turns, so that other load on the machine meets all of them, and the
number to look at is the ratio, round by round, to the plain loop.

Then, what a round costs beside the training: K = 64 clients select 170 rows of W
(n = 2 k to 1 M, d = 64), their sparse deltas are aggregated, and the server takes a
step with momentum. The same sums in one TensorFlow graph stand beside it.

The in-process runtime is measured with one client at a time and with one on each core.
A runtime that takes over 10 s for a round is measured once, not --repeats times.

Prints tables and writes runtimes.csv and runtimes.md, after each part anew. About 10
minutes on 2 quiet cores.
"""

import collections
import dataclasses
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import table
from experiments.common import config, output_files, program
from experiments.common.table import as_markdown
from tff_fedss import algorithms, class_sets, losses, models, runtime
from tff_fedss.algorithms import aggregation, client_update, exchange, fedss
from tff_fedss.errors import InvalidInputError

_NUM_CLIENTS, _NUM_IMAGES, _BATCH_SIZE = 8, 96, 32
_NUM_CLASSES, _MAX_POSITIVES, _NUM_NEGATIVES = 2000, 20, 80
_LEARNING_RATE, _LOGIT_SCALE = 0.01, 20.0
_SLOW_SECONDS = 10.0
_MODELS = {
    "small_cnn": ((28, 28, 1), models.small_cnn),
    "mobilenet_v3": ((96, 96, 3), functools.partial(models.mobilenet_v3, size="small")),
}
# The second part: K clients with |S_k| classes each.
_COHORT, _KEYS, _EMBEDDING_DIM = 64, 170, 64


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag(
        "results/benchmarks", "Where runtimes.csv and runtimes.md go."
    )
    repeats: int = config.flag(7, "Rounds to measure.", low=1)
    models: tuple[str, ...] = config.flag(
        tuple(_MODELS), "Which models to train.", choices=_MODELS
    )
    classes: tuple[str, ...] = config.flag(
        ("2000", "20000", "200000", "1000000"), "n, in the second part."
    )
    clients_per_device: tuple[str, ...] = config.flag(
        (), "Clients at a time in the in-process runtime. Default: 1, and one a core."
    )
    native: bool = config.flag(True, "Measure the native runtime, too.")


def main(config: Config) -> None:
    """Runs the program as the flags say."""
    numbers = {}
    for name in ("classes", "clients_per_device"):
        texts = getattr(config, name)
        if bad := [text for text in texts if not text.isdecimal() or int(text) < 1]:
            raise InvalidInputError(f"--{name}={bad[0]}: expected whole numbers > 0.")
        numbers[name] = [int(text) for text in texts]
    cores = len(os.sched_getaffinity(0))
    measure(
        config.models,
        numbers["classes"],
        numbers["clients_per_device"] or sorted({1, cores}),
        config.native,
        config.repeats,
        config.output_dir,
    )


def measure(
    model_names: Sequence[str],
    all_num_classes: Sequence[int],
    all_clients_per_device: Sequence[int],
    native: bool,
    repeats: int,
    folder: str,
) -> None:
    """Measures, prints and writes.

    Args:
        model_names: What to train, of `_MODELS`.
        all_num_classes: n of the second part.
        all_clients_per_device: Of the in-process runtime.
        native: Whether to measure the native runtime.
        repeats: Rounds to measure.
        folder: Where the files go.
    """
    output_dir = output_files.create_folder(folder)
    contexts = {
        f"in_process, {count} at once": runtime.InProcessContext(None, count)
        for count in all_clients_per_device
    }
    if native:
        contexts["native"] = runtime.NativeContext()
    machine = table.Machine.here()
    parts = [functools.partial(_training, name) for name in model_names]
    parts += [functools.partial(_exchange, n) for n in all_num_classes]
    rows: list[dict[str, Any]] = []
    for part in parts:
        rows += part(contexts, repeats)
        output_files.write_csv(output_dir / "runtimes.csv", rows)
        output_files.write_text(output_dir / "runtimes.md", _as_markdown(rows, machine))
    print(f"\nWritten to {output_dir}/runtimes.csv and .md")


def _training(
    name: str, contexts: dict[str, Any], repeats: int
) -> list[dict[str, Any]]:
    image_shape, model_fn = _MODELS[name]
    feature_extractor_fn = functools.partial(model_fn, image_shape)
    clients = _clients(image_shape)
    process = fedss.build_fedss(
        feature_extractor_fn,
        _NUM_CLASSES,
        _MAX_POSITIVES,
        num_negatives=_NUM_NEGATIVES,
        client_optimizer=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
        batch_size=_BATCH_SIZE,
    )
    tff_clients = [
        {
            "data": tf.data.Dataset.from_tensor_slices(
                {"image": c["image"], "label": c["label"]}
            ),
            "seed": c["seed"],
        }
        for c in clients
    ]
    rounds: dict[str, Callable[[], None]] = {
        "plain": _plain_round(feature_extractor_fn, clients)
    }
    for runtime_name, context in contexts.items():
        rounds[runtime_name] = _federated_round(process, context, tff_clients)
    return _measure(
        f"{name}, {image_shape[0]}x{image_shape[1]}",
        rounds,
        repeats,
        _NUM_CLIENTS * _NUM_IMAGES,
    )


def _clients(image_shape: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(_NUM_CLIENTS):
        classes = rng.choice(_NUM_CLASSES, _MAX_POSITIVES, replace=False)
        clients.append(
            {
                "image": rng.integers(0, 256, (_NUM_IMAGES, *image_shape), np.uint8),
                "label": rng.choice(classes, _NUM_IMAGES).astype(np.int32),
                "seed": rng.integers(0, 2**31 - 1, 2).astype(np.int32),
            }
        )
    return clients


def _federated_round(process, context, clients) -> Callable[[], None]:
    stack = tff.framework.get_context_stack()
    with stack.install(context):
        state = process.initialize()

    def one_round():
        nonlocal state
        with stack.install(context):
            state, _ = process.next(state, clients)

    return one_round


def _plain_round(
    feature_extractor_fn: Callable[[], tf.keras.Model], clients: Sequence[Any]
) -> Callable[[], None]:
    """FedSS without TFF, as fast as a Python loop over batches goes."""
    model = feature_extractor_fn()
    variables = model.trainable_variables
    server_w = tf.Variable(
        models.initial_classifier(_NUM_CLASSES, _EMBEDDING_DIM, seed=[0, 0])
    )
    server_phi = [tf.Variable(v) for v in variables]
    velocity = [tf.Variable(tf.zeros_like(v)) for v in (*server_phi, server_w)]
    builder = class_sets.SampledClasses(_NUM_CLASSES, _NUM_NEGATIVES, _MAX_POSITIVES)
    size = _MAX_POSITIVES + _NUM_NEGATIVES
    rows = tf.Variable(tf.zeros([size, _EMBEDDING_DIM]))
    make_class_set = tf.function(
        lambda labels, seed: builder.build(labels, client_update.negatives_seed(seed))
    )

    @tf.function
    def step(images, targets, class_set):
        with tf.GradientTape() as tape:
            logits = models.cosine_logits(
                model(tf.cast(images, tf.float32), training=True), rows, _LOGIT_SCALE
            )
            loss = tf.reduce_mean(
                losses.fedss_loss(
                    logits, targets, class_set.is_member, class_set.log_correction
                )
            )
        parameters = [*variables, rows]
        for v, g in zip(parameters, tape.gradient(loss, parameters), strict=True):
            v.assign_sub(_LEARNING_RATE * g)

    @tf.function
    def begin(keys):
        for v, value in zip(variables, server_phi, strict=True):
            v.assign(value)
        rows.assign(tf.gather(server_w, keys))

    @tf.function
    def end(keys, sums, w_sum, weight):
        sums = [
            s + weight * (v - value)
            for s, v, value in zip(sums, variables, server_phi, strict=True)
        ]
        delta = weight * (rows - tf.gather(server_w, keys))
        return sums, tf.tensor_scatter_nd_add(w_sum, keys[:, tf.newaxis], delta)

    @tf.function
    def update(sums, w_sum, weight):
        for p, m, s in zip(
            (*server_phi, server_w), velocity, (*sums, w_sum), strict=True
        ):
            m.assign(0.9 * m + s / weight)
            p.assign_add(m)

    def one_round():
        sums = [tf.zeros_like(v) for v in server_phi]
        w_sum, total = tf.zeros_like(server_w), 0.0
        for client in clients:
            class_set = make_class_set(client["label"], client["seed"])
            targets = class_sets.positions(class_set, tf.constant(client["label"]))
            order = client_update.example_order(_NUM_IMAGES, client["seed"], 0).numpy()
            begin(class_set.keys)
            for start in range(0, _NUM_IMAGES, _BATCH_SIZE):
                batch = order[start : start + _BATCH_SIZE]
                step(client["image"][batch], tf.gather(targets, batch), class_set)
            weight = float(_NUM_IMAGES)
            sums, w_sum = end(class_set.keys, sums, w_sum, weight)
            total += weight
        update(sums, w_sum, total)

    return one_round


class _ServerState(collections.namedtuple("_ServerState", ["w", "optimizer"])):
    pass


def _exchange(
    num_classes: int, contexts: dict[str, Any], repeats: int
) -> list[dict[str, Any]]:
    w_spec = tf.TensorSpec([num_classes, _EMBEDDING_DIM])
    optimizer = algorithms.build_sparse_sgdm(1.0, 0.9)
    sparse_mean = aggregation.GrowingRowsFactory().create(
        aggregation.sparse_rows_type(_EMBEDDING_DIM, _KEYS), tff.TensorType(np.float32)
    )
    row_type = tff.TensorType(np.float32, [_EMBEDDING_DIM])
    keys_type = tff.TensorType(np.int32, [_KEYS])

    @tff.tensorflow.computation
    def initial_state():
        return _ServerState(
            tf.random.stateless_normal(w_spec.shape, [0, 1]),
            optimizer.initialize(w_spec),
        )

    @tff.tensorflow.computation(exchange.type_of(w_spec), np.int32)
    def row_of(w, key):
        return tf.gather(w, key)

    @tff.tensorflow.computation(tff.SequenceType(row_type), keys_type)
    def train(rows, keys):
        rows = rows.batch(_KEYS, drop_remainder=True).get_single_element()
        return aggregation.SparseRows(keys, -0.1 * rows), tf.constant(1.0)

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(
        state_type, aggregation.sparse_rows_type(_EMBEDDING_DIM)
    )
    def update(state, delta):
        gradient = aggregation.gradient_of(delta, w_spec)
        optimizer_state, w = optimizer.next(state.optimizer, state.w, gradient)
        return _ServerState(w, optimizer_state)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(keys_type, tff.CLIENTS),
    )
    def next_round(state, keys):
        rows = tff.federated_select(
            keys, tff.federated_value(num_classes - 1, tff.SERVER), state.w, row_of
        )
        updates, weights = tff.federated_map(train, (rows, keys))
        mean = sparse_mean.next(sparse_mean.initialize(), updates, weights).result
        return tff.federated_map(update, (state, mean))

    rng = np.random.default_rng(0)
    keys = [
        rng.choice(num_classes, _KEYS, replace=False).astype(np.int32)
        for _ in range(_COHORT)
    ]
    stack = tff.framework.get_context_stack()

    def make_round(context):
        with stack.install(context):
            state = initial_state()

        def one_round():
            nonlocal state
            with stack.install(context):
                state = next_round(state, keys)

        return one_round

    rounds = {"plain": _plain_exchange(num_classes, keys)}
    for name, context in contexts.items():
        rounds[name] = make_round(context)
    return _measure(
        f"select + aggregate + server step, n = {num_classes:,}, "
        f"d = {_EMBEDDING_DIM}, K = {_COHORT}, |S| = {_KEYS}",
        rounds,
        repeats,
    )


def _plain_exchange(num_classes: int, keys: Sequence[np.ndarray]) -> Callable:
    """The same sums in one graph over variables: what the hardware can do."""
    w = tf.Variable(tf.random.stateless_normal([num_classes, _EMBEDDING_DIM], [0, 1]))
    velocity = tf.Variable(tf.zeros_like(w))
    keys = tf.constant(np.stack(keys))

    @tf.function
    def one_round():
        rows = -0.1 * tf.gather(w, keys)
        mean = tf.scatter_nd(
            tf.reshape(keys, [-1, 1]),
            tf.reshape(rows, [-1, _EMBEDDING_DIM]) / _COHORT,
            w.shape,
        )
        velocity.assign(0.9 * velocity + mean)
        w.assign_add(velocity)

    return one_round


def _measure(
    what: str,
    rounds: dict[str, Callable[[], None]],
    repeats: int,
    num_images: int | None = None,
) -> list[dict[str, Any]]:
    """Runs rounds in turns, after two of each that do not count."""
    print(f"\n{what}:", flush=True)
    first, second = {}, {}
    for name, one_round in rounds.items():
        first[name], second[name] = _seconds(one_round), _seconds(one_round)
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for repeat in range(repeats):
        for name, one_round in rounds.items():
            if repeat == 0 or second[name] <= _SLOW_SECONDS:
                seconds[name].append(_seconds(one_round))
    rows = []
    for name, times in seconds.items():
        median = statistics.median(times)
        # Round by round, so that drift of the machine cancels.
        ratio = statistics.median(
            plain / own for plain, own in zip(seconds["plain"], times, strict=False)
        )
        rows.append(
            {
                "what": what,
                "runtime": name,
                "rounds": len(times),
                "seconds_median": median,
                "seconds_min": min(times),
                "seconds_max": max(times),
                "seconds_first": first[name],
                "images_per_second": num_images / median if num_images else "",
                "speed_of_plain": ratio,
            }
        )
        print(
            f"  {name:22} {median:8.3f} s a round ({min(times):.3f} to "
            f"{max(times):.3f}), {ratio:.2f} of plain's speed, first {first[name]:.1f}",
            flush=True,
        )
    return rows


def _seconds(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _as_markdown(rows: list[dict[str, Any]], machine: table.Machine) -> str:
    """A table for each part."""
    parts = [
        "# Runtimes",
        str(machine),
        "plain: a TensorFlow loop without TFF. Medians of rounds that took turns; "
        '"of plain" is the median of the ratios of neighbouring rounds.',
    ]
    for what, group in itertools.groupby(rows, lambda row: row["what"]):
        cells = [
            (
                row["runtime"],
                f"{row['seconds_median']:.3f} "
                f"({row['seconds_min']:.3f}-{row['seconds_max']:.3f})",
                f"{row['images_per_second']:,.0f}" if row["images_per_second"] else "",
                f"{row['speed_of_plain']:.2f}",
                f"{row['seconds_first']:.1f}",
            )
            for row in group
        ]
        header = "runtime|s a round (min-max)|images/s|speed, of plain|first, s"
        parts.append(f"## {what}\n\n{as_markdown(header.split('|'), cells)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    program.run(main, Config())
