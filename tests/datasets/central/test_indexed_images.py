"""Labelled images of an index: other people's, with a test of their own or a share."""

import numpy as np
import pytest

from tests.datasets.images import own_images
from tff_fedss import memory
from tff_fedss.datasets import images
from tff_fedss.datasets.central import labelled_images
from tff_fedss.errors import InvalidInputError


def load(folder, **options):
    index = images.load_index(folder, folders=options.pop("folders", "auto"))
    return labelled_images.from_index(index, **options)


def pictures(*numbers):
    return np.stack([own_images.picture(k) for k in numbers])


def test_a_given_test_is_taken(tmp_path):
    names = ("train/b/2.png", "train/a/1.png", "train/b/1.png", "test/b/1.png")
    data = load(own_images.write(tmp_path / "own", own_images.images(*names)))
    assert data.name == "own" and data.class_names == ("a", "b")
    np.testing.assert_array_equal(data.train_images, pictures(1, 2, 0))
    assert data.train_labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(data.test_images, pictures(3))
    assert data.test_labels.tolist() == [1]
    assert data.train_labels.dtype == data.test_labels.dtype == np.int32
    assert "test: as given (test)" in data.summary()


def test_a_share_of_each_class_is_held_out(tmp_path):
    names = [f"{c}/{i}.png" for c in "abc" for i in range(10)]
    folder = own_images.write(tmp_path, own_images.images(*names))
    data = load(folder)
    assert np.bincount(data.train_labels).tolist() == [8] * 3
    assert np.bincount(data.test_labels).tolist() == [2] * 3
    half = load(folder, test="images", test_share=0.5)
    assert np.bincount(half.test_labels).tolist() == [5] * 3
    # Each image once, with its label.
    found = [*half.train_images, *half.test_images]
    labels = [*half.train_labels, *half.test_labels]
    number = {own_images.picture(k).tobytes(): k for k in range(30)}
    assert sorted(number[image.tobytes()] for image in found) == list(range(30))
    for image, label in zip(found, labels, strict=True):
        assert number[image.tobytes()] // 10 == label
    again = load(folder, test="images", test_share=0.5)
    np.testing.assert_array_equal(again.test_images, half.test_images)


def test_clients_are_held_out_whole(tmp_path):
    names = [f"{k}/{c}/{i}.png" for k in "xyz" for c in "ab" for i in range(2)]
    folder = own_images.write(tmp_path, own_images.images(*names))
    data = load(folder, folders="client/class", test="clients", test_share=0.3)
    assert len(data.train_labels) == 8 and data.test_labels.tolist() == [0, 0, 1, 1]


def test_classes_that_are_not_trained_are_left_out_and_said(tmp_path):
    names = ("train/a/1.png", "train/c/1.png", "test/b/1.png", "test/c/1.png")
    data = load(own_images.write(tmp_path, own_images.images(*names)))
    assert data.class_names == ("a", "c") and data.test_labels.tolist() == [1]
    assert "1 images of 1 classes without a training image" in data.summary()


def test_images_of_several_sizes_need_one(tmp_path):
    contents = own_images.images("a/1.png", "a/2.png", "b/1.png", "b/2.png")
    contents["b/3.png"] = own_images.encoded(own_images.picture(9, (20, 30)))
    folder = own_images.write(tmp_path, contents)
    with pytest.raises(InvalidInputError, match="20x30 pixels, .* 12x10; .*image_size"):
        load(folder, test_share=0.5)
    assert load(folder, test_share=0.5, image_size=8).image_shape == (8, 8, 3)


def test_what_memory_cannot_hold_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    names = [f"{c}/{i}.png" for c in "ab" for i in range(10)]
    folder = own_images.write(tmp_path, own_images.images(*names))
    index = images.load_index(folder)
    decoded = []
    pixels = index.pixels
    monkeypatch.setattr(index, "pixels", lambda row: decoded.append(row) or pixels(row))
    monkeypatch.setattr(memory, "available_bytes", lambda: 20 * 3 * 100**2 - 1)
    with pytest.raises(
        InvalidInputError,
        match=r"at least 0\.6 MiB .*training images \(16 of 100 x 100\) 0\.5 MiB; test",
    ):
        labelled_images.from_index(index, image_size=100)
    assert len(decoded) == 1
    monkeypatch.setattr(memory, "available_bytes", lambda: 20 * 3 * 100**2)
    assert len(labelled_images.from_index(index, image_size=100).train_labels) == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": "given"}, "test=given, but the data have no folder test"),
        ({"test": "classes"}, "test=classes does not serve here"),
        ({"test": "clients"}, "test=clients needs clients"),
        ({"test_share": 2.0}, "test_share=2.0 must be above 0"),
    ],
)
def test_tests_that_cannot_be(tmp_path, options, message):
    folder = own_images.write(tmp_path, own_images.images("a/1.png", "b/1.png"))
    with pytest.raises(InvalidInputError, match=message):
        load(folder, **options)
