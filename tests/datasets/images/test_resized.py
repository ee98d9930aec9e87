"""Images that are resized once: the same pixels as without, whatever is on disk."""

import os

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets.images import own_images
from tff_fedss.datasets import images
from tff_fedss.datasets.federated.partitioners import Iid
from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.datasets.images.resized import ResizedImages

NUM_IMAGES = 12
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def folder(tmp_path):
    pictures = {
        f"{k % 2}/{k}.jpg": own_images.encoded(
            own_images.picture(k, (30 + k, 40)), "JPEG"
        )
        for k in range(NUM_IMAGES)
    }
    return own_images.write(tmp_path / "data", pictures)


def _expected(index, size):
    """What TensorFlow decodes and resizes."""
    decoded = [
        tf.io.decode_jpeg(index.encoded(row), channels=3) for row in range(len(index))
    ]
    resized = [
        tf.image.resize(image, [size, size], antialias=True) for image in decoded
    ]
    return np.stack([np.rint(image).astype(np.uint8) for image in resized])


def _all(store):
    return np.stack([store.pixels(row) for row in range(NUM_IMAGES)])


def test_each_is_read_once(folder, monkeypatch):
    index = images.load_index(folder)
    expected = _expected(index, 8)
    store = ResizedImages(index, Preprocessing(7, 8))
    np.testing.assert_array_equal(_all(store), expected)
    monkeypatch.setattr(index, "encoded", None)
    np.testing.assert_array_equal(_all(store), expected)
    again = ResizedImages(images.load_index(folder), Preprocessing(7, 8))
    monkeypatch.setattr(again._images, "encoded", None)
    np.testing.assert_array_equal(_all(again), expected)


def _cut(path):
    os.truncate(path, path.stat().st_size - 5)


def _damage(path):
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)


def _zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def _make_a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [_cut, _damage, _zero, os.remove, _make_a_folder])
def test_a_damaged_file_changes_nothing(change, folder, cache):
    index = images.load_index(folder)
    store = ResizedImages(index, Preprocessing(7, 8))
    _all(store)
    [path] = cache.glob("*.pixels")
    change(path)
    np.testing.assert_array_equal(_all(store), _expected(index, 8))


def test_a_changed_image_is_read_again(folder):
    index = images.load_index(folder)
    _all(ResizedImages(index, Preprocessing(7, 8)))
    other = own_images.encoded(own_images.picture(99, (30, 40)), "JPEG")
    (folder / "0/0.jpg").write_bytes(other)
    index = images.load_index(folder)
    store = ResizedImages(index, Preprocessing(7, 8))
    np.testing.assert_array_equal(_all(store), _expected(index, 8))


def test_data_sets_have_the_same_examples(folder, monkeypatch):
    def examples():
        dataset = images.load_folder(folder, partition=Iid(2), image_size=7)
        parts = [dataset.test_examples()]
        parts += [dataset.client_examples(k, [1, 2]) for k in dataset.train.client_ids]
        parts += [
            data.map(lambda example: dataset.ready(example, tf.constant([3, 4])))
            for data in (dataset.pooled_examples(),)
        ]
        stored = dataset.train.element_type_structure["image"].dtype
        return stored, [x["image"].numpy() for data in parts for x in data]

    resized, once = examples()
    monkeypatch.setattr(ResizedImages, "are_smaller", lambda *args: False)
    encoded, always = examples()
    assert (resized, encoded) == (tf.uint8, tf.string)
    assert len(once) > NUM_IMAGES
    np.testing.assert_array_equal(once, always)


def test_images_that_are_read_in_another_way_are_others(folder):
    index = images.load_index(folder)
    _all(ResizedImages(index, Preprocessing(7, 8)))
    grey = own_images.encoded(np.full((30, 40, 3), 128, np.uint8), "JPEG")

    def all_grey(content):
        return grey

    other = images.load_index(folder)
    other._normalize = all_grey
    store = ResizedImages(other, Preprocessing(7, 8))
    np.testing.assert_array_equal(_all(store), _expected(other, 8))
    names = index.identity()[0]
    index._source.part = "another image"
    assert index.identity()[0] != names
