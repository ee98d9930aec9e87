"""Bad calls of the library: each ends in one line that names the argument."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy
from tff_fedss import (
    algorithms,
    class_set_defences,
    class_sets,
    losses,
    runtime,
    tasks,
    training,
)
from tff_fedss.algorithms import (
    ClassSets,
    ClientTraining,
    ServerUpdate,
    aggregation,
    optimizers,
)
from tff_fedss.algorithms.user_level_dp import AdaptiveClip, PrivateMeanFactory
from tff_fedss.datasets.federated.dataset import FederatedDataset

KERAS = tf.keras
PHI = toy.dense_features
N = toy.NUM_CLASSES
SETS = ClassSets(5, 4)
FLAT = KERAS.layers.Flatten
SGDM = tff.learning.optimizers.build_sgdm
MEAN = tff.aggregators.MeanFactory()
ROWS = aggregation.SparseRowsFactory()


def private(**options):
    arguments = dict(
        num_classes=N, clients_per_round=3, noise_multiplier=1.0, clip=1.0, seed=0
    )
    return PrivateMeanFactory(**(arguments | options))


PRIVATE = private()


def build(phi=PHI, n=N, sets=SETS, *settings, **others):
    return algorithms.build_fedss(phi, n, sets, *settings, **others)


def phi(*layers, shape=toy.IMAGE_SHAPE):
    """A phi of layers that are made anew each time."""
    return lambda: KERAS.Sequential(
        [KERAS.layers.InputLayer(shape), *(layer() for layer in layers)]
    )


def dense(seed=1, **options):
    initializer = KERAS.initializers.HeNormal(seed)
    return KERAS.layers.Dense(3, kernel_initializer=initializer, **options)


MODEL = PHI()


def two_inputs():
    a, b = KERAS.Input((4,)), KERAS.Input((4,))
    return KERAS.Model([a, b], dense()(a + b))


def loss(loss_fn):
    return lambda: build(PHI, N, SETS, ClientTraining(loss_fn=loss_fn))


IMAGES, LABELS = np.zeros((3, 2, 2, 1), np.uint8), np.array([0, 1, 2], np.int32)
SEED = np.array([1, 2], np.int32)


def examples(images=IMAGES, labels=LABELS):
    labels = np.asarray(labels, None if hasattr(labels, "dtype") else np.int32)
    return tf.data.Dataset.from_tensor_slices({"image": images, "label": labels})


def clients(*found, state=None, method="fedss"):
    """A round of the toy problem; what is no mapping of a client are its examples."""
    process = toy.build(method)
    state = process.initialize() if state is None else state
    return process.next(state, list(found))


def client(images=IMAGES, labels=LABELS, seed=SEED):
    return {"data": examples(images, labels), "seed": seed}


PAIR = IMAGES, LABELS


def client_data(labels):
    return tff.simulation.datasets.TestClientData(
        {"ann": {"image": IMAGES, "label": labels}}
    )


CLIENTS = client_data(LABELS)
from_arrays = FederatedDataset.from_arrays
from_client_data = FederatedDataset.from_client_data


def task(max_label=4):
    pairs = {f"c{k}": (IMAGES, LABELS + k) for k in range(max_label - 1)}
    return tasks.Classification(from_arrays(pairs, PAIR, num_classes=N), PHI)


def run(process=None, a_task=None, cohort_size=2):
    return training.FederatedRun(
        "x", process or toy.build(), a_task or task(), cohort_size=cohort_size, seed=0
    )


CALLS = [
    # phi
    (lambda: build(PHI()), "feature_extractor_fn must be a function without"),
    (lambda: build(lambda shape: PHI()), "feature_extractor_fn .* without arguments"),
    (lambda: build(lambda: None), "feature_extractor_fn must return .* not None"),
    (lambda: build(phi(dense)), r"must return .* to \(None, 2, 2, 3\)"),
    (lambda: build(two_inputs), r"must return .* from \[\(None, 4\), \(None, 4\)\]"),
    (lambda: build(phi(dense, shape=(None, 4))), r"must return .*None, None, 4"),
    (lambda: tasks.Classification(task().dataset, PHI()), "feature_extractor_fn must"),
    (lambda: build(lambda: MODEL), "must build a new model at each call"),
    (lambda: build(phi(FLAT, lambda: dense(kernel_regularizer="l2"))), "regularizers"),
    (lambda: build(phi(FLAT, lambda: dense(kernel_constraint="non_neg"))), "constrain"),
    (lambda: build(phi(FLAT, lambda: dense(dtype="float64"), dense)), "than float32: "),
    (lambda: build(phi(FLAT, lambda: dense(dtype="float16"))), "features of float16"),
    (lambda: ClientTraining(learning_rate_fn=0.1), "learning_rate_fn must be a func"),
    (
        lambda: build(phi(lambda: KERAS.layers.Dropout(0.5, seed=1), FLAT, dense)),
        "draws at random.*models.CountedDropout",
    ),
    (
        lambda: build(phi(KERAS.layers.RandomFlip, FLAT, dense)),
        "draws at random.*models.Counted",
    ),
    (
        lambda: build(phi(FLAT, lambda: KERAS.layers.Dense(3))),
        "other weights each time.*seed=0",
    ),
    (lambda: build(phi(KERAS.layers.BatchNormalization, FLAT)), "GroupNorm"),
    # n, seed, method
    (lambda: build(n=0), "num_classes=0 must be at least 1"),
    (lambda: build(n=13.0), "num_classes=13.0 must be a whole number"),
    (lambda: build(n=4), "max_positives=5 must be at least 1 and at most 4"),
    (lambda: build(seed=2.5), "seed must be a whole number, found 2.5"),
    (lambda: build(method="FedSS"), "method='FedSS' must be one of fedss, neg_only"),
    (lambda: build(initial_norm="x"), "initial_norm='x' must be a number, above 0"),
    # The three groups of settings, one for another
    (lambda: build(sets=5), r"class_sets must be algorithms.ClassSets\(...\), found 5"),
    (lambda: build(PHI, N, SETS, SGDM(0.1)), "client_training .*ClientTraining.*_SGD"),
    (lambda: build(PHI, N, SETS, None, MEAN), "server_update must be .*ServerUpdate"),
    # Class sets
    (lambda: build(sets=ClassSets(5, None)), "num_negatives=None must be a whole"),
    (lambda: build(sets=ClassSets(5, 14)), "num_negatives=14 must .* at most 13"),
    (lambda: build(sets=ClassSets(5, -1)), "num_negatives=-1 must be at least 0"),
    (lambda: build(sets=ClassSets(0)), "max_positives=0 must be at least 1"),
    (lambda: build(sets=ClassSets()), "max_positives=None must be a whole number"),
    (lambda: build(sets=ClassSets(5), method="neg_only"), "num_negatives=0 .* least 1"),
    (lambda: build(method="pos_only"), "num_negatives=4: pos_only takes none"),
    (lambda: ClassSets(requests="some"), "requests='some' must be one of"),
    (
        lambda: build(sets=ClassSets(None, 4, builder=class_sets.AllClasses(13))),
        "num_negatives=4: a builder takes none",
    ),
    (
        lambda: build(sets=ClassSets(builder=class_sets.SampledClasses(5, 1, 2))),
        "builder is for 5 classes, num_classes=13",
    ),
    (
        lambda: build(
            sets=ClassSets(builder=class_sets.SampledClasses(13, 4, 5)),
            method="full_softmax",
        ),
        "full_softmax takes no builder but of all classes",
    ),
    (
        lambda: class_set_defences.builder("mixed", 13, 4, 5),
        "negatives='mixed' must be one of",
    ),
    (
        lambda: class_set_defences.builder("pool", 13, 4, 5, size=3),
        "size=3 must be at least 4 and at most 8",
    ),
    (
        lambda: class_set_defences.builder("randomized_response", 13, 4, 5, epsilon=0),
        "epsilon=0 must be above 0",
    ),
    (
        lambda: class_sets.PopularClasses(3, 1, 1, [1, 1, 0]),
        "popularity must be 3 finite numbers above 0, one for each class",
    ),
    (
        lambda: build(sets=ClassSets(5, logit_correction=True)),
        "logit_correction=True must be one of inclusion, none",
    ),
    (
        lambda: ClassSets(builder=class_sets.SampledClasses),
        "builder must be a class_sets.ClassSetBuilder, found <class",
    ),
    # Client training
    (lambda: ClientTraining(SGDM), "optimizer of ClientTraining .*found <function"),
    (lambda: ClientTraining(KERAS.optimizers.SGD()), "optimizer .*build_sgdm.*found"),
    (lambda: ClientTraining(batch_size=0), "batch_size=0 must be at least 1"),
    (lambda: ClientTraining(num_epochs=0.5), "num_epochs=0.5 must be a whole number"),
    (lambda: ClientTraining(logit_scale=np.nan), "logit_scale=nan must be above 0"),
    (lambda: ClientTraining(proximal=-1), "proximal=-1 must be at least 0"),
    (loss(losses.softmax_loss), "loss_fn must be a function from .logits, targets, "),
    (
        loss(KERAS.losses.SparseCategoricalCrossentropy(from_logits=True)),
        "loss_fn must be a function from .* found <keras",
    ),
    (loss(lambda o, t, s: None), r"loss_fn must give one number .* it gave None"),
    (loss(lambda o, t, s: o), "loss_fn must give one number for each example"),
    # Server update and optimizers
    (lambda: ServerUpdate(algorithms.build_sparse_sgdm), "optimizer of ServerUpdate"),
    (lambda: ServerUpdate(client_weighting=lambda n: n * np.nan), "_weighting.*nan"),
    (lambda: ServerUpdate(client_weighting="examples"), "must be of .*num_examples"),
    (
        lambda: ServerUpdate(phi_aggregator=tff.aggregators.SumFactory()),
        'phi_aggregator is a SumFactory.*client_weighting="uniform"',
    ),
    (lambda: ServerUpdate(rows_aggregator="mean"), "rows_aggregator must be a factory"),
    (lambda: ServerUpdate(joint_aggregator=PRIVATE), "is a PrivateMeanFactory, which"),
    (
        lambda: ServerUpdate(
            phi_aggregator=MEAN, joint_aggregator=PRIVATE, client_weighting="uniform"
        ),
        "give joint_aggregator, or phi_aggregator",
    ),
    (
        lambda: build(PHI, N, SETS, None, ServerUpdate(phi_aggregator=ROWS)),
        "phi_aggregator is a SparseRowsFactory, which takes other values",
    ),
    (
        lambda: build(
            PHI,
            N,
            ClassSets(),
            None,
            ServerUpdate(rows_aggregator=ROWS),
            method="full_softmax",
        ),
        "rows_aggregator is a SparseRowsFactory, which takes other values",
    ),
    (
        lambda: build(
            PHI,
            N,
            SETS,
            None,
            ServerUpdate(
                rows_aggregator=aggregation.ScatteredRowsFactory(MEAN, num_classes=12)
            ),
        ),
        r"aggregator's W is of shape \(12, 3\), expected \(13, 3\): .* num_classes",
    ),
    (lambda: ServerUpdate(after_step=1), "after_step must be a function from W to"),
    (
        lambda: algorithms.compose_dataset_computation(examples, toy.build()),
        "dataset_computation must be a tff Computation, found <function",
    ),
    (
        lambda: algorithms.compose_dataset_computation(toy.build().next, None),
        "process must be a tff LearningProcess, found None",
    ),
    (lambda: aggregation.SparseRowsFactory(0), "threshold=0 must be at least 1"),
    (lambda: private(clip=0.0), "clip=0.0 must be above 0"),
    (lambda: private(noise_multiplier=-1), "noise_multiplier=-1 must be at least 0"),
    (lambda: private(restart_every=0), "restart_every=0 must be at least 1"),
    (lambda: private(clients_per_round=0), "clients_per_round=0 must be above 0"),
    (
        lambda: private(adaptive_clip=AdaptiveClip()),
        "noise_multiplier=1.0 must be below 2 count_stddev",
    ),
    (lambda: private(adaptive_clip=0.5), "adaptive_clip must be an Ad.*, found 0.5"),
    (lambda: private(adaptive_clip=AdaptiveClip(1.5)), "quantile=1.5 .* at most 1"),
    (lambda: algorithms.build_sparse_sgdm(-1.0), "learning_rate=-1.0 .* at least 0"),
    (lambda: algorithms.build_sparse_sgdm(1, 2), "momentum=2 must .* at most 1"),
    (lambda: algorithms.clip_gradients(SGDM, 1.0), "optimizer must be one of tff"),
    (lambda: algorithms.clip_gradients(SGDM(0.1), 0), "norm=0 must be above 0"),
    (lambda: optimizers.over_one_vector(SGDM), "optimizer must be one of tff.learning"),
    (
        lambda: algorithms.build_fedaws(
            PHI,
            N,
            ClassSets(5),
            server_update=ServerUpdate(after_step=lambda w: (w, {})),
            spreadout_weight=1,
            spreadout_margin=1,
        ),
        "server_update.after_step must be None",
    ),
    (
        lambda: algorithms.build_fedaws(
            PHI, N, ClassSets(5), spreadout_weight=1, spreadout_margin=3
        ),
        "spreadout_margin=3 must be above 0 and at most 2",
    ),
    (
        lambda: algorithms.build_fedaws(
            PHI, N, ClassSets(5), spreadout_weight=-1, spreadout_margin=1
        ),
        "spreadout_weight=-1 must be at least 0",
    ),
    # A round
    (lambda: clients(examples()), "client 0 of 1: Expected .*data=.*seed=.*Dataset"),
    (lambda: clients(client(), {"data": examples()}), r"client 1 of 2: .*\['data'\]"),
    (lambda: clients(client(seed=3)), r"client 0 of 1: seed: Expected .*\(2,\)"),
    (
        lambda: clients(client(labels=LABELS.astype(np.int64))),
        "client 0 of 1: data: .*label=int32.*label=int64",
    ),
    (lambda: clients(client(IMAGES / 1)), "client 0 of 1: data: .*image=float64"),
    (
        lambda: clients({"data": examples().batch(2), "seed": SEED}),
        r"client 0 of 1: data: .*image=uint8\[\?,2,2,1\]",
    ),
    (lambda: clients(client(), state=0), "state: Expected .*feature_extractor=.*int"),
    (
        lambda: clients(client(), state=build(n=12).initialize()),
        r"state: classifier: Expected .*\(13, 3\), found \(12, 3\)",
    ),
    (
        lambda: clients(client(), client(labels=[0, 1, 13])),
        r"Client 1 of 2 failed: \[labels outside of 0..12:\] \[13\]",
    ),
    (
        lambda: clients(client(labels=[0, -1, 2])),
        r"Client 0 of 1 failed: \[labels outside of 0..12:\] \[-1\]",
    ),
    (
        lambda: clients(client(labels=[0, 1, 13]), method="pos_only"),
        r"Client 0 of 1 failed: \[labels outside of 0..12:\] \[13\]",
    ),
    # Data, tasks and runs
    (lambda: from_arrays({}, PAIR), "the number of clients=0 must be at least 1"),
    (lambda: from_arrays({0: PAIR}, PAIR), "a client id must be a string, found 0"),
    (lambda: from_arrays({"ann": IMAGES}, PAIR), "client 'ann' must have .images, lab"),
    (lambda: from_arrays({"ann": {"image": 1}}, PAIR), "client 'ann' must have .imag"),
    (lambda: from_arrays({"ann": (IMAGES / 1, LABELS)}, PAIR), "client 'ann' .*float"),
    (lambda: from_arrays({"ann": (IMAGES, LABELS + 2**32)}, PAIR), "from 0 to 2.31"),
    (lambda: from_arrays({"ann": PAIR}, PAIR, num_classes=4.5), "num_classes=4.5 must"),
    (lambda: from_arrays({"ann": PAIR}, None), "the test must have .images, labels"),
    (
        lambda: from_client_data({"ann": PAIR}, PAIR),
        "train must be a tff.simulation.datasets.ClientData, found",
    ),
    (
        lambda: from_client_data(CLIENTS, PAIR),
        "test must be a tff.simulation.datasets.ClientData, or a tf.data.Dataset",
    ),
    (
        lambda: from_client_data(client_data(LABELS + 2**32), examples()),
        "client data needs a client, and labels from 0 to 2.31 - 1",
    ),
    (
        lambda: from_client_data(CLIENTS, examples(labels=LABELS + 2**32)),
        "expected test images with labels in 0..2",
    ),
    (
        lambda: from_client_data(CLIENTS, examples(IMAGES[:, :1])),
        r"test examples are .*shape=\(1, 2, 1\).*; expected .*shape=\(2, 2, 1\)",
    ),
    (
        lambda: from_client_data(CLIENTS, examples().map(lambda e: e["image"])),
        "examples are TensorSpec.*; expected `image` and `label`, or an example_fn",
    ),
    (lambda: tasks.Classification(PAIR, PHI), "dataset must be a FederatedDataset"),
    (
        lambda: training.warm_start(PHI(), task().dataset, 1, 0),
        "arrays has no public images",
    ),
    (
        lambda: algorithms.Centralized(PHI(), N, SGDM(0.1)),
        "optimizer must be one of tf.keras.optimizers",
    ),
    (
        lambda: algorithms.Centralized(
            phi(FLAT, lambda: dense(kernel_regularizer="l2"))(),
            N,
            KERAS.optimizers.SGD(0.1),
        ),
        "model has regularizers",
    ),
    (lambda: run(algorithms.build_fedss), "process must be a LearningProcess"),
    (
        lambda: run(training.for_programs(toy.build())),
        "process must be a LearningProcess, such as .*; its clients are <image=",
    ),
    (lambda: run(a_task=task().dataset), "task must be one of tasks"),
    (lambda: run(build(n=14)), "process is for .*14, .* task for .*13, "),
    (lambda: training.Checkpoints("x", keep=0), "keep=0 must be at least 1"),
    (lambda: run(cohort_size=9).run_round(), "cohort_size=9 must .* at most 3"),
    (
        lambda: run(build(sets=ClassSets(2, 4))).run_round(),
        r"Client 'c\d' failed: \[more classes than max_positives=2:\] \[3\]",
    ),
    (
        lambda: run().set_feature_extractor([np.zeros((4, 5), np.float32), LABELS]),
        r"trainable: Expected .*\(4, 3\), found \(4, 5\)",
    ),
]
ERRORS = TypeError, ValueError, runtime.ClientError


@pytest.mark.parametrize("call, message", CALLS)
def test_a_bad_call_names_its_argument_in_one_line(call, message):
    with pytest.raises(ERRORS) as found:
        call()
    text = str(found.value)
    assert re.search(message, text), text
    assert "\n" not in text, text
