"""Tiny-ImageNet: its layouts, its partitions, every way in which it can be wrong."""

import collections
import functools
import hashlib
import itertools
import pathlib
import tempfile

import numpy as np
import pytest
from PIL import Image

from tests.datasets.images import own_images
from tests.refusals import refused
from tff_fedss.datasets import tiny_imagenet
from tff_fedss.datasets.federated.partitioners import Mixed

_ROOT = "tiny-imagenet-200/"
# In the order of wnids.txt, which is not the sorted one.
_WNIDS = ("n02124075", "n01443537", "n04067472", "n01629819", "n07749582", "n09256479")
_TRAIN_PER_CLASS, _VAL_PER_CLASS = 8, 2
_SIDE = 16
_ANNOTATIONS = _ROOT + "val/val_annotations.txt"
_SPLITS = {"partition": Mixed(classes_per_client=2, images_per_class=4)}


@functools.cache
def _jpeg(number, mode="RGB"):
    """A JPEG that no other number has: grey levels below `number` mod 256."""
    levels = np.full([_SIDE, _SIDE], number % 256, np.uint8)
    levels[: _SIDE // 2] = number // 256 * 40
    image = Image.fromarray(levels).convert(mode)
    return own_images.encoded(image, "JPEG", quality=95)


def _train_files():
    for c, wnid in enumerate(_WNIDS):
        for i in range(_TRAIN_PER_CLASS):
            mode = "L" if i == 3 else "RGB"
            name = f"{_ROOT}train/{wnid}/images/{wnid}_{i}.JPEG"
            yield name, _jpeg(c * 20 + i, mode)


def _val_files():
    for i in range(_VAL_PER_CLASS * len(_WNIDS)):
        yield f"{_ROOT}val/images/val_{i}.JPEG", _jpeg(256 + i)


def _annotation_lines():
    """val_0 and val_6 are of the first class, and so on."""
    for i in range(_VAL_PER_CLASS * len(_WNIDS)):
        yield f"val_{i}.JPEG\t{_WNIDS[i % len(_WNIDS)]}\t0\t32\t44\t62\n"


def _miniature():
    """The files of a miniature, path -> content, with those that are not used."""
    boxes = {
        f"{_ROOT}train/{wnid}/{wnid}_boxes.txt": b"n0_0.JPEG\t0\t10\t63\t58"
        for wnid in _WNIDS
    }
    return {
        "README.md": b"# Tiny",
        **dict(_train_files()),
        **boxes,
        f"{_ROOT}val/images/.DS_Store": b"of another system",
        **dict(_val_files()),
        _ANNOTATIONS: "".join(_annotation_lines()).encode(),
        f"{_ROOT}wnids.txt": "".join(f"{wnid}\n" for wnid in _WNIDS).encode(),
        f"{_ROOT}words.txt": b"n00001740\tentity",
        f"{_ROOT}test/images/test_0.JPEG": b"never read",
    }


@pytest.fixture
def miniature():
    return _miniature()


def _load(path, **arguments):
    return tiny_imagenet.load(path, **{**_SPLITS, "image_size": 14, **arguments})


@functools.cache
def _images():
    """The index of a miniature: whatever holds it, its rows are the same."""
    with tempfile.TemporaryDirectory() as path:
        own_images.write(pathlib.Path(path), _miniature())
        index = tiny_imagenet.open_index(path)
        return [index.encoded(row) for row in range(len(index))]


def _stored(dataset):
    """Pairs of the image's file and label; images that are rows are looked up."""
    return [
        (
            e["image"] if isinstance(e["image"], bytes) else _images()[e["image"]],
            int(e["label"]),
        )
        for e in dataset.as_numpy_iterator()
    ]


def _clients(dataset):
    return {
        client_id: _stored(dataset.train.create_tf_dataset_for_client(client_id))
        for client_id in dataset.train.client_ids
    }


def _digest(dataset):
    parts = [*_clients(dataset).items(), ("test", _stored(dataset.test.data))]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    own_images.write(path, _miniature())
    return path


@pytest.fixture(scope="module")
def dataset(folder):
    return _load(folder)


# Layouts.


def test_archive_and_its_folder(miniature, dataset, tmp_path):
    path = tmp_path / "tiny-imagenet-200.zip"
    # In another order, with folders.
    folders = {f"{_ROOT}train/{wnid}/images/": b"" for wnid in _WNIDS}
    own_images.write(path, {**folders, **dict(reversed(miniature.items()))})
    (tmp_path / "README.md").write_text("not read")
    assert _digest(_load(path)) == _digest(dataset)
    assert _digest(_load(tmp_path)) == _digest(dataset)


# What is in it.


def _label(wnid):
    return sorted(_WNIDS).index(wnid)


def test_every_training_image_is_in_one_client_with_its_class(dataset):
    expected = [
        (content, _label(name.split("/")[2]))
        for name, content in sorted(_train_files())
    ]
    clients = _clients(dataset)
    assert sorted(itertools.chain(*clients.values())) == sorted(expected)
    assert _stored(dataset.pooled_examples()) == expected
    assert dataset.num_classes == 6
    # 6 / 2 groups of classes, 8 / 4 shares of their images.
    assert len(clients) == dataset.num_clients == 6
    for client_id, examples in clients.items():
        counts = collections.Counter(label for _, label in examples)
        assert dict(counts) == dict.fromkeys(dataset.positives(client_id), 4)
        assert dataset.num_examples(client_id) == 8
    assert dataset.max_positives == 2


def test_validation_images_are_the_test(dataset):
    expected = [
        (content, _label(_WNIDS[i % 6])) for i, (_, content) in enumerate(_val_files())
    ]
    assert sorted(_stored(dataset.test.data)) == sorted(expected)
    assert dataset.test.num_examples == 12
    assert not dataset.test_is_unseen


def _pooled(dataset):
    return _stored(dataset.pooled_examples())


def test_public_classes_are_held_by_no_client(folder, dataset):
    some = _load(folder, num_public_classes=1)
    assert some.num_classes + 1 == dataset.num_classes
    assert some.public.num_classes == 1 and dataset.public is None
    images = [image for image, _ in _pooled(dataset)]
    kept = [image for image, _ in _pooled(some)]
    assert set(kept) < set(images)
    assert some.public.num_examples == len(images) - len(kept) > 0
    # The classes that are left have the labels 0, 1, ... in the same order.
    old, new = dict(_pooled(dataset)), dict(_pooled(some))
    pairs = sorted({(old[image], new[image]) for image in kept})
    assert [b for _, b in pairs] == list(range(some.num_classes))
    # The test images are those of the same classes, under the same labels.
    old_of = {b: a for a, b in pairs}
    test, all_test = dict(_stored(some.test.data)), dict(_stored(dataset.test.data))
    assert test and some.test.num_examples == len(test)
    for image, label in test.items():
        assert all_test[image] == old_of[label]
    (public,) = some.public_examples().batch(100)
    assert public["image"].shape == (some.public.num_examples, *some.image_shape)
    assert public["image"].dtype == "uint8" and not public["label"].numpy().any()
    other = [_load(folder, num_public_classes=1, seed=s) for s in range(1, 9)]
    assert any(dict(_pooled(o)).keys() != new.keys() for o in other)


def test_unseen_classes_are_held_by_nobody(folder, dataset):
    some = _load(folder, num_public_classes=1, num_unseen_classes=2)
    public_alone = _load(folder, num_public_classes=1)
    assert some.num_classes == 3 and some.unseen.num_classes == 2
    for one, other in zip(some.public.data, public_alone.public.data, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
    unseen = dict(_stored(some.unseen.data))
    assert len(unseen) == some.unseen.num_examples == 2 * (8 + 2)
    images = {image for image, _ in _pooled(some)}
    tested = {image for image, _ in _stored(some.test.data)}
    assert not unseen.keys() & (images | tested)
    # They are all the images of two classes, under the labels 0 and 1.
    old = dict([*_pooled(dataset), *_stored(dataset.test.data)])
    assert len({(old[image], label) for image, label in unseen.items()}) == 2
    assert set(unseen.values()) == {0, 1}
    kept = dict(_pooled(public_alone)).keys() - unseen.keys()
    assert images == kept
    ready = next(iter(some.unseen_examples().batch(100)))
    assert ready["image"].shape == (20, *some.image_shape)
    assert "20 images of 2 unseen classes" in some.summary()
    fingerprint = some.fingerprint()
    assert fingerprint["unseen rows"] != dataset.fingerprint()["unseen rows"]


# Bad input: one clear line.


@pytest.fixture
def error_of(miniature, tmp_path):
    """Loads a miniature in which some files are replaced, or missing (None)."""

    def load(changes):
        files = {k: v for k, v in {**miniature, **changes}.items() if v is not None}
        own_images.write(tmp_path, files)
        with refused(f"^data_dir={tmp_path}") as error:
            _load(tmp_path)
        return str(error.value)

    return load


def _with_line(number, line):
    lines = list(_annotation_lines())
    lines[number - 1] = line
    return {_ANNOTATIONS: "".join(lines).encode()}


@pytest.mark.parametrize(
    ("number", "line", "reason"),
    [
        (3, "val_2.JPEG\tn99999999\t0\n", "val_2.JPEG has the class 'n99999999'"),
        (12, "val_77.JPEG\tn01443537\t0\n", "val_11.JPEG has no line"),
    ],
)
def test_annotation_that_does_not_fit(error_of, number, line, reason):
    message = error_of(_with_line(number, line))
    assert "val/val_annotations.txt:" in message
    assert reason in message


def test_a_validation_set_without_images(error_of, miniature):
    images = [name for name in miniature if "/val/images/" in name]
    changes = {**dict.fromkeys(images), _ANNOTATIONS: b""}
    assert error_of(changes).endswith("val_annotations.txt has no image.")


def test_public_classes_must_leave_a_test(miniature, tmp_path):
    of_class = [f"{_ROOT}val/images/val_{i}.JPEG" for i in (0, 6)]
    files = {k: v for k, v in miniature.items() if "/val/" not in k or k in of_class}
    lines = [line for line in _annotation_lines() if _WNIDS[0] in line]
    own_images.write(tmp_path, {**files, _ANNOTATIONS: "".join(lines).encode()})
    with refused("val has none of clients' classes"):
        _load(tmp_path, num_public_classes=4, seed=2)
    for options in ({"num_public_classes": 5}, {"num_unseen_classes": 1}):
        with refused(r"num_(public|unseen)_classes=\d must be at least"):
            _load(tmp_path, **options)


@pytest.mark.parametrize(
    ("wnids", "message"),
    [
        ((*_WNIDS, "n11111111"), "the class n11111111 is in "),
        (_WNIDS[:-1], f"the class {_WNIDS[-1]} is in "),
    ],
)
def test_classes_that_are_not_those_listed(error_of, wnids, message):
    text = "".join(f"{wnid}\n" for wnid in wnids)
    assert message in error_of({f"{_ROOT}wnids.txt": text.encode()})


# The real images.


@pytest.fixture(scope="module")
def real(test_data):
    return tiny_imagenet.load(test_data / "tiny-imagenet-sub")


def test_real_archive(real):
    assert real.num_classes == 200 and real.test.num_examples == 10_000
    # 100 images of each class in 20 shares of 5, 200 classes in 10 groups of 20.
    assert real.num_clients == 200
    for client in real.train.client_ids:
        assert real.num_examples(client) == 100
        assert len(real.positives(client)) == 20
    labels = np.concatenate([real.train.labels(k) for k in real.train.client_ids])
    np.testing.assert_array_equal(np.bincount(labels), [100] * 200)
    test_labels = [int(e["label"]) for e in real.test.data]
    np.testing.assert_array_equal(np.bincount(test_labels), [50] * 200)
