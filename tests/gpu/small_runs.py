"""Rounds of every algorithm of the project, so small that they take seconds.

Data, seeds and initial weights are always the same: two devices can be compared.
"""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms, losses, models, runtime, samplers
from tff_fedss.algorithms import fedss
from tff_fedss.datasets.central.augmentation import AUGMENTATIONS
from tff_fedss.samplers import self_paced

_IMAGE_SHAPE = (16, 16, 1)
_NUM_CLASSES, _NUM_POSITIVES, _DIM = 50, 5, 16
_NUM_CLIENTS, _NUM_IMAGES, _BATCH_SIZE = 4, 40, 16

# Weights after each round or step, the initial ones first.
Rounds = list[list[np.ndarray]]
FEDERATED = (*fedss.METHODS, "fedaws")


def _phi() -> tf.keras.Model:
    return models.small_cnn(_IMAGE_SHAPE, _DIM)


@functools.cache
def process(method: str) -> tff.learning.templates.LearningProcess:
    """Builds the learning process of a method of `FEDERATED`."""
    sgd = tff.learning.optimizers.build_sgdm(0.05)
    arguments = (
        _phi,
        _NUM_CLASSES,
        algorithms.ClassSets(
            _NUM_POSITIVES, 10 if method in ("fedss", "neg_only") else 0
        ),
        algorithms.ClientTraining(sgd, _BATCH_SIZE),
    )
    if method == "fedaws":
        return algorithms.build_fedaws(
            *arguments, spreadout_weight=0.1, spreadout_margin=1.0
        )
    return algorithms.build_fedss(*arguments, method=method)


def train(name: str, device: str, rounds: int) -> Rounds:
    """Trains with one of `FEDERATED` or `CENTRAL` on a device, such as "GPU:0"."""
    return (_central if name in CENTRAL else _federated)(name, device, rounds)


def _federated(method: str, device: str, rounds: int) -> Rounds:
    learning = process(method)
    context = runtime.InProcessContext([device], clients_per_device=1)
    with tff.framework.get_context_stack().install(context):
        state = learning.initialize()
        result = [_weights(learning, state)]
        for _ in range(rounds):
            state, _ = learning.next(state, _clients())
            result.append(_weights(learning, state))
    context.close()
    return result


def _weights(
    learning: tff.learning.templates.LearningProcess, state: Any
) -> list[np.ndarray]:
    return [np.asarray(w) for w in learning.get_model_weights(state).trainable]


def _clients() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    clients = []
    for k in range(_NUM_CLIENTS):
        classes = rng.choice(_NUM_CLASSES, _NUM_POSITIVES, replace=False)
        num_images = _NUM_IMAGES + k  # A short last batch, and another for each.
        data = {
            "image": rng.integers(0, 256, (num_images, *_IMAGE_SHAPE), np.uint8),
            "label": rng.choice(classes, num_images).astype(np.int32),
        }
        clients.append(
            {
                "data": tf.data.Dataset.from_tensor_slices(data),
                "seed": rng.integers(0, 2**31 - 1, 2).astype(np.int32),
            }
        )
    return clients


def _central(name: str, device: str, rounds: int) -> Rounds:
    with tf.device(f"/{device}"):
        algorithm, update = CENTRAL[name]()
        result = [_copies(algorithm)]
        for step in range(rounds):
            update(step)
            result.append(_copies(algorithm))
    return result


def _copies(algorithm: Any) -> list[np.ndarray]:
    found = algorithm.weights.trainable
    return [
        w.read(0, w.shape[0]) if isinstance(w, models.ShardedMatrix) else np.array(w)
        for w in found
    ]


def _batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([1, step])
    images = rng.integers(0, 256, (_BATCH_SIZE, *_IMAGE_SHAPE), np.uint8)
    return images, rng.integers(_NUM_CLASSES, size=_BATCH_SIZE).astype(np.int32)


def _all_images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    labels = np.arange(48, dtype=np.int32) % 4
    return rng.integers(0, 256, (48, *_IMAGE_SHAPE), np.uint8), labels


def _centralized():
    algorithm = algorithms.Centralized(
        _phi(), _NUM_CLASSES, tf.keras.optimizers.SGD(0.05)
    )
    return algorithm, lambda step: algorithm.update(*_batch(step))


def _partial_fc():
    algorithm = algorithms.PartialFC(
        models.ImageEncoder(_phi()),
        _NUM_CLASSES,
        _DIM,
        # Both shards on the current device.
        runtime.DeviceMesh([tf.zeros([]).device] * 2),
        margin=losses.Margin("arcface", 16.0, 0.35),
        sample_rate=0.5,
        num_strata=2,
        learning_rate=0.05,
    )
    return algorithm, lambda step: algorithm.update(*_batch(step))


def _rf_softmax():
    options = samplers.SamplerOptions(_NUM_CLASSES, _DIM, 8.0, num_frequencies=32)
    algorithm = algorithms.SampledSoftmax(
        models.ImageEncoder(_phi()),
        _NUM_CLASSES,
        _DIM,
        tf.keras.optimizers.SGD(0.05),
        samplers.SAMPLERS["rff"](options),
        num_negatives=10,
        logit_scale=8.0,
    )
    return algorithm, lambda step: algorithm.update(*_batch(step))


def _leap():
    images, labels = _all_images()
    algorithm = algorithms.SelfPacedStudent(
        models.lenet(_IMAGE_SHAPE, 4),
        images,
        labels,
        tf.keras.optimizers.SGD(0.05, 0.9, nesterov=True),
        self_paced.ThresholdPace(2.0, 0.1, 1.5, 1.0),
        lambda: np.zeros(len(images), np.int32),
        batch_size=_BATCH_SIZE,
        weight_decay=1e-4,
        augmentation=AUGMENTATIONS["flip_crop"],
        seed=0,
    )
    return algorithm, lambda step: algorithm.update()


def _magnet():
    settings = algorithms.MagnetSettings(
        functools.partial(models.small_cnn, _IMAGE_SHAPE, _DIM),
        4,
        clusters_per_class=2,
        clusters_per_batch=3,
        examples_per_cluster=3,
        learning_rate=0.05,
        augmentation=AUGMENTATIONS["flip_crop"],
        seed=0,
    )
    # Adam's first step has one size for any gradient: the rounding of one near 0
    # becomes a whole step, on a GPU 5 % of the largest.
    with mock.patch.object(tf.keras.optimizers, "Adam", tf.keras.optimizers.SGD):
        algorithm = algorithms.MagnetEmbedding(settings, *_all_images())
    return algorithm, lambda step: algorithm.update()


def _moco():
    algorithm = algorithms.MoCo(
        functools.partial(models.small_cnn, _IMAGE_SHAPE, 32),
        tf.keras.optimizers.SGD(0.05, momentum=0.9),
        queue_size=64,
        embedding_dim=_DIM,
        form="clustered",
        num_clusters=3,
    )

    def update(step):
        images, labels = _batch(step)
        return algorithm.update(images, _batch(step + 100)[0], labels)

    algorithm.fit_clusters(1)
    return algorithm, update


CENTRAL: dict[str, Callable[[], tuple[Any, Callable[[int], Any]]]] = {
    "centralized": _centralized,
    "partial_fc": _partial_fc,
    "rf_softmax": _rf_softmax,
    "leap": _leap,
    "magnet_embedding": _magnet,
    "moco": _moco,
}
