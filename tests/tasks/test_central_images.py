import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.arrays import assert_same
from tff_fedss import algorithms, models, tasks, training
from tff_fedss.datasets.central import public_images
from tff_fedss.datasets.central.augmentation import Augmentation, TwoViews
from tff_fedss.datasets.central.labelled_images import LabelledImages


def mean_colour(image_size):
    """A network whose features are the mean colour times a weight."""
    images = tf.keras.Input([image_size, image_size, 3])
    x = tf.keras.layers.GlobalAveragePooling2D()(images)
    x = tf.keras.layers.BatchNormalization()(x)
    return tf.keras.Model(images, x)


@pytest.fixture(scope="module")
def task():
    """The middle of an image tells its class; the border tells another."""
    images = np.zeros([60, 8, 8, 3], np.uint8)
    labels = (np.arange(60) % 3).astype(np.int32)
    for image, label in zip(images, labels):
        image[..., (label + 1) % 3] = 255
        image[2:6, 2:6] = 0
        image[2:6, 2:6, label] = 200
    data = LabelledImages(
        "toy", ("r", "g", "b"), images, labels, images[:9], labels[:9]
    )
    return tasks.Contrastive(
        data,
        lambda: mean_colour(4),
        TwoViews(4, blur=False),
        batch_size=25,
        seed=0,
    )


def weights(task, scale):
    model = task.backbone_fn()
    return tff.learning.models.ModelWeights(
        trainable=[scale * v.numpy() for v in model.trainable_variables],
        non_trainable=[v.numpy() for v in model.non_trainable_variables],
    )


def test_linear_accuracy_is_of_the_weights_that_are_given(task):
    assert task.evaluate(weights(task, 1.0)) == {"linear_accuracy": 1.0}
    # Without features, the most frequent class is all there is.
    chance = task.evaluate(weights(task, 0.0))["linear_accuracy"]
    assert chance == pytest.approx(1 / 3)
    assert task.format_metric(0.1234) == "12.3 %"


def test_batches_resume_where_they_were_left(task):
    assert task.steps_per_epoch == 2
    batches = task.batches(0)
    first, second, third = (next(batches) for _ in range(3))
    assert_same(third, next(task.batches(2)))
    assert not np.array_equal(first[0], second[0])
    assert first[0].shape == (25, 4, 4, 3)


def network():
    """The mean colour, normalized over the batch, times a matrix."""
    images = tf.keras.Input([4, 4, 3])
    x = tf.keras.layers.GlobalAveragePooling2D()(images)
    x = tf.keras.layers.BatchNormalization(momentum=0.5)(x)
    x = tf.keras.layers.Dense(
        3, kernel_initializer=tf.keras.initializers.GlorotUniform(1)
    )(x)
    return tf.keras.Model(images, x)


@pytest.fixture(scope="module")
def data():
    """Six classes of 8 images, each of a colour of its own; two are the probe's."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6, dtype=np.int32), 8)
    colours = np.array([[c & 4, c & 2, c & 1] for c in range(6)]).astype(bool) * 180
    images = colours[labels][:, None, None] + rng.integers(0, 60, (48, 4, 4, 3))
    source = public_images.Source("toy", images.astype(np.uint8), labels, 6)
    return public_images.put_together([source], num_probe_classes=2)


def task_of(data):
    return tasks.Pretraining(
        data, network, Augmentation(horizontal_flip=True), batch_size=10, seed=3
    )


def run_of(task):
    algorithm = algorithms.Centralized(
        task.model_fn(),
        task.dataset.num_classes,
        tf.keras.optimizers.AdamW(0.05),
        image_dtype=tf.float32,
    )
    return training.StepRun("pretrain", task, algorithm, task.steps_per_epoch)


def test_an_epoch_has_every_image_once_and_the_next_another_order(data):
    task = task_of(data)
    assert task.steps_per_epoch == 4  # 32 images.
    batches = list(itertools.islice(task.batches(0), 8))
    assert [len(labels) for _, labels in batches] == [10, 10, 10, 2] * 2
    epochs = [
        np.concatenate([images for images, _ in batches[k : k + 4]]) for k in (0, 4)
    ]
    for epoch in epochs:
        sums = np.sort(epoch.sum((1, 2, 3)))
        np.testing.assert_array_equal(
            sums, np.sort(data.train_images.sum((1, 2, 3), dtype=np.float32))
        )
    assert not np.array_equal(*epochs)
    originals = {image.tobytes() for image in data.train_images}
    shown = np.concatenate(epochs).astype(np.uint8)
    # About half of 64 are mirrored.
    assert 16 < sum(image.tobytes() in originals for image in shown) < 48
    later = list(itertools.islice(task.batches(5), 3))
    assert_same(itertools.chain(*later), itertools.chain(*batches[5:]))


def test_a_run_learns_and_resumes_with_the_same_bytes(data):
    whole = run_of(task_of(data))
    first = whole.run_round()
    state = whole.state
    metrics = [whole.run_round() for _ in range(12)]
    assert metrics[-1]["accuracy"] > max(0.6, first["accuracy"])
    assert metrics[-1]["steps"] == 13 * 4 and metrics[-1]["num_examples"] == 32
    resumed = run_of(task_of(data))
    resumed.resume(state, 1)
    assert [resumed.run_round() for _ in range(12)] == metrics
    assert_same(resumed.state, whole.state)


def test_the_probe_is_of_phi_as_it_is_at_inference(data):
    task = task_of(data)
    run = run_of(task)
    for _ in range(4):
        run.run_round()
    weights = run.weights
    assert task.evaluate(weights)["probe_top1"] == 1.0
    # The two colours are distinguished by the matrix and by the moving means.
    nothing = [np.zeros_like(w) for w in weights.trainable]
    blind = type(weights)(nothing, weights.non_trainable)
    assert task.evaluate(blind)["probe_top1"] == 0.5
    assert task.format_metric(0.5) == "50.0 %"


def test_classes_of_one_image_cannot_be_probed(data):
    one_each = dataclasses.replace(
        data, probe_images=data.probe_images[::8], probe_labels=data.probe_labels[::8]
    )
    task = task_of(one_each)
    assert len(one_each.probe_labels) == 2 and task.evaluate(run_of(task).weights) == {}


@pytest.mark.slow
def test_a_mobilenet_with_batch_norms_starts_one_with_group_norms(tmp_path):
    batch = models.mobilenet_v3(
        (32, 32, 3), 16, size="small", alpha=0.75, normalization="batch", seed=1
    )
    assert batch.non_trainable_variables
    assert sum("BatchNormalization" in type(x).__name__ for x in batch.layers) == 34
    batch.save_weights(tmp_path / "phi.h5")
    group = models.mobilenet_v3((32, 32, 3), 16, size="small", alpha=0.75, seed=2)
    assert not group.non_trainable_variables
    report = models.load_pretrained(group, tmp_path / "phi.h5", min_share=1.0)
    assert report.num_loaded == group.count_params()
    assert_same(group.trainable_variables, batch.trainable_variables)
    with pytest.raises(ValueError, match="normalization='layer' must be one of"):
        models.mobilenet_v3((32, 32, 3), 16, normalization="layer")
