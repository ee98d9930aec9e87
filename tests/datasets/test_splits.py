import dataclasses

import numpy as np
import pytest

from tff_fedss.datasets import splits
from tff_fedss.datasets.federated.clients import InMemoryClientData
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError

# Client k has the classes k, k + 1 and, three times, the class 6 + k: its own.
CLIENTS, CLASSES = 5, 11


def make(**changes):
    clients = {}
    for k in range(CLIENTS):
        labels = np.array([k, k + 1, 6 + k, 6 + k, 6 + k], np.int32)
        images = np.full((5, 2, 2, 1), k, np.uint8) + labels[:, None, None, None]
        clients[f"client_{k}"] = images.astype(np.uint8), labels
    test = (np.zeros([2, 2, 2, 1], np.uint8), np.arange(2))
    dataset = FederatedDataset.from_arrays(clients, test)
    changes = {"pooled": lambda: None, "note": "by hand", **changes}
    return dataclasses.replace(dataset, **changes)


def examples_of(data):
    return [(e["image"].tobytes(), int(e["label"])) for e in data.as_numpy_iterator()]


def of_client(dataset, client_id):
    return examples_of(dataset.train.create_tf_dataset_for_client(client_id))


def held_out_of(apart, dataset):
    """The examples of the clients that one data set lacks."""
    return [
        example
        for name in dataset.train.client_ids
        if name not in apart.train.client_ids
        for example in of_client(dataset, name)
    ]


def test_validation_clients_train_nothing_and_leave_the_test():
    dataset = make()
    apart = splits.hold_out_clients(dataset, 0.4)
    assert apart.num_clients == 3
    assert "by hand; 2 clients held out for validation" in apart.summary()
    # Those that are left have what they had, in the same order.
    names = [k for k in dataset.train.client_ids if k in apart.train.client_ids]
    assert apart.train.client_ids == names
    for name in names:
        assert of_client(apart, name) == of_client(dataset, name)
    (other, _) = sorted({*dataset.train.client_ids} - {*names})
    with pytest.raises(ValueError, match="is not a client"):
        apart.train.create_tf_dataset_for_client(other)
    # Centralized training has their images alone, too.
    assert sorted(examples_of(apart.pooled_examples())) == sorted(
        example for name in names for example in of_client(dataset, name)
    )
    assert apart.test is dataset.test and apart.num_classes == CLASSES


def test_their_known_classes_take_the_place_of_the_test():
    dataset = make(unseen=make().test)
    apart = splits.hold_out_clients(dataset, 0.4, on_validation=True)
    assert (
        apart.train.client_ids == splits.hold_out_clients(dataset, 0.4).train.client_ids
    )
    trained = {
        label for name in apart.train.client_ids for _, label in of_client(apart, name)
    }
    theirs = held_out_of(apart, dataset)
    expected = [example for example in theirs if example[1] in trained]
    # Of each of the two, the class that only it has is left out.
    assert 0 < len(expected) <= len(theirs) - 6
    assert examples_of(apart.test_examples()) == expected
    measured = splits.hold_out_clients(dataset, 0.4).on_validation()
    assert examples_of(measured.test_examples()) == expected
    assert apart.on_validation is None and dataset.on_validation is None
    assert apart.test.num_examples == len(expected)
    assert apart.test.num_classes == len({label for _, label in expected})
    assert not apart.test_is_unseen and apart.unseen is None
    assert f"left out: {len(theirs) - len(expected)} of their images" in apart.note


def test_retrieval_takes_all_of_their_images():
    dataset = make(test_is_unseen=True)
    apart = splits.hold_out_clients(dataset, 0.4, on_validation=True)
    theirs = held_out_of(apart, dataset)
    assert examples_of(apart.test_examples()) == theirs
    assert apart.test.num_examples == len(theirs) == 10
    assert apart.test.num_classes == len({label for _, label in theirs})
    # They are of the n classes, though no client trains some of these.
    assert not apart.test_is_unseen and "left out" not in apart.note


def test_a_client_without_a_known_class_is_an_error():
    images = np.zeros([1, 2, 2, 1], np.uint8)
    train = InMemoryClientData(
        {f"client_{k}": (images, np.array([k], np.int32)) for k in range(3)}
    )
    dataset = make(train=train)
    with pytest.raises(InvalidInputError, match="use a larger validation_share"):
        splits.hold_out_clients(dataset, 0.1, on_validation=True)


def test_fingerprints_know_the_validation_clients():
    dataset = make()
    prints = [
        splits.hold_out_clients(dataset, *asked).fingerprint()
        for asked in ((0.1,), (0.2,), (0.2, True), (0.4, False, 1), (0.4,))
    ]
    assert prints[0] == prints[1]
    different = {tuple(sorted(print_.items())) for print_ in prints}
    assert len(different) == 4
    assert prints[0]["clients"] == 4 and prints[0]["clients (all)"] == 5
