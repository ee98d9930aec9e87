"""LEAP's runs: the embedding network in turn, and in a process of its own."""

import functools
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from tests import labelled_blobs, waiting
from tests.arrays import assert_same
from tff_fedss import algorithms, models, tasks, training
from tff_fedss.datasets.central.augmentation import AUGMENTATIONS
from tff_fedss.datasets.central.labelled_images import LabelledImages
from tff_fedss.samplers import self_paced

SHAPE = (labelled_blobs.SIDE, labelled_blobs.SIDE, 1)
CLASSES = labelled_blobs.NUM_CLASSES


@pytest.fixture(scope="module")
def task():
    def part(count, seed):
        images, labels = labelled_blobs.arrays(count, seed)
        return images[..., np.newaxis], labels.astype(np.int32)

    data = LabelledImages("blobs", ("a", "b", "c"), *part(60, 0), *part(30, 1))
    return tasks.LabelledClassification(
        data,
        functools.partial(models.lenet, SHAPE, CLASSES, 0),
        AUGMENTATIONS["flip_crop"],
    )


def settings():
    return algorithms.MagnetSettings(
        functools.partial(models.lenet, SHAPE, 4, 1),
        CLASSES,
        clusters_per_class=2,
        clusters_per_batch=3,
        examples_per_cluster=4,
        learning_rate=0.003,
        augmentation=AUGMENTATIONS["flip_crop"],
    )


def leap_run(task, embedding):
    data = task.dataset
    student = algorithms.SelfPacedStudent(
        task.classifier_fn(),
        data.train_images,
        data.train_labels,
        tf.keras.optimizers.SGD(0.02, 0.9, nesterov=True),
        self_paced.SharePace(0.4, 0.2, 0.5, 1.1),
        lambda: embedding.clusters,
        batch_size=8,
        weight_decay=5e-4,
        augmentation=task.augmentation,
        seed=2,
    )
    return training.LeapRun("leap", task, student, embedding, steps_per_round=4)


def in_turn(task):
    data = task.dataset
    return algorithms.MagnetEmbedding(settings(), data.train_images, data.train_labels)


def test_a_run_in_turn_resumes_bit_for_bit_from_a_checkpoint(task, tmp_path):
    ours = leap_run(task, in_turn(task))
    for _ in range(3):  # In the midst of an epoch of the student, and of the embedding.
        ours.run_round()
    training.Checkpoints(tmp_path).save(ours.state, ours.round_num)
    again = leap_run(task, in_turn(task))
    again.resume(*training.Checkpoints(tmp_path).restore(again.state))
    for _ in range(3):  # Over new clusters.
        assert again.run_round() == ours.run_round()
    assert_same(tf.nest.flatten(again.state), tf.nest.flatten(ours.state))


def test_the_test_is_that_of_the_student(task):
    run = leap_run(task, in_turn(task))
    row = run.run_round()
    # The first epoch is on all images, of three equally frequent classes.
    assert row["selected_share"] == 1 and row["selected_classes"] == pytest.approx(3)
    model = task.classifier_fn()
    for variables, values in (
        (model.trainable_variables, run.weights.trainable),
        (model.non_trainable_variables, run.weights.non_trainable),
    ):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    loss, accuracy = model.evaluate(
        task.dataset.test_images, task.dataset.test_labels, verbose=0
    )
    measured = task.evaluate(run.weights)
    assert measured["top1"] == pytest.approx(accuracy)
    assert measured["test_loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_a_process_of_its_own_trains_the_embedding(task):
    data = task.dataset
    arguments = settings(), data.train_images, data.train_labels
    ours = training.EmbeddingProcess(*arguments)
    try:
        run = leap_run(task, ours)
        run.run_round()
        np.testing.assert_array_equal(ours.clusters // 2, data.train_labels)
        waiting.wait_until(lambda: int(ours.state[0]) >= 200)
        assert run.run_round()["embedding_loss"] >= 0
        state = ours.state
    finally:
        ours.close()
    again = training.EmbeddingProcess(*arguments)
    try:
        again.set_state(state)
        np.testing.assert_array_equal(again.clusters // 2, data.train_labels)
        trained = again.trained()
        assert trained.num_steps >= int(state[0])
        separate = algorithms.MagnetEmbedding(*arguments)
        separate.set_state(again.state)
        np.testing.assert_array_equal(
            trained.represent(data.test_images), separate.represent(data.test_images)
        )
    finally:
        again.close()


@pytest.mark.slow
def test_a_process_that_dies_is_reported(task):
    data = task.dataset
    ours = training.EmbeddingProcess(settings(), data.train_images, data.train_labels)
    try:
        ours.advance(1)
        os.kill(ours._process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=f"exit code -{int(signal.SIGKILL)}"):
            waiting.wait_until(lambda: ours.advance(1) is None)
    finally:
        ours.close()
