"""A problem so small that a round takes a fraction of a second, for several tests."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from examples import fedss_numpy
from tests import arrays
from tff_fedss import algorithms, tasks
from tff_fedss import class_sets as class_sets_lib
from tff_fedss.algorithms import aggregation, client_update
from tff_fedss.datasets.federated.dataset import FederatedDataset

NUM_CLASSES, MAX_POSITIVES, EMBEDDING_DIM, BATCH_SIZE = 13, 5, 3, 4
IMAGE_SHAPE = (2, 2, 1)
ETA = 0.05
TRAINING = algorithms.ClientTraining(
    tff.learning.optimizers.build_sgdm(ETA), BATCH_SIZE
)


def dense_features():
    images = tf.keras.Input(IMAGE_SHAPE)
    x = tf.keras.layers.Rescaling(1 / 255.0)(images)
    x = tf.keras.layers.Flatten()(x)
    initializer = tf.keras.initializers.RandomNormal(stddev=0.5, seed=1)
    x = tf.keras.layers.Dense(EMBEDDING_DIM, kernel_initializer=initializer)(x)
    return tf.keras.Model(images, x)


# Building a TFF computation takes seconds: one of each kind serves all tests here.
@functools.cache
def build(
    method="fedss",
    m=4,
    client_optimizer=None,
    server_optimizer=None,
    server_rate_fn=None,
    phi=dense_features,
    max_positives=MAX_POSITIVES,
    **settings,
):
    """Builds a process; `settings` are fields of any of the three groups."""

    def chosen(group):
        names = {field.name for field in dataclasses.fields(group)}
        return {name: settings.pop(name) for name in names & settings.keys()}

    training = dataclasses.replace(TRAINING, **chosen(TRAINING))
    if client_optimizer is not None:
        training = dataclasses.replace(training, optimizer=client_optimizer)
    server = algorithms.ServerUpdate(**chosen(algorithms.ServerUpdate))
    if server_optimizer is not None:
        server = dataclasses.replace(server, optimizer=server_optimizer)
    if server_rate_fn is not None:
        server = dataclasses.replace(server, learning_rate_fn=server_rate_fn)
    class_sets = chosen(algorithms.ClassSets)
    if "builder" not in class_sets:
        class_sets["max_positives"] = max_positives
        class_sets["num_negatives"] = m if method in ("fedss", "neg_only") else 0
    class_sets = algorithms.ClassSets(**class_sets)
    assert not settings
    return algorithms.build_fedss(
        phi,
        NUM_CLASSES,
        class_sets,
        training,
        server,
        method=method,
    )


def build_fedaws(**kwargs):
    """Builds a FedAwS process."""
    return algorithms.build_fedaws(
        dense_features,
        NUM_CLASSES,
        algorithms.ClassSets(MAX_POSITIVES),
        TRAINING,
        **kwargs,
    )


@functools.cache
def task():
    """Classification of the cohort's images; the first client's are the test."""
    clients = {
        f"client{i}": (c["image"], c["label"]) for i, c in enumerate(make_cohort())
    }
    dataset = FederatedDataset.from_arrays(
        clients, clients["client0"], num_classes=NUM_CLASSES
    )
    return tasks.Classification(dataset, dense_features)


def rows_type(size, embedding_dim):
    """The TFF type of sparse rows."""
    keys = tff.TensorType(np.int32, [size])
    rows = tff.TensorType(np.float32, [size, embedding_dim])
    return tff.to_type(aggregation.SparseRows(keys, rows))


def dense_of(rows, num_classes=NUM_CLASSES):
    """Rows of W by key, or W itself, as a matrix."""
    if not isinstance(rows, aggregation.SparseRows):
        return rows
    w = np.zeros((num_classes, np.shape(rows.rows)[1]))
    np.add.at(w, rows.keys, rows.rows)
    return w


def make_client(rng, num_examples, classes, shift=0):
    """Unequal clients: `shift` makes the pixels of one differ from another's."""
    labels = rng.choice(classes, num_examples)
    labels[: len(classes)] = classes  # |P_k| is as asked for.
    images = rng.integers(0, 200, (num_examples, *IMAGE_SHAPE)) + shift
    return {
        "image": images.astype(np.uint8),
        "label": labels.astype(np.int32),
        "seed": rng.integers(0, 2**31 - 1, 2).astype(np.int32),
    }


def make_cohort(seed=0):
    """Three unequal clients: sizes, |P_k|, short last batches, padded keys."""
    rng = np.random.default_rng(seed)
    return [
        make_client(rng, 7, [0, 1, 2, 3, 4]),
        make_client(rng, 4, [3, 9], shift=20),
        make_client(rng, 11, [5, 0, 11], shift=40),
    ]


def to_tff(cohort):
    return [
        {
            "data": tf.data.Dataset.from_tensor_slices(
                {"image": c["image"], "label": c["label"]}
            ),
            "seed": c["seed"],
        }
        for c in cohort
    ]


def one_round(process, cohort=None, state=None):
    """The state and the metrics after a round from the initial state."""
    state = process.initialize() if state is None else state
    return process.next(state, to_tff(make_cohort() if cohort is None else cohort))


def to_twin(cohort, method, m, num_epochs=1):
    """The same clients for the twin, with the draws that their seeds stand for."""

    def twin(c):
        builder = class_sets_lib.SampledClasses(NUM_CLASSES, m, MAX_POSITIVES)
        s = builder.build(
            tf.constant(c["label"]), client_update.negatives_seed(c["seed"])
        )
        is_negative = (s.is_member & ~s.is_positive).numpy()
        return {
            "x": c["image"].reshape(len(c["label"]), -1) / 255.0,
            "labels": c["label"],
            "negatives": s.keys.numpy()[is_negative]
            if method in ("fedss", "neg_only")
            else [],
            "orders": [
                client_update.example_order(len(c["label"]), c["seed"], epoch).numpy()
                for epoch in range(num_epochs)
            ],
        }

    return [twin(c) for c in cohort]


def weights_of(state):
    return [*state.feature_extractor, state.classifier]


def rounds_like_the_twin(
    process,
    method,
    m=4,
    num_rounds=3,
    num_epochs=1,
    clients_of=to_tff,
    twins_of=None,
    **options,
):
    """Does rounds of `make_cohort`, each compared with the NumPy page.

    Returns:
        The state and the metrics after the last one.
    """
    state = process.initialize()
    theta = [np.array(p, np.float64) for p in weights_of(state)]
    velocity = [np.zeros_like(p) for p in theta]
    for r in range(num_rounds):
        cohort = make_cohort(seed=r)
        state, metrics = process.next(state, clients_of(cohort))
        twins = (
            to_twin(cohort, method, m, num_epochs)
            if twins_of is None
            else twins_of(cohort)
        )
        theta, velocity, (loss, accuracy) = fedss_numpy.one_round(
            method, theta, velocity, twins, eta=ETA, batch_size=BATCH_SIZE, **options
        )
        arrays.assert_close(weights_of(state), theta, 1e-4, 1e-6)
        assert metrics["loss"] == pytest.approx(loss, rel=1e-4)
        assert metrics["accuracy"] == pytest.approx(accuracy)
        assert metrics["num_examples"] == sum(len(t["labels"]) for t in twins)
    return state, metrics


def assert_close(a, b, rtol=1e-5, atol=1e-7):
    """The weights of two states are almost the same."""
    arrays.assert_close(weights_of(a), weights_of(b), rtol, atol)


def same_bytes(a, b):
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)
