import shutil

import numpy as np
import pytest

from tests.datasets.images import own_images, small_faces  # noqa: F401: for TFDS
from tests.refusals import refused
from tff_fedss.datasets import images
from tff_fedss.datasets.images import tfds_index


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


def load(folder, name="small_faces/plain", **keys):
    return tfds_index.load(name, folder / "data", **keys)


def pixels_of(index):
    return {
        images.index.formats.pixels(index.encoded(row)).tobytes(): row
        for row in range(len(index))
    }


def test_images_classes_and_clients(folder):
    index = load(folder, client="person")
    assert len(index) == 18 and index.note == "left out: the splits extra"
    rows = pixels_of(index)
    for k in range(18):
        row = rows[own_images.picture(k).tobytes()]
        assert index.class_names[index.labels[row]] == ("glad" if k % 2 else "sad")
        assert index.client_names[index.clients[row]] == str(9 + k % 3)
        assert index.splits[row] == (images.layout.TEST if k >= 12 else 0)
    assert index.client_names == ["9", "10", "11"]


def test_any_feature_may_be_the_class(folder):
    index = load(folder, "small_faces/plain:1.2.0", label="place")
    assert index.class_names == [f"place {k}" for k in range(4)]
    assert index.clients is None
    index = load(folder, label="place", client="place")
    assert index.client_names == index.class_names


def test_texts_that_are_not_utf_8_stay_distinct():
    names, numbers = tfds_index._numbered(np.array([b"\xe9", b"\xe8"], object))
    assert names == ["\\xe8", "\\xe9"] and list(numbers) == [1, 0]


def test_it_is_listed_once(folder, monkeypatch):
    first = load(folder)
    monkeypatch.setattr(tfds_index.records, "_scan", None)
    again = load(folder)
    assert pixels_of(first) == pixels_of(again)
    rows = np.arange(12)
    assert first.fingerprint(rows) == again.fingerprint(rows)


def test_damage_is_named(folder, tmp_path):
    load(folder)
    shutil.copytree(folder / "data", tmp_path / "data")
    (path,) = (tmp_path / "data").rglob("*train.tfrecord*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with refused("train.tfrecord.*cut off or damaged"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name, keys, message",
    [
        ("small_faces:7.0.0", {}, "name=small_faces:7.0.0 cannot be prepared"),
        ("small_faces/plain", {"image": "x"}, "image=x: .* image can be the i"),
        ("small_faces/plain", {"client": "y"}, "client=y: .*person, place can"),
    ],
)
def test_bad_names_are_named(folder, name, keys, message):
    with refused(message):
        load(folder, name, **keys)


def test_data_without_a_known_split_are_named(folder):
    with refused("found the splits train, test, extra; expected training"):
        load(folder, splits={"training": images.layout.TRAIN})
