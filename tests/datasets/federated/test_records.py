"""Records of TFRecord files: the index, the references and what they lead to."""

import collections
import pathlib
import struct

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.datasets.images import own_images
from tff_fedss.datasets.federated import partitions, records
from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.datasets.federated.record_writer import example, write_records
from tff_fedss.errors import InvalidInputError

_NUM_CLASSES = 7
_SIZES = (5, 1, 8, 3)  # records of each file
_PARSE = records.example_parser("picture", "class", _NUM_CLASSES)


def _encode(number, file_format="PNG"):
    return own_images.encoded(own_images.picture(number), file_format)


def _example(encoded, label):
    return example({"picture": encoded, "class": label})


def _label(number):
    return number * 5 % _NUM_CLASSES


@pytest.fixture
def paths(tmp_path):
    """Files of records with the numbers 0, 1, 2, ..., file by file."""
    number, paths = 0, []
    for i, size in enumerate(_SIZES):
        paths.append(tmp_path / f"{i}.tfrecord")
        numbers = range(number, number + size)
        write_records(paths[-1], [_example(_encode(j), _label(j)) for j in numbers])
        number += size
    return paths


@pytest.fixture
def build(cache):
    def build(paths, parse=_PARSE, what="test"):
        return records.build_index(paths, parse, what=what)

    return build


@pytest.fixture
def index(build, paths):
    return build(paths)


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_an_index_that_is_damaged_is_made_again(build, paths, tmp_path, damage):
    expected = np.array(build(paths).records)
    (file,) = (tmp_path / "cache").iterdir()
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    file.write_bytes(content[: len(content) - (5 if damage == "cut" else 0)])
    np.testing.assert_array_equal(build(paths).records, expected)


def _as_list(dataset):
    return list(dataset.as_numpy_iterator())


def _numbers(references):
    """The numbers of the records that references lead to, read from the bytes there."""
    by_content = {_encode(number): number for number in range(sum(_SIZES))}
    numbers = []
    for reference in references:
        content = pathlib.Path(reference["image"]["path"].decode()).read_bytes()
        offset = reference["image"]["offset"]
        payload = content[offset : offset + reference["image"]["length"]]
        example = tf.train.Example.FromString(payload)
        numbers.append(
            by_content[example.features.feature["picture"].bytes_list.value[0]]
        )
    return numbers


# The index.


def test_the_index_says_where_every_payload_is(index, paths):
    assert len(index) == sum(_SIZES)
    assert index.paths == tuple(map(str, paths))
    np.testing.assert_array_equal(index.records["file"], np.repeat(range(4), _SIZES))
    for number, row in enumerate(index.records):
        content = paths[row["file"]].read_bytes()
        payload = content[row["offset"] : row["offset"] + row["length"]]
        assert payload == _example(_encode(number), _label(number))
        assert row["label"] == _label(number)


def test_a_changed_file_is_read_again_and_its_old_index_removed(
    build, paths, index, tmp_path
):
    write_records(paths[1], [_example(_encode(99), 3), _example(_encode(98), 4)])
    again = build(paths)
    assert len(again) == len(index) + 1
    assert again.records["label"][5:7].tolist() == [3, 4]
    assert len(list((tmp_path / "cache").iterdir())) == 1


# What can be wrong with the files.


def _whole(numbers):
    return [_example(_encode(number), _label(number)) for number in numbers]


def _without(feature):
    example = tf.train.Example.FromString(_example(_encode(0), 0))
    del example.features.feature[feature]
    return example.SerializeToString()


_BAD_PAYLOADS = {
    "no example": (b"\xff\xff\xff\xff", "is not a tf.train.Example"),
    "no class": (_without("class"), "0 values of 'class'"),
    "class too large": (_example(_encode(0), 7), "class=7, not in 0..6"),
    "negative class": (_example(_encode(0), -1), "class=-1, not in 0..6"),
    "cut image": (_example(_encode(0, "JPEG")[:-30], 0), "image is cut off or damaged"),
}


@pytest.mark.parametrize("problem", _BAD_PAYLOADS)
def test_a_bad_record_is_named(build, paths, tmp_path, problem):
    payload, reason = _BAD_PAYLOADS[problem]
    write_records(paths[2], [*_whole([0, 1]), payload, *_whole([2])])
    with pytest.raises(InvalidInputError, match=reason) as raised:
        build(paths)
    start = sum(len(payload) + 16 for payload in _whole([0, 1]))
    where = f"{paths[2]}, record 2 (from byte {start:,}): "
    assert str(raised.value).startswith(where)
    assert not (tmp_path / "cache").exists(), "half an index was left"


@pytest.mark.parametrize("cut", [3, 12, 40, -1])
def test_a_file_cut_off_is_named(build, paths, cut):
    content = paths[2].read_bytes()
    second = 16 + struct.unpack("<Q", content[:8])[0]
    end = second + cut if cut > 0 else len(content) - 1
    paths[2].write_bytes(content[:end])
    number = 1 if cut > 0 else _SIZES[2] - 1
    with pytest.raises(InvalidInputError, match="cut off") as raised:
        build(paths)
    assert f"{paths[2]}, record {number} " in str(raised.value)


def test_a_file_without_a_record_is_named(build, paths):
    paths[1].write_bytes(b"")
    with pytest.raises(InvalidInputError, match="1.tfrecord: found no record"):
        build(paths)


@pytest.mark.parametrize("where", ["length", "payload"])
def test_a_changed_bit_is_found_by_the_checksums(build, paths, where):
    content = bytearray(paths[0].read_bytes())
    content[0 if where == "length" else 40] ^= 1
    paths[0].write_bytes(content)
    with pytest.raises(InvalidInputError, match="record 0 .*cut off or damaged"):
        build(paths)


# References.


def test_references_follow_the_rows(index, monkeypatch):
    rows = np.array([16, 0, 5, 6, 5, 13])
    elements = _as_list(records.references(index, rows))
    assert _numbers(elements) == rows.tolist()
    assert [e["label"] for e in elements] == [_label(row) for row in rows]

    monkeypatch.setattr(records, "_REFERENCES_AT_A_TIME", 4)
    in_parts = records.references(index, rows)
    assert _as_list(in_parts) == elements
    assert in_parts.cardinality() == len(rows)
    assert in_parts.element_spec == records.references(index, rows[:2]).element_spec


def test_read_image_gives_the_pixels_of_the_file(index):
    read = records.read_image("picture")
    data = records.references(index, np.arange(len(index)))
    for number, image in enumerate(data.map(lambda e: read(e["image"]))):
        np.testing.assert_array_equal(image, own_images.picture(number))


def test_reading_finds_what_changed_after_the_index_was_made(index, paths):
    content = bytearray(paths[0].read_bytes())
    content[40] ^= 1
    paths[0].write_bytes(content)
    read = records.read_image("picture")
    data = records.references(index, np.arange(2)).map(lambda e: read(e["image"]))
    with pytest.raises(tf.errors.DataLossError):
        _as_list(data)


# Clients.

_CLIENTS = {"b": [16, 0, 5], "a": [1, 2, 3, 4], "c": [6, 8, 15]}


@pytest.fixture
def client_data(index):
    order = np.concatenate(list(_CLIENTS.values()))
    starts = np.cumsum([0, *map(len, _CLIENTS.values())])
    partition = partitions.Partition(list(_CLIENTS), order, starts)
    return records.client_data(index, partition)


def test_clients_and_what_is_known_of_them_without_reading(client_data, paths):
    for path in paths:
        path.unlink()
    assert client_data.client_ids == ["b", "a", "c"]
    for client_id, rows in _CLIENTS.items():
        labels = sorted({_label(row) for row in rows})
        assert client_data.positives(client_id).tolist() == labels
        assert client_data.positives(client_id).dtype == np.int32
        assert client_data.num_examples(client_id) == len(rows)
    assert client_data.max_positives == 4


def test_a_clients_dataset_and_all_clients_dataset(client_data):
    datasets = []
    for client_id, rows in _CLIENTS.items():
        dataset = client_data.create_tf_dataset_for_client(client_id)
        assert dataset.element_spec == client_data.element_type_structure
        assert _numbers(_as_list(dataset)) == rows
        datasets += rows
        called_back = client_data.serializable_dataset_fn(client_id)
        assert _as_list(called_back) == _as_list(dataset)
    together = client_data.create_tf_dataset_from_all_clients(seed=1)
    assert sorted(_numbers(_as_list(together))) == sorted(datasets)


def test_a_tff_worker_reads_and_crops_the_records(client_data):
    preprocessing = Preprocessing(6, 8, records.read_image("picture"))
    seed = np.array([3, 4], np.int32)
    element = collections.OrderedDict(image=(np.uint8, [6, 6, 3]), label=np.int32)

    @tff.tensorflow.computation(tff.SequenceType(element))
    def stack(dataset):
        return dataset.batch(4, drop_remainder=True).get_single_element()

    stored = client_data.create_tf_dataset_for_client("a")
    found = stack(preprocessing.training(stored, seed))

    # From the bytes themselves, in this process.
    encoded = tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(
            image=[_encode(row) for row in _CLIENTS["a"]],
            label=np.array([_label(row) for row in _CLIENTS["a"]], np.int32),
        )
    )
    expected = _as_list(Preprocessing(6, 8).training(encoded, seed))
    np.testing.assert_array_equal(found["image"], [e["image"] for e in expected])
    np.testing.assert_array_equal(found["label"], [e["label"] for e in expected])
