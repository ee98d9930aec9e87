"""The embedding network and the self-paced student of LEAP, step by step."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import labelled_blobs
from tests.arrays import assert_close, assert_same, rng
from tff_fedss import algorithms, models
from tff_fedss.datasets.central.augmentation import AUGMENTATIONS
from tff_fedss.errors import RunStoppedError
from tff_fedss.samplers import self_paced

N = 30
CLASSES = labelled_blobs.NUM_CLASSES


@pytest.fixture(scope="module")
def data():
    images, labels = labelled_blobs.arrays(N)
    return images[..., np.newaxis], labels.astype(np.int32)


def network(outputs, seed=0):
    """A linear model with a batch normalization, which has other weights too."""
    images = tf.keras.Input((labelled_blobs.SIDE, labelled_blobs.SIDE, 1))
    x = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(images))
    x = tf.keras.layers.BatchNormalization(momentum=0.9)(x)
    kernel = tf.keras.initializers.GlorotUniform(seed)
    x = tf.keras.layers.Dense(outputs, kernel_initializer=kernel)(x)
    return tf.keras.Model(images, x)


def embedding(data, **kwargs):
    settings = dict(
        clusters_per_class=2,
        clusters_per_batch=3,
        examples_per_cluster=3,
        learning_rate=0.01,
        augmentation=AUGMENTATIONS["flip_crop"],
        seed=4,
    )
    return algorithms.MagnetEmbedding(
        algorithms.MagnetSettings(
            functools.partial(network, 4), CLASSES, **(settings | kwargs)
        ),
        *data,
    )


def student(data, pace, clusters=None, **kwargs):
    options = dict(
        batch_size=8,
        weight_decay=0.01,
        augmentation=AUGMENTATIONS["none"],
        seed=5,
    )
    return algorithms.SelfPacedStudent(
        network(CLASSES),
        *data,
        tf.keras.optimizers.SGD(0.1, 0.9, nesterov=True),
        pace,
        lambda: np.zeros(N, np.int32) if clusters is None else clusters,
        **(options | kwargs),
    )


def test_an_embedding_is_clustered_anew_when_an_epoch_ends(data):
    ours = embedding(data)
    ours.update()
    first = ours.clusters
    np.testing.assert_array_equal(first // 2, data[1])  # within classes
    # An epoch is ceil(30 / 9) updates.
    for _ in range(3):
        ours.update()
        assert ours.clusters is first
    ours.update()
    assert ours.clusters is not first


def test_an_embedding_learns(data):
    # Crops would hide the classes, which are places.
    ours = embedding(data, augmentation=AUGMENTATIONS["none"])
    losses = [ours.update() for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


def test_too_few_classes_for_a_mini_batch_are_refused(data):
    with pytest.raises(ValueError, match="clusters_per_batch=6 must .* at most 5"):
        embedding(data, clusters_per_batch=6)


def test_pixel_clusters_are_of_the_data(data):
    images, labels = data
    clusters = algorithms.pixel_clusters(images, 2 * CLASSES, seed=0).tolist()
    # Images of one class are alike.
    assert len({*zip(clusters, labels.tolist())}) == len({*clusters}) == 2 * CLASSES


def test_without_a_pace_an_epoch_has_every_example_once(data):
    ours = student(data, None)
    sizes = [ours.update()["num_examples"] for _ in range(8)]
    assert sizes == [8, 8, 8, 6] * 2
    assert ours.epoch == 2 and ours.selected.all()


def test_a_step_is_that_of_sgd_with_momentum_and_weight_decay(data):
    images, labels = data
    ours = student(data, None, batch_size=N)
    model = network(CLASSES)
    velocity = [np.zeros(v.shape) for v in model.trainable_variables]
    for _ in range(3):
        # All examples: their order does not matter.
        with tf.GradientTape() as tape:
            logits = model(images.astype(np.float32), training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            )
        gradient = tape.gradient(loss, model.trainable_variables)
        for i, (g, v) in enumerate(zip(gradient, model.trainable_variables)):
            decayed = g.numpy() + 0.01 * v.numpy()
            velocity[i] = 0.9 * velocity[i] - 0.1 * decayed
            v.assign_add(0.9 * velocity[i] - 0.1 * decayed)
        update = ours.update()
        assert update["loss"] / N == pytest.approx(float(loss), rel=1e-5)
        correct = np.count_nonzero(np.argmax(logits, 1) == labels)
        assert update["accuracy"] == correct
    for found, expected in (
        (ours.weights.trainable, model.trainable_variables),
        (ours.weights.non_trainable, model.non_trainable_variables),
    ):
        assert_close(found, expected, 1e-4, 1e-6)


@pytest.mark.parametrize(
    "pace",
    [
        self_paced.ThresholdPace(0.005, 0.1, 1.05, 1.1),
        self_paced.SharePace(0.4, 0.1, 0.3, 1.1, cap=0.5),
    ],
)
def test_an_epoch_is_what_algorithm_2_selects(data, pace):
    images, labels = data
    clusters = (np.arange(N) % 5).astype(np.int32)
    ours = student(data, pace, clusters)
    model = network(CLASSES)
    # Line 10: on all of D, before anything is selected.
    assert [ours.update()["num_examples"] for _ in range(4)] == [8, 8, 8, 6]
    assert ours.selected.all() and ours.easiness == np.inf
    for epoch in range(3):
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        for v, value in zip(
            variables, [*ours.weights.trainable, *ours.weights.non_trainable]
        ):
            v.assign(value)
        logits = model(images.astype(np.float32), training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        # The pace counts selections, not epochs.
        easiness, diversity = pace.at(epoch, losses.numpy(), clusters)
        expected = self_paced.select(losses.numpy(), clusters, easiness, diversity)
        assert 0 < expected.sum() < N
        seen = 0
        while seen < expected.sum():
            seen += ours.update()["num_examples"]
        assert seen == expected.sum() and ours.epoch == epoch + 2
        np.testing.assert_array_equal(ours.selected, expected)
        assert ours.easiness == pytest.approx(easiness)
        assert ours.diversity == pytest.approx(diversity)


def test_a_threshold_below_all_losses_grows_until_something_is_selected(data):
    pace = self_paced.ThresholdPace(1e-3, 0.0, 1.5, 1.5)
    ours = student(data, pace)
    for _ in range(5):  # The first epoch, on everything, has four.
        ours.update()
    assert ours.selected.any() and ours.epoch > 3
    assert ours.easiness == pytest.approx(1e-3 * 1.5 ** (ours.epoch - 2))


def test_after_a_short_mini_batch_a_run_has_the_bytes_of_the_whole_one():
    images = rng().integers(0, 256, (24, 56, 56, 3)).astype(np.uint8)
    labels = np.arange(24, dtype=np.int32) % CLASSES

    def new():
        return algorithms.SelfPacedStudent(
            models.small_cnn(images.shape[1:], CLASSES),
            images,
            labels,
            tf.keras.optimizers.SGD(0.1),
            None,
            None,
            batch_size=16,
            weight_decay=0.0,
            augmentation=AUGMENTATIONS["none"],
            seed=5,
        )

    whole, resumed = new(), new()
    whole.update()
    resumed.set_state(whole.state)
    for _ in range(2):
        assert resumed.update() == whole.update()
    assert_same(resumed.state, whole.state)


@pytest.mark.parametrize(
    "pace",
    [
        self_paced.ThresholdPace(0.5, 0.1, 1 + 1e-9, 1.1),
        self_paced.SharePace(0.4, 0.1, 0.3, 1.1),
    ],
)
def test_losses_that_are_not_finite_end_the_training_at_once(data, pace):
    ours = student(data, pace)
    for _ in range(4):  # The first epoch, on everything.
        ours.update()
    state = ours.state
    state[-1] = np.full_like(state[-1], np.nan)
    state[5] = np.full_like(state[5], np.nan)
    ours.set_state(state)
    with pytest.raises(RunStoppedError, match="diverged in epoch 1: a loss"):
        ours.update()
