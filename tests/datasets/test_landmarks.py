"""Landmarks: from prepared files to clients, and every way to get these files wrong."""

import collections
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.datasets import gldv2

from tests import landmarks_images
from tests.refusals import message_of
from tff_fedss.datasets import landmarks

SEED = np.array([1, 2], np.int32)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    return landmarks_images.make(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def prepared(miniature, tmp_path_factory):
    """What `data.prepare_landmarks` writes; not to be changed."""
    folder = tmp_path_factory.mktemp("prepared")
    assert landmarks_images.prepare(miniature, folder) == 0
    return folder


@pytest.fixture
def cache(prepared, tmp_path):
    """A copy of what was prepared, to be damaged."""
    return shutil.copytree(prepared, tmp_path / "cache") / "gld160k"


@pytest.fixture(scope="module")
def dataset(prepared):
    return landmarks.load(prepared, image_size=60, resize_size=60)


def _numbers(examples):
    return [landmarks_images.number_of(e["image"]) for e in examples]


# What is loaded.


def test_clients_hold_what_the_split_says(dataset, miniature):
    assert sorted(dataset.train.client_ids) == ["101", "12", "7"]
    for client_id, image_ids in miniature.clients.items():
        stored = dataset.train.create_tf_dataset_for_client(client_id)
        stored = list(stored.as_numpy_iterator())
        assert [e["image"] for e in stored] == [miniature.encoded(i) for i in image_ids]
        labels = [miniature.classes[i] for i in image_ids]
        assert [e["label"] for e in stored] == labels
        assert dataset.num_examples(client_id) == len(image_ids)
        positives = dataset.positives(client_id)
        assert positives.dtype == np.int32 and positives.tolist() == sorted({*labels})
    assert dataset.max_positives == 5
    assert dataset.num_classes == 2028 and dataset.image_shape == (60, 60, 3)
    assert not dataset.test_is_unseen
    assert "12 training images (published: 164,172 of 1,262 clients)" in dataset.note


def test_test_images(dataset, miniature):
    examples = list(dataset.test_examples().as_numpy_iterator())
    assert _numbers(examples) == [miniature.numbers[i] for i in miniature.test]
    labels = [miniature.classes[i] for i in miniature.test]
    assert [e["label"] for e in examples] == labels
    assert dataset.test.num_examples == len(labels) == 6


def _sum(data):
    """Decodes, and sums (1, label, mean pixel) over the examples."""

    def add(total, example):
        pixels = tf.io.decode_image(example["image"], 3, expand_animations=False)
        mean = tf.reduce_mean(tf.cast(pixels, tf.float32))
        label = tf.cast(example["label"], tf.float32)
        return total + tf.stack([1.0, label, mean])

    return data.reduce(tf.zeros([3]), add)


def test_tff_worker_reads_a_client(dataset, miniature):
    ids = miniature.clients["12"]
    means = [255 / 5 * bin(miniature.numbers[i]).count("1") for i in ids]
    expected = [len(ids), sum(miniature.classes[i] for i in ids), sum(means)]
    element = collections.OrderedDict(image=np.str_, label=np.int32)
    sum_examples = tff.tensorflow.computation(_sum, tff.SequenceType(element))
    by_dataset = sum_examples(dataset.train.create_tf_dataset_for_client("12"))
    np.testing.assert_allclose(by_dataset, expected, atol=3)
    # And by its id alone, TFF's way for workers that are elsewhere.
    in_worker = tff.tensorflow.computation(
        lambda client_id: _sum(dataset.train.serializable_dataset_fn(client_id)),
        np.str_,
    )
    np.testing.assert_allclose(in_worker("12"), by_dataset)


def test_data_dir_may_be_the_folder_itself(prepared, monkeypatch):
    monkeypatch.chdir(prepared)
    direct = landmarks.load("gld160k", image_size=8)
    stored = direct.train.create_tf_dataset_for_client("7")
    monkeypatch.chdir("/")
    assert len(list(stored)) == 5, "paths do not depend on the working directory"


def test_cache_that_tff_made(miniature, tmp_path):
    names = ("federated_train.csv", "test.csv")
    train_csv, test_csv = (str(miniature.split_dir / name) for name in names)
    images = str(miniature.image_dir)
    folder = tmp_path / "gld160k"
    gldv2._create_train_data_files(str(folder / "train"), images, train_csv)
    gldv2._create_test_data_file(str(folder), images, test_csv)
    dataset = landmarks.load(tmp_path, image_size=60, resize_size=60)
    for client_id, image_ids in miniature.clients.items():
        examples = dataset.client_examples(client_id, SEED).as_numpy_iterator()
        assert _numbers(examples) == [miniature.numbers[i] for i in image_ids]
    assert dataset.test.num_examples == 6


def test_mini_split(cache):
    mini = cache.rename(cache.parent / "gld23k")
    for old, new in (
        ("federated_train.csv", "mini_gld_train_split.csv"),
        ("test.csv", "mini_gld_test.csv"),
    ):
        (mini / old).rename(mini / new)
    for data_dir in (cache.parent, mini):
        dataset = landmarks.load(data_dir, split="23k", image_size=8)
        assert dataset.num_classes == 203 and dataset.num_clients == 3


# Bad input: one clear line.


def _error(data_dir, **arguments):
    return message_of(landmarks.load, data_dir, **{"image_size": 8, **arguments})


def test_clients_that_are_not_prepared_yet(cache):
    (cache / "train" / "101").unlink()
    assert "1 of 3 clients have no file ['101']" in _error(cache)


def test_wrong_folder(cache, miniature, tmp_path, monkeypatch):
    layout = "expected gld160k/train/<user_id> and gld160k/test.tfRecord"
    for folder in (miniature.split_dir, tmp_path / "no", cache / "test.csv"):
        assert _error(folder).startswith(f"data_dir={folder}: {layout}")
    for folder in (cache, cache.parent):
        assert "expected gld23k/train/<user_id>" in _error(folder, split="23k")
    # Not the current folder: a shell variable that is not set.
    monkeypatch.chdir(cache.parent)
    assert _error("").startswith(f"data_dir=: {layout}")
