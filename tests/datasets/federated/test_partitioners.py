import numpy as np
import pytest

from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.partitioners import (
    Chunks,
    Classes,
    Dirichlet,
    Iid,
    Mixed,
    Natural,
    Quantity,
)
from tff_fedss.errors import InvalidInputError

LABELS = np.repeat(np.arange(10), 60)
OF_CLIENT = np.arange(600) % 7
NAMES = [f"person {k}" for k in range(8)]  # The last one has no image.


def split(partitioner, seed=0):
    return partitioner.split(LABELS, np.random.default_rng(seed), OF_CLIENT, NAMES)


@pytest.mark.parametrize(
    "partitioner, num_clients",
    [
        (Iid(12), 12),
        (Natural(), 7),
        (Dirichlet(clients=12), 12),
        (Classes(5, 12), 12),
        (Chunks(12), 12),
        (Quantity(clients=12), 12),
        (Mixed(2, 25), 10),
    ],
)
def test_every_image_goes_to_one_client(partitioner, num_clients):
    found = split(partitioner)
    np.testing.assert_array_equal(np.sort(found.order), np.arange(600))
    assert (found.sizes > 0).all()
    assert found.num_clients == num_clients
    np.testing.assert_array_equal(found.order, split(partitioner).order)
    assert (found.order != split(partitioner, 1).order).any()


def test_natural_clients_are_those_of_the_data():
    found = split(Natural())
    assert found.client_ids == NAMES[:7]
    for k, (_, examples) in enumerate(found.items()):
        assert (OF_CLIENT[examples] == k).all() and len(examples) == sum(k == OF_CLIENT)


def test_iid_clients_are_alike():
    found = split(Iid(7))
    assert found.sizes.max() - found.sizes.min() <= 1
    counts = np.stack([np.bincount(LABELS[e], minlength=10) for _, e in found.items()])
    # 60 images of a class on 7 clients, 8.6 on average, standard deviation 2.7.
    assert counts.min() >= 1 and counts.max() <= 20


def test_without_a_number_clients_have_about_a_hundred_images():
    assert split(Iid()).num_clients == 6


@pytest.mark.parametrize("sigma, spread", [(0.0, 1.02), (0.5, 2.0), (2.0, 20.0)])
def test_sizes_are_log_normal(sigma, spread):
    found = split(Quantity(sigma, 20))
    ratio = found.sizes.max() / found.sizes.min()
    assert ratio <= spread if sigma == 0 else ratio > spread


def test_log_normal_sizes_have_that_distribution():
    rng = np.random.default_rng(0)
    found = partitions.quantity(10**7, 5000, 0.8, 1, rng)
    logs = np.log(found.sizes)
    # Standard errors of mean and deviation: 0.011 and 0.008.
    assert abs(logs.std() - 0.8) < 0.04
    quartiles = np.quantile((logs - logs.mean()) / logs.std(), [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quartiles, [-0.6745, 0, 0.6745], atol=0.06)


def test_every_client_has_the_least_size():
    for partitioner in (Quantity(3.0, 20, 9), Dirichlet(1.0, 20, 9)):
        assert split(partitioner).sizes.min() >= 9


@pytest.mark.parametrize("alpha", [0.2, 1.0, 50.0])
def test_shares_of_a_class_are_dirichlet(alpha):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(400), 1000)
    found = partitions.dirichlet(labels, 5, alpha, 1, rng)
    shares = np.stack(
        [np.bincount(labels[e], minlength=400) / 1000 for _, e in found.items()]
    )
    # Of Dir_K(alpha): mean 1 / K, variance (K - 1) / K^2 / (K alpha + 1).
    np.testing.assert_allclose(shares.mean(1), 0.2, atol=0.08)
    variance = 4 / 25 / (5 * alpha + 1)
    assert abs(shares.var() / variance - 1) < 0.15


def test_no_place_among_clients_goes_short():
    # Of 3 images a class, which nearly all clients get none of.
    labels = np.repeat(np.arange(2000), 3)
    sizes = partitions.dirichlet(labels, 200, 5.0, 1, np.random.default_rng(0)).sizes
    # 30 on average, with a standard error of about 0.8 for 50 of them.
    np.testing.assert_allclose(sizes.reshape(4, 50).mean(1), 30, atol=3)


def test_classes_per_client():
    found = split(Classes(5, 12))
    for _, examples in found.items():
        assert len(np.unique(LABELS[examples])) == 5


def test_chunks_keep_classes_whole_but_at_the_cuts():
    found = split(Chunks(10))
    of_class = [np.unique(LABELS[examples]) for _, examples in found.items()]
    assert all(len(classes) == 1 for classes in of_class)


@pytest.mark.parametrize(
    "partitioner, message",
    [
        (Iid(601), "clients=601 must be at least 1 and at most 600"),
        (Iid(0), "clients=0 must be at least 1"),
        (Dirichlet(0.0), "alpha=0.0 must be above 0"),
        (Dirichlet(0.01, 100), "100 draws with alpha=0.01 left one of 100 clients"),
        (Quantity(float("nan")), "sigma=nan must be"),
        (
            Quantity(clients=10, min_size=61),
            "min_size=61 must be at least 1 and at most 60",
        ),
        (Classes(11, 2), "is 22; expected"),
    ],
)
def test_bad_options_are_named(partitioner, message):
    with pytest.raises(InvalidInputError, match=message):
        split(partitioner)


def test_natural_clients_need_clients():
    with pytest.raises(InvalidInputError, match="partition=natural needs clients"):
        Natural().split(LABELS, np.random.default_rng(0))
