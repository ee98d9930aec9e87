"""Labelled images: every layout, and every way in which it can be wrong."""

import gzip

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from tests import labelled_blobs
from tests.datasets.images import own_images, small_faces
from tests.refusals import refused
from tff_fedss import memory
from tff_fedss.datasets import images
from tff_fedss.datasets.central import labelled_images, public_images
from tff_fedss.datasets.images import tfds_index
from tff_fedss.errors import InvalidInputError

_SIDE = 8
_CLASSES = ("cat", "dog")


def png(value, size=(_SIDE, _SIDE)):
    return own_images.encoded(Image.new("RGB", size, (value, 0, 255)))


def files(root="", test="test"):
    """Six training and two test images; the first channel is the number of each."""
    contents = {f"{root}README.md": b"text", f"{root}train/cat/.hidden.png": b""}
    for i in range(6):
        contents[f"{root}train/{_CLASSES[i % 2]}/{i}.png"] = png(i)
    for i in range(2):
        contents[f"{root}{test}/{_CLASSES[i]}/{i}.png"] = png(10 + i)
    return contents


def check(data, class_names=_CLASSES):
    assert data.class_names == class_names and data.num_classes == 2
    assert data.image_shape == (_SIDE, _SIDE, 3)
    assert data.train_images[:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_images[:, 0, 0, 0].tolist() == [10, 11]
    assert data.test_labels.tolist() == [0, 1]
    assert (data.train_images[..., 2] == 255).all()
    assert data.train_images.dtype == np.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == np.int32


def test_a_folder_for_each_class(tmp_path):
    own_images.write(tmp_path, files())
    data = labelled_images.load("cifar10", tmp_path)
    check(data)
    assert "n=2 classes, 6 training and 2 test images, 8x8x3" in data.summary()
    assert "test: as given (test)" in data.summary()


def test_tiny_imagenet_as_it_is_published(tmp_path):
    root = "tiny-imagenet-200/"
    contents = {f"{root}wnids.txt": b"n2\nn1\n"}
    for i in range(6):
        wnid = f"n{i % 2 + 1}"
        contents[f"{root}train/{wnid}/images/{wnid}_{i}.JPEG"] = png(i)
    for i in range(2):
        contents[f"{root}val/images/val_{i}.JPEG"] = png(10 + i)
    lines = b"val_1.JPEG\tn2\t0\t0\t1\t1\nval_0.JPEG\tn1\t0\t0\t1\t1\n"
    contents[f"{root}val/val_annotations.txt"] = lines
    own_images.write(tmp_path, contents)
    data = labelled_images.load("tiny_imagenet", tmp_path)
    check(data, ("n1", "n2"))
    smaller = labelled_images.load("tiny_imagenet", tmp_path, image_size=4)
    assert smaller.image_shape == (4, 4, 3)


def test_an_archive(tmp_path):
    own_images.write(tmp_path / "a.zip", files("deep/down/", "val"))
    check(labelled_images.load("cifar10", tmp_path))
    assert labelled_images.load("mnist", tmp_path).image_shape == (_SIDE, _SIDE, 1)


@pytest.mark.parametrize(
    "changed, message",
    [
        (
            {"train/cat/0.png": png(0, (4, 4))},
            "8x8 pixels, not 4x4 as train/cat/0.png.*image_size",
        ),
        ({"test/cow/1.png": png(1)}, "no training image has the class of .*cow"),
        ({"train/cow/": b""}, "expected train/CLASS.* without images: 'train/cow'"),
    ],
)
def test_bad_images_are_named(tmp_path, changed, message):
    own_images.write(tmp_path, {**files(), **changed})
    with refused(f"data_dir={tmp_path}.*{message}"):
        labelled_images.load("cifar10", tmp_path)


def idx_files(prefix, num_images, first=0):
    images = np.zeros([num_images, 5, 4], np.uint8)
    images[:, 1, 2] = np.arange(first, first + num_images)
    return {
        f"{prefix}-images-idx3-ubyte": labelled_blobs.idx(images),
        f"{prefix}-labels-idx1-ubyte": labelled_blobs.idx(
            np.arange(num_images).astype(np.uint8) % 3
        ),
    }


def test_idx_files_compressed_or_not(tmp_path):
    train = {f"{k}.gz": gzip.compress(v) for k, v in idx_files("train", 6).items()}
    own_images.write(tmp_path, {**train, **idx_files("t10k", 3, 50)})
    data = labelled_images.load("mnist", tmp_path)
    assert data.train_images.shape == (6, 5, 4, 1)
    assert data.train_images[:, 1, 2, 0].tolist() == list(range(6))
    assert data.test_images[:, 1, 2, 0].tolist() == [50, 51, 52]
    assert data.train_labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_of_one_part_every_fifth_image_is_held_out(tmp_path):
    own_images.write(tmp_path, idx_files("t10k", 12))
    data = labelled_images.load("mnist", tmp_path)
    assert data.test_images[:, 1, 2, 0].tolist() == [0, 5, 10]
    assert data.train_images[:, 1, 2, 0].tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 11]
    assert "every 5th image is a test image" in data.summary()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c[:-1], "has 255 bytes; expected an IDX file"),
        (lambda c: b"\0" + c, "has 257 bytes; expected an IDX file of bytes in 3"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, change, message):
    contents = idx_files("t10k", 12)
    name = "t10k-images-idx3-ubyte"
    contents[name] = change(contents[name])
    own_images.write(tmp_path, contents)
    with refused(f"{name} {message}"):
        labelled_images.load("mnist", tmp_path)


@pytest.mark.parametrize(
    "images, message",
    [
        (np.zeros([3, 7, 5]), "training images have 5x4 pixels and test images 7x5: "),
        (np.zeros([3, 0, 4]), "have 3 images of 0x4 pixels"),
        (np.zeros([2, 5, 4]), "have 2 images of 5x4 pixels, 3 labels to 2"),
    ],
)
def test_idx_files_of_other_images_are_named(tmp_path, images, message):
    contents = {**idx_files("train", 3), **idx_files("t10k", 3)}
    contents["t10k-images-idx3-ubyte"] = labelled_blobs.idx(images.astype(np.uint8))
    own_images.write(tmp_path, contents)
    with refused(message):
        labelled_images.load("mnist", tmp_path)


def test_idx_files_without_images_are_named(tmp_path):
    own_images.write(tmp_path, idx_files("t10k", 1))
    with refused("no training image has label 0"):
        labelled_images.load("mnist", tmp_path)
    own_images.write(tmp_path, idx_files("t10k", 0))
    with refused("have 0 images"):
        labelled_images.load("mnist", tmp_path)
    for path in tmp_path.iterdir():  # As EMNIST's are called.
        path.rename(tmp_path / f"emnist-digits-{path.name}")
    with refused(r"found no train-images-idx3-ubyte\[.gz\] or t10k-images"):
        labelled_images.load("mnist", tmp_path)


def test_a_subset_is_balanced_and_repeatable(tmp_path):
    own_images.write(tmp_path, idx_files("t10k", 50))
    data = labelled_images.load("mnist", tmp_path)
    subset = data.subset(10)
    assert sorted(np.bincount(subset.train_labels)) == [3, 3, 4]
    # The images still have their labels.
    assert (subset.train_images[:, 1, 2, 0] % 3 == subset.train_labels).all()
    assert len(np.unique(subset.train_images[:, 1, 2, 0])) == 10
    np.testing.assert_array_equal(subset.train_images, data.subset(10).train_images)
    with refused(r"num_train=2 must be at least 3 and at most 40"):
        data.subset(2)


def test_tfds_by_name(tmp_path, monkeypatch, cache):
    monkeypatch.setattr(
        tfds,
        "builder",
        lambda name, data_dir: small_faces.SmallFaces(data_dir=tmp_path),
    )
    data = labelled_images.load("svhn_cropped")
    assert data.name == "svhn_cropped" and data.class_names == ("sad", "glad")
    number = {own_images.picture(k).tobytes(): k for k in range(21)}
    train, tests = (
        [number[image.tobytes()] for image in part]
        for part in (data.train_images, data.test_images)
    )
    # The extra set is for training.
    assert sorted(train) == [*range(12), *range(18, 21)]
    assert sorted(tests) == list(range(12, 18))
    np.testing.assert_array_equal(np.array(train) % 2, data.train_labels)
    assert len(labelled_images.load("cifar10").train_images) == 12


@pytest.mark.parametrize(
    "name", sorted(labelled_images.SOURCES.keys() - {"tiny_imagenet"})
)
def test_the_label_of_each_data_set_of_tfds_is_known(name, monkeypatch):
    def load(name, label=None, **_):
        keys = tfds_index._keys(tfds.builder(name).info, None, label, None)
        raise InvalidInputError(f"it is {keys['label']}")

    monkeypatch.setattr(tfds_index, "load", load)
    with refused("it is label"):
        labelled_images.load(name, image_size=32)


def test_what_tfds_cannot_get_is_named(monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(
        tfds.core.DatasetBuilder, "download_and_prepare", refuse, raising=True
    )
    with refused("^name=cifar100 .*no route.*dataset=cifar100 also"):
        labelled_images.load("cifar100")


@pytest.mark.slow
def test_the_real_cifar10(test_data):
    data = labelled_images.load("cifar10", test_data / "cifar10-jpg")
    assert data.image_shape == (32, 32, 3)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.class_names[0] == "airplane"


def test_the_real_mnist(test_data):
    data = labelled_images.load("mnist", test_data / "mnist-t10k")
    assert data.train_images.shape == (8000, 28, 28, 1)
    assert len(data.test_labels) == 2000


def load(folder, **options):
    return labelled_images.from_index(images.load_index(folder), **options)


def test_a_share_of_each_class_is_held_out(tmp_path):
    names = [f"{c}/{i}.png" for c in "abc" for i in range(10)]
    folder = own_images.write(tmp_path / "own", own_images.images(*names))
    data = load(folder)
    assert data.name == "own"
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
    with refused("test=images leaves no test image"):
        load(folder, test_share=0.04)
    with refused("test=given needs a folder test or val"):
        load(folder, test="given")


def test_what_memory_cannot_hold_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    names = [f"{c}/{i}.png" for c in "ab" for i in range(10)]
    folder = own_images.write(tmp_path, own_images.images(*names))
    index = images.load_index(folder)
    decoded = []
    pixels = index.pixels
    monkeypatch.setattr(index, "pixels", lambda row: decoded.append(row) or pixels(row))
    monkeypatch.setattr(memory, "available_bytes", lambda: 20 * 3 * 100**2 - 1)
    with refused(
        r"at least 0\.6 MiB .*training images \(16 of 100 x 100\) 0\.5 MiB; test",
    ):
        labelled_images.from_index(index, image_size=100)
    assert len(decoded) == 1
    monkeypatch.setattr(memory, "available_bytes", lambda: 20 * 3 * 100**2)
    assert len(labelled_images.from_index(index, image_size=100).train_labels) == 16


# --- Public images ----------------------------------------------------------------


def source(name, num_classes, per_class, shape=(2, 2, 3), offset=0):
    """Images whose pixels are the number of their class, plus an offset."""
    labels = np.tile(np.arange(num_classes, dtype=np.int32), per_class)
    images = np.broadcast_to(
        (labels + offset)[:, None, None, None], (len(labels), *shape)
    )
    return public_images.Source(name, images.astype(np.uint8), labels, num_classes)


def test_sources_follow_each_other_and_no_class_is_lost():
    data = public_images.put_together([source("a", 3, 4), source("b", 2, 5, offset=9)])
    assert data.num_classes == 5
    assert len(data.probe_labels) == 0
    pixels = data.train_images[:, 0, 0, 0]
    expected = {0: 0, 1: 1, 2: 2, 3: 9, 4: 10}
    assert [expected[label] for label in data.train_labels] == list(pixels)
    assert data.train_labels.dtype == np.int32
    assert "a (3 classes, 12 images) and b (2 classes, 10 images)" in data.summary()


def test_what_the_probe_has_is_not_trained():
    sources = [source("a", 10, 4), source("b", 2, 5, offset=100)]
    data = public_images.put_together(sources, num_probe_classes=3, seed=1)
    trained = set(data.train_images[:, 0, 0, 0])
    probed = set(data.probe_images[:, 0, 0, 0])
    assert len(probed) == 3 and probed < set(range(10))
    assert trained == set(range(10)) - probed | {100, 101}
    assert sorted(set(data.probe_labels)) == [0, 1, 2]
    assert (
        sorted(set(data.train_labels))
        == list(range(9))
        == list(range(data.num_classes))
    )
    again = public_images.put_together(sources, num_probe_classes=3, seed=1)
    assert again.fingerprint() == data.fingerprint()
    other = public_images.put_together(sources, num_probe_classes=3, seed=2)
    assert set(other.probe_images[:, 0, 0, 0]) != probed


def test_what_does_not_go_together_is_refused():
    with refused("num_probe_classes=2 must be at least 0"):
        public_images.put_together([source("a", 3, 4)], num_probe_classes=2)
    with refused("num_probe_classes=1 must be 0, or"):
        public_images.put_together([source("a", 4, 4)], num_probe_classes=1)
    with refused(r"images of b are \(2, 2, 3\), of a \(2, 2, 1\): height, width"):
        public_images.put_together([source("a", 3, 4, (2, 2, 1)), source("b", 2, 5)])
