import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import tasks
from tff_fedss.datasets.central.labelled_images import LabelledImages
from tff_fedss.datasets.central.two_views import TwoViews


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
    for ours, theirs in zip(third, next(task.batches(2))):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(first[0], second[0])
    assert first[0].shape == (25, 4, 4, 3)
