"""The pieces of a round, put together by hand, are the round."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy
from tff_fedss.runtime import arguments, cluster_cut, parts

SCALARS = tff.FederatedType(np.float32, tff.CLIENTS)
AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)


def struct(*parts):
    return tff.structure.Struct.unnamed(*parts)


def in_parts(context, comp, arg, clients_per_part):
    """Does a computation by its pieces, and returns them too."""
    pieces = cluster_cut.cut(comp)
    parameter = comp.type_signature.parameter
    sent, tables = context.invoke(pieces.serve, arguments.of_server(arg, parameter))
    total = None
    for start in range(0, arguments.count_clients(arg, parameter), clients_per_part):
        part = slice(start, start + clients_per_part)
        clients = arguments.of_clients(arg, parameter, part)
        kept = rows = ()
        if pieces.prepare is not None:
            keys, kept = context.invoke(pieces.prepare, clients)
            rows = context.invoke(pieces.select, struct(tables, keys))
        own_arguments = clients if pieces.work_reads_arguments else ()
        own = context.invoke(pieces.work, struct(own_arguments, kept, sent, rows))
        total = (
            own if total is None else context.invoke(pieces.merge, struct(total, own))
        )
    empty = arguments.without_clients(arg, parameter)
    return context.invoke(pieces.finish, struct(empty, total)), pieces


@pytest.mark.parametrize(
    "method", ["fedss", pytest.param("full_softmax", marks=pytest.mark.slow)]
)
def test_a_round_in_parts_is_the_round(in_process_context, method):
    process, clients = toy.build(method), toy.to_tff(toy.make_cohort())
    state = process.next(process.initialize(), clients).state
    arg = tff.structure.Struct([("state", state), ("clients", clients)])
    expected = process.next(state, clients)
    # In a single part nothing is added in another order.
    whole, pieces = in_parts(in_process_context, process.next, arg, 3)
    assert type(whole) is type(expected) and type(whole.state) is type(state)
    tf.nest.map_structure(np.testing.assert_array_equal, whole, expected)
    parts, _ = in_parts(in_process_context, process.next, arg, 2)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        parts,
        expected,
    )
    assert (pieces.prepare is None) == (method == "full_softmax")


def test_a_client_without_server(in_process_context):
    @tff.federated_computation(SCALARS)
    def total(xs):
        return tff.federated_sum(xs)

    result, pieces = in_parts(in_process_context, total, [1.0, 2.0, 3.0], 2)
    assert result == 6.0 and pieces.work_reads_arguments


def test_two_selections_a_broadcast_and_an_argument_in_one_client(in_process_context):
    @tff.tensorflow.computation(np.float32, np.int32)
    def row(table, key):
        return table * tf.cast(key, tf.float32)

    @tff.tensorflow.computation(np.float32)
    def keys_of(x):
        return tf.stack([tf.cast(x, tf.int32), 1])

    rows_type = tff.SequenceType(np.float32)

    @tff.tensorflow.computation(rows_type, rows_type, np.float32, np.float32)
    def join(a, b, x, factor):
        add = lambda total, value: total + value  # noqa: E731
        return a.reduce(0.0, add) + 10 * b.reduce(0.0, add) + 100 * x + 1000 * factor

    @tff.federated_computation(AT_SERVER, SCALARS, AT_SERVER)
    def both(table, xs, factor):
        keys = tff.federated_map(keys_of, xs)
        most = tff.federated_value(9, tff.SERVER)
        first = tff.federated_select(keys, most, table, row)
        second = tff.federated_select(keys, most, factor, row)
        sent = tff.federated_broadcast(factor)
        return tff.federated_sum(tff.federated_map(join, (first, second, xs, sent)))

    arg = struct(2.0, [1.0, 2.0, 3.0], 5.0)
    expected = both(2.0, [1.0, 2.0, 3.0], 5.0)
    assert expected > 15000
    result, _ = in_parts(in_process_context, both, arg, 2)
    assert result == expected


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
