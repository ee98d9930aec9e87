"""Fingerprints: the same for the same data, and another for any other."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests import landmarks_images
from tff_fedss import tasks
from tff_fedss.datasets import fingerprint, landmarks, synthetic
from tff_fedss.datasets.central import (
    identities,
    labelled_images,
    penn_treebank,
)
from tff_fedss.datasets.federated import record_writer, records
from tff_fedss.datasets.federated.clients import Counted, InMemoryClientData
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut


def test_the_digest_is_that_of_types_shapes_and_bytes():
    numbers = np.arange(6, dtype=">i4").reshape(2, 3)
    texts = np.array([b"ab", b""], object)

    def with_length(part):
        return len(part).to_bytes(8, "little") + part

    expected = b"".join(
        [
            with_length(b"i4 (2, 3)"),
            numbers.astype("<i4").tobytes(),
            *map(with_length, (b"O (2,)", b"ab", b"")),
        ]
    )
    digest = hashlib.blake2b(expected, digest_size=8).hexdigest()
    assert fingerprint.of({"x": [numbers, texts]}) == {"x": digest}
    names = hashlib.blake2b(with_length(b"ab") + with_length(b"c"), digest_size=8)
    kept = {"n": 3, "name": "toy", "shape": (2, 3), "names": ["ab", "c"]}
    assert fingerprint.of(kept) == {
        **kept,
        "shape": "2 x 3",
        "names": names.hexdigest(),
    }


def test_what_a_digest_tells_apart():
    a, b = np.arange(6, dtype=np.uint8), np.arange(6, 9, dtype=np.uint8)
    several = [
        [a, b],
        [b, a],
        np.concatenate([a, b]),
        [a.astype(np.int32), b],
        [a.reshape(2, 3), b],
        [a, b[::-1]],
        ["ab", "c"],
        ["a", "bc"],
        iter([[a], [b]]),
        iter([[b], [a]]),
    ]
    digests = {fingerprint.of({"x": part})["x"] for part in several}
    assert len(digests) == len(several)


def test_of_large_arrays_every_nth_row_counts(monkeypatch):
    monkeypatch.setattr(fingerprint, "MAX_BYTES", 250)
    rows = np.arange(1000, dtype=np.uint8).reshape(100, 10)
    digest = fingerprint.of_arrays([rows])
    for row, differs in ((0, True), (3, False), (4, True), (96, True), (99, False)):
        other = rows.copy()
        other[row, 5] += 1
        assert (fingerprint.of_arrays([other]) != digest) == differs


def test_of_many_images_a_fixed_sample_counts(monkeypatch):
    assert fingerprint.sample(np.full(1000, 10)).tolist() == list(range(1000))
    monkeypatch.setattr(fingerprint, "MAX_BYTES", 5000)
    sample = fingerprint.sample(np.full(1000, 10))
    assert len(sample) == 256 and sample[0] == 0 and sample[-1] == 996


def clients():
    """Two clients with two examples of two classes each."""
    images = np.arange(4 * 4 * 4, dtype=np.uint8).reshape(4, 4, 4, 1)
    return {
        "a": (images[:2].copy(), np.array([0, 1], np.int32)),
        "b": (images[2:].copy(), np.array([1, 1], np.int32)),
    }


def federated(by_client, test_value=7, **changes):
    test = (np.full([3, 4, 4, 1], test_value, np.uint8), np.zeros(3, np.int32))
    dataset = FederatedDataset.from_arrays(by_client, test, num_classes=2)
    return dataclasses.replace(dataset, **changes)


def _changed_label(data):
    data["a"][1][0] = 1


def _changed_pixel(data):
    data["b"][0][1, 3, 3, 0] ^= 1


def _missing_client(data):
    del data["b"]


def _other_order(data):
    data["a"] = data.pop("a")


_LABELS = {"classes of clients", "labels of training images"}
_ORDER = {*_LABELS, "names of clients", "contents of training images"}
_COUNTS = {"clients", "training images", "images per client", "images per class"}


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (_changed_label, {*_LABELS, "images per class"}),
        (_changed_pixel, {"contents of training images"}),
        (_missing_client, _ORDER | _COUNTS),
        (_other_order, _ORDER),
    ],
)
def test_what_changes_the_fingerprint_of_clients(change, keys):
    expected = federated(clients()).fingerprint()
    assert federated(clients()).fingerprint() == expected
    data = clients()
    change(data)
    found = federated(data).fingerprint()
    assert {key for key in expected if found[key] != expected[key]} == keys


def test_test_and_public_images_count():
    expected = federated(clients()).fingerprint()
    other = federated(clients(), test_value=8).fingerprint()
    assert {key for key in expected if other[key] != expected[key]} == {
        "contents of test images"
    }
    public = HeldOut.from_arrays(*clients()["a"])
    with_public = federated(clients(), public=public).fingerprint()
    assert set(with_public) - set(expected) == {"contents of public images"}


def test_client_data_of_any_kind_are_sampled():
    """Such as a user's own, which have no `fingerprint`."""

    def of(by_client):
        data = InMemoryClientData(by_client)
        plain = data.preprocess(lambda examples: examples)
        assert not hasattr(plain, "fingerprint")
        counted = Counted(plain, data.client_ids, data.num_examples, data.positives)
        return federated(by_client, train=counted).fingerprint()

    expected, data = of(clients()), clients()
    assert of(clients()) == expected
    _changed_pixel(data)
    assert of(data)["contents of some clients"] != expected["contents of some clients"]


def test_generated_data_are_told_apart_by_their_arguments():
    def of(num_classes=50, **options):
        return synthetic.glyphs(num_classes, **options).fingerprint()

    assert of()["seed of glyphs"] == 0
    others = [
        of(51),
        of(seed=1),
        of(image_size=20),
        of(mean_examples_per_class=6),
        of(clients_per_class=3),
        of(num_test_hands=19),
        of(public_examples_per_class=19),
        of(num_public_classes=0),
    ]
    assert of() not in others

    def identity(**options):
        return identities.GeneratedIdentities(100, **options).fingerprint()

    assert identity() == identity()
    assert identity() not in [identity(seed=1), identity(noise=0.4)]


def test_records_count_wherever_they_lie(tmp_path):
    data = landmarks_images.make(tmp_path / "source")
    assert landmarks_images.prepare(data, tmp_path / "first") == 0
    expected = landmarks.load(tmp_path / "first", image_size=60).fingerprint()
    shutil.move(tmp_path / "first", tmp_path / "second")
    moved = landmarks.load(tmp_path / "second", image_size=60)
    assert moved.fingerprint() == expected
    assert expected["records"] == expected["training images"] + expected["test images"]


def test_a_record_of_the_same_length_with_another_image(tmp_path):
    parse = records.example_parser("image", "class", 3)

    def of(folder, colour):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "x.tfrecord"
        # The length of the PNG does not depend on the colour of its one pixel.
        pixel = np.full([1, 1, 1], colour, np.uint8)
        image = tf.io.encode_png(pixel, compression=0).numpy()
        examples = [{"image": image, "class": label} for label in range(3)]
        record_writer.write_records(path, map(record_writer.example, examples))
        index = records.build_index([path], parse, what="x")
        return fingerprint.of(index.contents())

    first, second = of("first", 10), of("second", 11)
    assert first == of("third", 10)
    assert {key for key in first if first[key] != second[key]} == {
        "contents of records"
    }


def _labelled(last_label=1):
    images = np.arange(4 * 64 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)
    labels = np.array([0, 1, 0, last_label], np.int32)
    return labelled_images.LabelledImages(
        "toy", ("r", "g"), images, labels, images[:2], labels[:2]
    )


def _flatten():
    inputs = tf.keras.Input([8, 8, 3])
    return tf.keras.Model(inputs, tf.keras.layers.Flatten()(inputs))


def _images(last_label):
    data = clients()
    data["b"][1][1] = last_label
    return federated(data)


def _text(last_label):
    tokens = np.arange(20, dtype=np.int32) % 3
    tokens[-1] = last_label
    return penn_treebank.PennTreebank(tokens, tokens, tokens, ["a", "b", "c"])


def _identities(last_label):
    labels = np.array([0, 0, 1, 1, 2, last_label])
    part = (np.eye(6, dtype=np.float32), labels)
    return identities.ArrayIdentities("toy", part, part)


_TASKS = {
    "classification": lambda label: tasks.Classification(_images(label), _flatten),
    "labelled": lambda label: tasks.LabelledClassification(
        _labelled(label), _flatten, None
    ),
    "language": lambda label: tasks.LanguageModel(
        _text(label),
        num_steps=2,
        num_units=2,
        embedding_dim=2,
        logit_scale=1.0,
        batch_size=2,
        seed=0,
    ),
    "identities": lambda label: tasks.IdentityVerification(
        _identities(label),
        _flatten,
        logit_scale=1.0,
        batch_size=2,
        seed=0,
    ),
}


@pytest.mark.parametrize("name", _TASKS)
def test_every_task_has_the_fingerprint_of_its_data(name):
    found = _TASKS[name](1).fingerprint()
    assert found == _TASKS[name](1).fingerprint() != _TASKS[name](0).fingerprint()
    assert json.loads(json.dumps(found)) == found
    assert all(type(value) in (int, str) for value in found.values())
