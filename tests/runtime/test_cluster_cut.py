"""What of a round cannot be cut, and the sum of its parts."""

import itertools

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_fedss.runtime import cluster_cut, parts

SCALARS = tff.FederatedType(np.float32, tff.CLIENTS)


def test_what_cannot_be_cut_says_why():
    @tff.federated_computation(SCALARS)
    def stays(xs):
        return xs

    @tff.tensorflow.computation(np.float32, np.float32)
    def subtract(x, y):
        return x - y

    @tff.federated_computation(SCALARS)
    def twice(xs):
        mean = tff.federated_broadcast(tff.federated_mean(xs))
        return tff.federated_sum(tff.federated_map(subtract, (xs, mean)))

    with pytest.raises(cluster_cut.NotCuttableError, match="stays at the clients"):
        cluster_cut.cut(stays)
    with pytest.raises(cluster_cut.NotCuttableError, match="aggregat"):
        cluster_cut.cut(twice)


def test_clients_that_are_only_counted_are_sent():
    @tff.federated_computation(SCALARS)
    def count(xs):
        return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))

    # Otherwise an actor would know of no client.
    assert cluster_cut.cut(count).work_reads_arguments


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5, 6])
def test_parts_are_added_in_one_order(num_parts):
    found = set()
    for order in itertools.permutations(range(num_parts)):
        total = parts.Sum(num_parts, lambda a, b: (a, b))
        for index in order:
            total.add(index, index)
        found.add(total.result())
    assert len(found) == 1
    (result,) = found
    assert str(result).translate(str.maketrans("", "", "(), ")) == "".join(
        map(str, range(num_parts))
    )


def test_neighbours_are_added_as_soon_as_they_are_there():
    added = []
    total = parts.Sum(4, lambda a, b: added.append((a, b)) or a + b)
    for index in (2, 3, 1):
        total.add(index, 10**index)
    assert added == [(100, 1000)]
    total.add(0, 1)
    assert added[1:] == [(1, 10), (11, 1100)] and total.result() == 1111
