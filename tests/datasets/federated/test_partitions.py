"""Partitions: complete, of the promised sizes, and random in the promised way."""

import functools
import hashlib

import numpy as np
import pytest

from tff_fedss import errors
from tff_fedss.datasets.federated.partitioners import (
    Chunks,
    Classes,
    Dirichlet,
    Iid,
    Mixed,
    Natural,
    Quantity,
)
from tff_fedss.datasets.federated.partitions import class_slots
from tff_fedss.errors import InvalidInputError


def _rng(seed=0, stream=0):
    return np.random.Generator(np.random.Philox(key=[seed, stream]))


def _labels(sizes, seed=1):
    """Labels with given numbers of each class, in random order."""
    labels = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return np.random.default_rng(seed).permutation(labels)


def _counts(partition, labels):
    """Images by client and class, int[K, n]."""
    clients = map(partition.examples, range(partition.num_clients))
    return np.stack(
        [np.bincount(labels[e], minlength=labels.max() + 1) for e in clients]
    )


_UNEVEN = [40, 1, 0, 7, 25, 25, 3, 60, 12, 30]
_WAYS = {
    "chunks": Chunks(23).split,
    "class_slots": functools.partial(class_slots, num_clients=15, classes_per_client=4),
    "mixed": Mixed(classes_per_client=3, images_per_class=4).split,
    "dirichlet": Dirichlet(0.3, 15).split,
    "iid": Iid(12).split,
    "quantity": Quantity(clients=12).split,
}


# What all of them promise.


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("sizes", [_UNEVEN, [20] * 10])
def test_every_example_is_in_exactly_one_client(way, sizes):
    labels = _labels(sizes)
    partition = _WAYS[way](labels, rng=_rng())
    parts = [partition.examples(k) for k in range(partition.num_clients)]
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert min(map(len, parts)) >= 1
    np.testing.assert_array_equal(partition.sizes, list(map(len, parts)))
    ids = [client_id for client_id, _ in partition.items()]
    assert ids == partition.client_ids == sorted(set(ids))
    assert ids[3] == "client_03" and len(ids) == len(parts)
    for (_, examples), part in zip(partition.items(), parts, strict=True):
        np.testing.assert_array_equal(examples, part)


@pytest.mark.parametrize("way", _WAYS)
def test_the_generator_decides(way):
    labels = _labels(_UNEVEN)
    first, again, other = (_WAYS[way](labels, rng=_rng(s)) for s in (4, 4, 5))
    assert first.order.tobytes() == again.order.tobytes()
    assert first.starts.tobytes() == again.starts.tobytes()
    assert first.order.tobytes() != other.order.tobytes()


@pytest.mark.parametrize("way", sorted(_WAYS.keys() - {"iid"}))
def test_a_clients_examples_are_not_sorted_by_class(way):
    labels = np.repeat(np.arange(30), 6)
    partition = _WAYS[way](labels, rng=_rng())
    returns = 0  # to a class that the client had before
    for _, examples in partition.items():
        changes = (np.diff(labels[examples]) != 0).sum()
        returns += changes - (len(set(labels[examples])) - 1)
    assert returns > 20


# chunks, at SOP's size: tests/data/test_partition_sop.py.


@pytest.mark.parametrize("num_images, clients", [(10, 6), (50, 30), (60, 12)])
def test_chunks_have_the_asked_number_of_clients(num_images, clients):
    labels = np.arange(num_images) // 5
    sizes = Chunks(clients).split(labels, _rng()).sizes
    assert len(sizes) == clients and np.ptp(sizes) <= 1


# class_slots: ImageNet-21k.


@pytest.mark.parametrize(
    ("sizes", "num_clients", "classes_per_client", "expected"),
    [
        ([50, 30, 40], 3, 2, [3, 1, 2]),  # 2.5, 1.5, 2: a tie, the first is raised
        ([500, 330, 170], 4, 2, [4, 3, 1]),  # 4, 2.64, 1.36
        ([100, 10, 1, 1], 4, 2, [4, 2, 1, 1]),  # both bounds
        ([1000, 1, 1, 1, 1], 6, 1, [2, 1, 1, 1, 1]),  # at least once each
    ],
)
def test_slots_by_hand(sizes, num_clients, classes_per_client, expected):
    labels = _labels(sizes)
    partition = class_slots(labels, num_clients, classes_per_client, _rng())
    holders = (_counts(partition, labels) > 0).sum(0)
    np.testing.assert_array_equal(holders, expected)


@pytest.mark.parametrize("seed", range(20))
def test_slots_in_random_tight_cases(seed):
    """Few clients and long classes: most of them straddle two rounds."""
    draw = np.random.default_rng(seed)
    num_clients, classes_per_client = draw.integers(1, 9, 2)
    sizes = draw.integers(0, 3 * num_clients + 1, classes_per_client * 2 + 1)
    sizes[:classes_per_client] += num_clients  # so that it can be done
    total = num_clients * classes_per_client
    labels = _labels(sizes)
    if total < (sizes > 0).sum():
        with pytest.raises(errors.InvalidInputError, match="a client for each class"):
            class_slots(labels, num_clients, classes_per_client, _rng(seed))
        return
    partition = class_slots(labels, num_clients, classes_per_client, _rng(seed))
    counts = _counts(partition, labels)
    assert set((counts > 0).sum(1)) == {classes_per_client}
    slots = (counts > 0).sum(0)
    np.testing.assert_array_equal(counts.sum(0), np.bincount(labels))
    for of_class in counts.T:
        if of_class.any():
            assert np.ptp(of_class[of_class > 0]) <= 1
    # Proportional within the bounds: one rate, rounded, explains all of them.
    present = np.bincount(labels)
    most = np.minimum(present, num_clients)
    rates = np.linspace(0, 1, 20_001)[:, None]
    ideal = np.clip(rates * present, np.minimum(present, 1), most)
    assert (np.abs(ideal - slots) < 1 + 1e-3).all(1).any()


def test_class_slots_meet_by_chance():
    # Equal classes of 8 slots: two clients share 20 * 20 / 500 = 0.8 classes on
    # average, also if they are neighbours.
    labels = _labels([80] * 500)
    partition = class_slots(labels, 200, 20, _rng())
    held = _counts(partition, labels) > 0
    shared = held.astype(int) @ held.T
    off_diagonal = shared[~np.eye(200, dtype=bool)]
    # 19,900 pairs: the standard error is below 0.01; 199 neighbours: about 0.06.
    assert abs(off_diagonal.mean() - 0.8 * 7 / 8 * 200 / 199) < 0.01
    neighbors = shared[np.arange(199), np.arange(1, 200)]
    assert abs(neighbors.mean() - 0.7) < 0.25


# Mixed: Omniglot's clients.


@pytest.mark.parametrize(
    ("num_classes", "per_class", "arguments", "num_clients", "digest"),
    [
        (659, 16, (20, 5), 99, "3ddb54b4474274d61963b4886448e4a5"),
        (30, 7, (7, 3), 8, "ebdfe3777ba15c40f44e84777980c3d9"),
    ],
)
def test_mixed_of_earlier_versions(
    num_classes, per_class, arguments, num_clients, digest
):
    """Results on Omniglot stay what they were: these hashes are of version 0.1."""
    labels = np.repeat(np.arange(num_classes, dtype=np.int32), per_class)
    omniglot_stream = int.from_bytes(b"omniglot", "big")
    partition = Mixed(*arguments).split(labels, _rng(0, omniglot_stream))
    assert partition.num_clients == num_clients
    sha = hashlib.sha256()
    for client_id, examples in partition.items():
        sha.update(client_id.encode() + examples.astype("<i8").tobytes())
    assert sha.hexdigest()[:32] == digest


LABELS = np.repeat(np.arange(10), 60)
OF_CLIENT = np.arange(600) % 7
NAMES = [f"person {k}" for k in range(8)]  # The last one has no image.


def split(partitioner, seed=0):
    return partitioner.split(LABELS, np.random.default_rng(seed), OF_CLIENT, NAMES)


def test_natural_clients_are_those_of_the_data():
    found = split(Natural())
    assert found.client_ids == NAMES[:7]
    for k, (_, examples) in enumerate(found.items()):
        assert sorted(examples) == np.flatnonzero(k == OF_CLIENT).tolist()


def test_iid_clients_are_alike():
    found = split(Iid(7))
    assert found.sizes.max() - found.sizes.min() <= 1
    assert [Iid().split(LABELS[:k], _rng()).num_clients for k in (9, 260)] == [1, 3]
    counts = _counts(found, LABELS)
    # 60 images of a class on 7 clients, 8.6 on average, standard deviation 2.7.
    assert counts.min() >= 1 and counts.max() <= 20


def test_log_normal_sizes_have_that_distribution():
    rng = np.random.default_rng(0)
    found = Quantity(0.8, 5000).split(np.zeros(10**7, np.int8), rng)
    logs = np.log(found.sizes)
    # Standard errors of mean and deviation: 0.011 and 0.008.
    assert abs(logs.std() - 0.8) < 0.04
    quartiles = np.quantile((logs - logs.mean()) / logs.std(), [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quartiles, [-0.6745, 0, 0.6745], atol=0.06)


def test_every_client_has_the_least_size():
    for partitioner in (Quantity(3.0, 20, 9), Dirichlet(1.0, 20, 9)):
        assert split(partitioner).sizes.min() >= 9


@pytest.mark.parametrize("alpha", [0.2, 50.0])
def test_shares_of_a_class_are_dirichlet(alpha):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(400), 1000)
    found = Dirichlet(alpha, 5).split(labels, rng)
    shares = _counts(found, labels) / 1000
    # Of Dir_K(alpha): mean 1 / K, variance (K - 1) / K^2 / (K alpha + 1).
    np.testing.assert_allclose(shares.mean(1), 0.2, atol=0.08)
    variance = 4 / 25 / (5 * alpha + 1)
    assert abs(shares.var() / variance - 1) < 0.15


def test_no_place_among_clients_goes_short():
    # Of 3 images a class, which nearly all clients get none of.
    labels = np.repeat(np.arange(2000), 3)
    sizes = Dirichlet(5.0, 200).split(labels, np.random.default_rng(0)).sizes
    # 30 on average, with a standard error of about 0.8 for 50 of them.
    np.testing.assert_allclose(sizes.reshape(4, 50).mean(1), 30, atol=3)


@pytest.mark.parametrize(
    "partitioner, message",
    [
        (Iid(601), "clients=601 must be at least 1 and at most 600"),
        (Iid(2.5), "clients=2.5 must be a whole number"),
        (Quantity(clients=10, min_size=1.5), "min_size=1.5 must be a whole number"),
        (Dirichlet(0.01, 100), "100 draws with alpha=0.01 left one of 100 clients"),
        (Quantity(clients=10, min_size=61), "min_size=61 .* and at most 60"),
        (Classes(11, 2), "2 clients of 11 classes each are 22 places; expected"),
    ],
)
def test_bad_options_are_named(partitioner, message):
    with pytest.raises(InvalidInputError, match=message):
        split(partitioner)
