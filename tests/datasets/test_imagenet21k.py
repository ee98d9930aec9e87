"""ImageNet-21k from its shards: clients, test images, and shards that are damaged."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests import imagenet21k_archive
from tests.refusals import message_of
from tff_fedss.datasets import imagenet21k
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.imagenet21k import dataset as shards
from tff_fedss.datasets.imagenet21k import preparation

# 25 classes, 150 images, 125 of them for training.
SIZES = [1, 2, 3, 4, 5, *[6, 7] * 8, 2, 8, 9, 12]


@pytest.fixture(scope="module")
def classes():
    return imagenet21k_archive.classes(SIZES)


@pytest.fixture(scope="module")
def prepared(classes, tmp_path_factory):
    root = tmp_path_factory.mktemp("imagenet21k")
    archive = imagenet21k_archive.write_folder(root / "tars", classes)
    preparation.prepare(archive, root / "out")
    return root / "out"


@pytest.fixture
def data_dir(prepared, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(prepared, tmp_path / "data")


@pytest.fixture(scope="module")
def numbers(classes):
    """The image that a color stands for: label and file name."""
    result = {}
    for label, wnid in enumerate(sorted(classes)):
        for name, image in classes[wnid].items():
            result[_color(tf.io.decode_jpeg(image).numpy())] = label, name
    assert len(result) == sum(SIZES), "two images of the same color"
    return result


def _color(image):
    return tuple(image[0, 0].tolist())


def _load(data_dir, **arguments):
    return imagenet21k.load(
        data_dir, **{"image_size": 8, "classes_per_client": 5, **arguments}
    )


def _names(dataset, data, numbers):
    """Names the images of stored examples, whose labels must be right."""
    result = []
    for example in data:
        image = dataset.preprocessing.read(example["image"]).numpy()
        label, name = numbers[_color(image)]
        assert label == example["label"]
        result.append(name)
    return result


# The clients.


def test_every_training_image_is_in_exactly_one_client(prepared, classes, numbers):
    dataset = _load(prepared, num_clients=6)
    assert dataset.num_classes == 25 and dataset.num_clients == 6
    names = []
    for client in dataset.train.client_ids:
        data = dataset.train.create_tf_dataset_for_client(client)
        found = _names(dataset, data, numbers)
        names += found
        assert dataset.num_examples(client) == len(found)
        wnids = sorted({name.partition("_")[0] for name in found})
        labels = [sorted(classes).index(wnid) for wnid in wnids]
        assert len(labels) == 5 == dataset.max_positives
        np.testing.assert_array_equal(dataset.positives(client), labels)
    test = _names(dataset, dataset.test.data, numbers)
    assert len(test) == dataset.test.num_examples == sum(round(0.2 * n) for n in SIZES)
    everything = [name for images in classes.values() for name in images]
    assert sorted(names + test) == sorted(everything)
    assert sorted(_names(dataset, dataset.pooled(), numbers)) == sorted(names)
    # In random order: the first ones are not of the first classes.
    assert test != sorted(test) and len({name[:9] for name in test[:10]}) > 5


def test_the_clients_are_a_function_of_the_seed(prepared):
    def rows(dataset):
        client = dataset.train.client_ids[2]
        data = dataset.train.create_tf_dataset_for_client(client)
        return [
            (e["image"]["path"], e["image"]["offset"]) for e in data.as_numpy_iterator()
        ]

    first, other = _load(prepared, seed=3), _load(prepared, seed=4)
    assert rows(first) != rows(other)
    assert rows(_load(prepared, seed=3)) == rows(first)


def test_no_image_is_read_before_it_is_needed(data_dir):
    expected = _load(data_dir, num_clients=9)
    for shard in data_dir.rglob("*.tfrecord-*"):
        shard.write_bytes(b"\0" * shard.stat().st_size)
    dataset = _load(data_dir, num_clients=9)
    assert dataset.train.client_ids == expected.train.client_ids
    for client in dataset.train.client_ids:
        np.testing.assert_array_equal(
            dataset.positives(client), expected.positives(client)
        )
    with pytest.raises(tf.errors.OpError):
        next(iter(dataset.test_examples()))


def test_the_paper_s_clients_from_the_sizes_of_the_classes():
    # As many classes and images as are reported of the fall 2011 release, of sizes as
    # uneven as its.
    num_classes, num_images, largest = 21_841, 14_197_122, 3_047
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(6.3, 1.2, num_classes).astype(np.int64).clip(1, largest)
    while difference := num_images - sizes.sum():
        some = rng.permutation(num_classes)[: abs(difference)]
        sizes[some] = (sizes[some] + np.sign(difference)).clip(1, largest)
    train = np.array([n - round(0.2 * n) for n in sizes.tolist()])
    labels = np.repeat(np.arange(num_classes), train)
    num_clients = imagenet21k.default_num_clients(sizes)
    partition = partitions.class_slots(labels, num_clients, 20, rng)
    assert partition.num_clients == 25_691
    assert 440 < partition.sizes.mean() < 444
    assert partition.sizes.min() > 350 and partition.sizes.max() < 500
    seen = np.zeros(len(labels), bool)
    seen[partition.order] = True
    assert seen.all() and len(seen) == len(partition.order)
    for k in range(0, partition.num_clients, 50):
        assert len(np.unique(labels[partition.examples(k)])) == 20


# Bad input.


def test_no_data_set(prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(prepared)
    for nothing in (None, ""):
        assert "`data_dir` must name" in message_of(_load, nothing)
    message = message_of(_load, tmp_path)
    assert message.startswith(f"data_dir={tmp_path}: found a folder without it")
    assert "prepare_imagenet21k" in message
    folder = tmp_path / "imagenet21k" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "preparation.json").write_text("{}")
    assert "imagenet21k/1.0.0, which is not finished" in message_of(_load, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"seed": -1}, "seed=-1 must"),
        ({"classes_per_client": 26}, "expected 25 "),
        ({"num_clients": 4}, "are 20 places; expected 25 "),
        ({"image_size": 20, "resize_size": 10}, "resize_size=10 must be at least 20"),
    ],
)
def test_arguments_out_of_range(prepared, arguments, problem):
    assert problem in message_of(_load, prepared, **arguments)


def test_damaged_shards_and_index(data_dir):
    folder = data_dir / "imagenet21k" / "1.0.0"
    shard = folder / shards.shard_name("test", 7, 25)
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    message = message_of(_load, data_dir)
    assert str(shard) in message and f"not {len(content):,}." in message
    shard.unlink()
    assert f"{shard}: 0 bytes" in message_of(_load, data_dir)
    shard.write_bytes(content)
    sizes = folder / "class_sizes.csv"
    content = sizes.read_bytes()
    sizes.write_bytes(content[: content.rindex(b"n")])
    assert f"{sizes}: " in message_of(_load, data_dir)
    sizes.write_bytes(content)
    index = folder / "index.npz"
    whole = index.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for content in (damaged, whole[:-100], b""):
        index.write_bytes(content)
        assert f"{index} is damaged" in message_of(_load, data_dir)
