"""Stanford Online Products: from the original archive to the clients."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests import sop_archive
from tests.datasets.images import own_images
from tff_fedss.datasets import stanford_online_products as sop
from tff_fedss.datasets.federated import split_csv
from tff_fedss.errors import InvalidInputError

_TRAIN, _TEST = sop_archive.listings(
    sop_archive.made_up_products([5, 3, 7, 2, 6, 4, 8, 5, 3]),
    sop_archive.made_up_products([3] * 20)[9:],
)
_CLASS = {image_id: class_id for image_id, class_id, _, _ in [*_TRAIN, *_TEST]}
_TRAIN_IDS = [row[0] for row in _TRAIN]
_TEST_IDS = [row[0] for row in _TEST]
_ZIP = sop_archive.FOLDER + ".zip"
_SIZES = dict(image_size=8, images_per_client=10)


def _archive():
    return sop_archive.files(_TRAIN, _TEST)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with the zip."""
    folder = tmp_path_factory.mktemp("sop")
    own_images.write(folder / _ZIP, _archive())
    return folder


@pytest.fixture(scope="module")
def dataset(prepared):
    return sop.load(prepared, **_SIZES)


def _ids(examples):
    """The image_ids of examples that are ready, read from their pixels."""
    return [sop_archive.image_id_of(e["image"]) for e in examples.as_numpy_iterator()]


def _clients(dataset):
    seed = np.array([0, 0], np.int32)
    return {
        client_id: _ids(dataset.client_examples(client_id, seed))
        for client_id in dataset.train.client_ids
    }


@pytest.fixture(scope="module")
def clients(dataset):
    return _clients(dataset)


# The clients.


def test_every_training_image_is_with_one_client(clients):
    assert [len(ids) for ids in clients.values()] == [10, 10, 10, 10, 3]
    assert sorted(i for ids in clients.values() for i in ids) == _TRAIN_IDS


def test_labels_and_positives_are_those_of_the_images(dataset, clients):
    for client_id, ids in clients.items():
        data = dataset.train.create_tf_dataset_for_client(client_id)
        labels = [e["label"] for e in data.as_numpy_iterator()]
        assert labels == [_CLASS[i] - 1 for i in ids]
        assert dataset.positives(client_id).tolist() == sorted(set(labels))
        assert dataset.num_examples(client_id) == len(ids)
    pooled = [e["label"] for e in dataset.pooled_examples().as_numpy_iterator()]
    assert pooled == [_CLASS[i] - 1 for i in _TRAIN_IDS]
    sizes = [len(dataset.positives(client_id)) for client_id in clients]
    assert dataset.max_positives == max(sizes)


def test_the_seed_decides_the_partition(prepared, clients):
    assert _clients(sop.load(prepared, **_SIZES)) == clients
    other = _clients(sop.load(prepared, **_SIZES, seed=1))
    assert other != clients
    assert sorted(i for ids in other.values() for i in ids) == _TRAIN_IDS


def test_the_test_images_are_of_other_classes(dataset):
    ids = _ids(dataset.test_examples())
    assert sorted(ids) == _TEST_IDS
    labels = [e["label"] for e in dataset.test.data.as_numpy_iterator()]
    assert labels == [_CLASS[i] - 1 for i in ids]
    assert min(labels) >= dataset.num_classes
    assert "not the original, which has 59,551 of 11,318 classes" in dataset.note


def test_pixels_are_those_of_the_files(prepared):
    # Resized to more bytes than the files have, they are kept as they are.
    dataset = sop.load(prepared, image_size=32, images_per_client=10)
    read = dataset.preprocessing.read
    for example in dataset.test.data.take(3):
        image = read(example["image"]).numpy()
        encoded = sop_archive.jpeg(sop_archive.image_id_of(image))
        expected = tf.io.decode_image(encoded, channels=3)
        np.testing.assert_array_equal(image, expected)
        pillow = np.asarray(Image.open(io.BytesIO(encoded))).astype(int)
        assert np.abs(image - pillow).max() <= 2


# Where the data may be.


@pytest.mark.parametrize("name", [_ZIP, "products.ZIP", "folder"])
def test_every_place_gives_the_same_clients(name, tmp_path, clients):
    data_dir = own_images.write(tmp_path / name, _archive())
    before = list(tmp_path.iterdir())
    assert _clients(sop.load(data_dir, **_SIZES)) == clients
    if data_dir.is_dir():
        unpacked = (data_dir / sop_archive.FOLDER).rename(data_dir / "SOP")
        assert _clients(sop.load(unpacked, **_SIZES)) == clients
    assert list(tmp_path.iterdir()) == before


def test_no_data_dir_is_not_the_current_folder(prepared, monkeypatch):
    monkeypatch.chdir(prepared)
    for nothing in (None, ""):
        with pytest.raises(InvalidInputError, match="`data_dir` must name a folder"):
            sop.load(nothing)


# What can be wrong with the listings.


@pytest.mark.parametrize(
    ("part", "line", "text", "reason"),
    [
        ("train", 2, "1 0 1 a.JPG", ":2: the class_id '0' is not in 1"),
        ("train", 6, "2 1 1 x.JPG", ":6: the image_id '2' is already in .*:3"),
        ("train", 3, "2 1 1 ../a.JPG", ":3: there is no file .*/../a.JPG"),
        ("train", len(_TRAIN) + 1, "43 11 1 a.JPG", " has the class_id 10"),
        ("test", 5, "47 3 1 a.JPG", ":5: class_id 3 is one of Ebay_train.txt"),
    ],
)
def test_a_bad_listing_is_named_with_its_line(part, line, text, reason, tmp_path):
    lines = sop_archive.text({"train": _TRAIN, "test": _TEST}[part]).splitlines()
    lines[line - 1] = text.encode()
    listing = {f"{sop_archive.FOLDER}/Ebay_{part}.txt": b"\n".join(lines)}
    own_images.write(tmp_path / _ZIP, _archive() | listing)
    with pytest.raises(InvalidInputError, match=rf"Ebay_{part}\.txt{reason}"):
        sop.load(tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_listing_without_images_is_named(part, tmp_path):
    name = f"{sop_archive.FOLDER}/Ebay_{part}.txt"
    header = sop_archive.text([])
    own_images.write(tmp_path / _ZIP, _archive() | {name: header})
    with pytest.raises(InvalidInputError, match=rf"Ebay_{part}\.txt has no image"):
        sop.load(tmp_path)


# What can be wrong with the images and the archive.


@pytest.mark.parametrize(("rows", "unpacked"), [(_TRAIN, False), (_TEST, True)])
def test_missing_and_corrupt_images_are_named_and_can_be_mended(
    rows, unpacked, tmp_path, clients
):
    name = f"{sop_archive.FOLDER}/{rows[7][3]}"
    target = tmp_path if unpacked else tmp_path / _ZIP

    whole = _archive()
    own_images.write(target, {**whole, name: whole[name][:-20]})
    with pytest.raises(InvalidInputError, match=f"{name} is cut off or damaged"):
        sop.load(tmp_path, **_SIZES)
    webp = own_images.encoded(own_images.picture(0), "WEBP")
    own_images.write(target, {**whole, name: webp})
    with pytest.raises(InvalidInputError, match=f"{name} is no whole JPEG or PNG"):
        sop.load(tmp_path, **_SIZES)
    without = {key: value for key, value in whole.items() if key != name}
    if unpacked:
        (tmp_path / name).unlink()
    own_images.write(target, without)
    with pytest.raises(InvalidInputError, match=f":9: there is no file '{name}'"):
        sop.load(tmp_path, **_SIZES)

    own_images.write(target, whole)
    assert _clients(sop.load(tmp_path, **_SIZES)) == clients


# A partition from a file.


@pytest.fixture
def partition_csv(prepared, tmp_path):
    """Writes a partition and returns its path and its lines."""
    train = sop.read_train_listing(prepared)
    partition = sop.make_partition(train, 10)
    path = tmp_path / "clients.csv"
    split_csv.write(path, sop.to_split(train, partition))
    return path, path.read_text().splitlines()


def test_the_written_partition_is_the_one_that_load_makes(
    partition_csv, prepared, clients
):
    path, lines = partition_csv
    assert _clients(sop.load(prepared, image_size=8, clients_csv=path)) == clients
    rows = [line.split(",") for line in lines[1:]]
    assert rows == [
        [client_id, str(i), str(_CLASS[i] - 1)]
        for client_id, ids in clients.items()
        for i in ids
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("client_0,1,0\nclient_0,999,3", "'999' is 3; expected, .* no such image"),
        ("client_0,1,8", "'1' is 8; expected, .* 0"),
        ("", "'1' is missing; expected, .* 0"),
    ],
)
def test_a_partition_that_does_not_fit(partition_csv, prepared, row, reason):
    path, lines = partition_csv
    lines = [*(line for line in lines if ",1," not in line), row]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidInputError, match=f"clients.csv: .* image_id {reason}"):
        sop.load(prepared, image_size=8, clients_csv=path)
