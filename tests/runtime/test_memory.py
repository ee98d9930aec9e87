"""The memory of the in-process runtime over many rounds."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms

ROUNDS, CLASSES, DIM, CLIENTS, IMAGES = 300, 5000, 16, 8, 32


def feature_extractor():
    images = tf.keras.Input([8, 8, 1])
    kernel = tf.keras.initializers.GlorotUniform(seed=0)
    dense = tf.keras.layers.Dense(DIM, kernel_initializer=kernel)
    return tf.keras.Model(images, dense(tf.keras.layers.Flatten()(images)))


def client(generator):
    classes = generator.choice(CLASSES, 10, replace=False)
    data = {
        "image": generator.integers(0, 256, (IMAGES, 8, 8, 1), np.uint8),
        "label": generator.choice(classes, IMAGES).astype(np.int32),
    }
    return {
        "data": tf.data.Dataset.from_tensor_slices(data),
        "seed": generator.integers(0, 2**31 - 1, 2).astype(np.int32),
    }


def resident_bytes():
    return 4096 * int(pathlib.Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.slow
def test_a_round_leaves_no_state_behind():
    process = algorithms.build_fedss(
        feature_extractor,
        CLASSES,
        algorithms.ClassSets(max_positives=10, num_negatives=20),
        algorithms.ClientTraining(tff.learning.optimizers.build_sgdm(0.01), 16),
    )
    generator = np.random.default_rng(0)
    state = process.initialize()
    measured = []
    for _ in range(ROUNDS):
        state, _ = process.next(state, [client(generator) for _ in range(CLIENTS)])
        measured.append(resident_bytes())
    # The allocator has found its size by then.
    half = np.array(measured[ROUNDS // 2 :])
    growth = np.polyfit(np.arange(len(half)), half, 1)[0]
    assert growth < 4 * CLASSES * DIM / 4  # A quarter of W.
