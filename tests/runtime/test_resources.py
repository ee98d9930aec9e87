"""Every call of every client has resources of its own, as in a session of its own."""

import collections
import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import op_def_registry

from tests.arrays import assert_same
from tests.runtime.resource_probes import (
    ALL,
    ARGUMENTS,
    PROBES,
    X,
    after,
    fill,
    summary,
)
from tff_fedss import runtime
from tff_fedss.runtime import resources


@contextlib.contextmanager
def graph_of(name):
    """A graph with a probe in it: (graph, where x goes in, the result)."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.int32, [3])
        yield graph, x, ALL[name](x)


@functools.cache
def expected(name):
    """What a probe gives for each argument in a new session of TensorFlow."""
    results = []
    for argument in ARGUMENTS:
        with graph_of(name) as (_, x, result), tf.compat.v1.Session() as session:
            session.run(
                [
                    tf.compat.v1.global_variables_initializer(),
                    tf.compat.v1.tables_initializer(),
                ],
                {x: argument},
            )
            results.append(session.run(tf.nest.flatten(result), {x: argument}))
    return results


@functools.cache
def computation(name):
    return tff.tensorflow.computation(ALL[name], X)


def at_clients(computation):
    return tff.federated_computation(
        lambda values: tff.federated_map(computation, values),
        tff.FederatedType(X, tff.CLIENTS),
    )


def assert_expected(name, results):
    for result, right in zip(results, expected(name), strict=True):
        assert_same(tf.nest.flatten(result), right)


@pytest.fixture(scope="module")
def contexts():
    return [runtime.InProcessContext(clients_per_device=slots) for slots in (1, 4)]


use = tff.framework.get_context_stack().install


@pytest.mark.parametrize("name", ALL)
def test_each_call_begins_with_nothing(contexts, name):
    probe = computation(name)
    everywhere = at_clients(probe)
    for context in contexts:
        with use(context):
            for _ in range(2):
                assert_expected(name, everywhere(ARGUMENTS))
                assert_expected(name, [probe(x) for x in ARGUMENTS])


def test_tffs_own_runtime_gives_the_same(native_context):
    @tff.federated_computation(
        tff.FederatedType(X, tff.CLIENTS), tff.FederatedType(X, tff.SERVER)
    )
    def all_probes(values, value):
        return collections.OrderedDict(
            (
                name,
                (
                    tff.federated_map(computation(name), values),
                    tff.federated_map(computation(name), value),
                ),
            )
            for name in PROBES
        )

    with use(native_context):
        for k in range(2):
            for name, results in all_probes(ARGUMENTS, ARGUMENTS[k]).items():
                of_clients, at_server = results
                assert_expected(name, of_clients)
                assert_same(tf.nest.flatten(at_server), expected(name)[k])


def test_each_call_writes_a_summary_of_its_own(contexts, tmp_path):
    everywhere = at_clients(tff.tensorflow.computation(summary(str(tmp_path)), X))
    for context in contexts:
        with use(context):
            everywhere(ARGUMENTS)
    files = [str(path) for path in tmp_path.iterdir()]
    assert len(files) == 2 * len(ARGUMENTS)
    found = []
    for file in files:
        *_, last = tf.data.TFRecordDataset(file).as_numpy_iterator()
        (value,) = tf.compat.v1.Event.FromString(last).summary.value
        found.append(int(value.simple_value))
    assert sorted(found) == sorted(2 * [x[0] for x in ARGUMENTS])


def operations():
    """All of TensorFlow's OpDefs."""
    found = op_def_pb2.OpList()
    found.ParseFromString(
        bytes(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    )
    return found.op


def test_every_operation_that_makes_a_resource_is_tried_above_or_refused():
    tried = set()
    for name in ALL:
        with graph_of(name) as (graph, x, _):
            summary("")(x)
            graph_def = graph.as_graph_def()
        tried |= {node.op for node in graph_def.node}
        tried |= {n.op for f in graph_def.library.function for n in f.node_def}
    makers = {op.name for op in operations() if resources.makes_resource(op)}
    assert {"HashTableV2", "Barrier", "Stage", "VariableV2", "TensorArrayV3"} <= makers
    refused = {op for op in makers if resources.kind_of(op) is resources.Kind.REFUSED}
    assert makers - refused <= tried
    for op in refused:
        graph_def = tf.compat.v1.GraphDef()
        graph_def.node.add(name="it", op=op)
        with pytest.raises(NotImplementedError, match=f"does not run {op} operations"):
            resources.plan(graph_def, "")


def test_an_operation_that_nobody_knows_is_refused(monkeypatch):
    op_def = op_def_pb2.OpDef(name="OperationOfTomorrow", is_stateful=True)
    op_def.output_arg.add(name="handle", type=types_pb2.DT_RESOURCE)
    known = op_def_registry.get
    monkeypatch.setattr(
        op_def_registry, "get", lambda op: op_def if op == op_def.name else known(op)
    )
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.add(name="it", op=op_def.name)
    with pytest.raises(NotImplementedError, match=op_def.name):
        resources.plan(graph_def, "")


def test_a_call_that_fails_leaves_nothing(contexts):
    @tff.tensorflow.computation(X)
    def enqueued(x):
        size = fill(tf.queue.FIFOQueue(4, [tf.int32], [[]]), x)
        check = after(size, lambda: tf.debugging.Assert(x[0] > 0, ["too small"]))
        return after(check, lambda: tf.identity(size))

    everywhere = at_clients(enqueued)
    for context in contexts:
        with use(context):
            for _ in range(2):
                with pytest.raises(runtime.ClientError, match="too small"):
                    everywhere([0 * x for x in ARGUMENTS])
                # In a queue that was left full this would never end.
                assert everywhere(ARGUMENTS) == [3, 3, 3, 3]


INTS = tff.SequenceType(np.int32)


@tff.tensorflow.computation(INTS)
def positions(data):
    """A data set whose elements are looked up when somebody asks for them."""
    keys = data.batch(9).get_single_element()
    values = tf.lookup.KeyValueTensorInitializer(keys, tf.range(tf.size(keys)))
    return data.map(tf.lookup.StaticHashTable(values, -1).lookup)


@tff.tensorflow.computation(INTS)
def noisy(data):
    generator = tf.random.Generator.from_seed(5)
    return data.map(lambda x: generator.uniform([], 0, 1000, tf.int32) + x * 0)


@tff.tensorflow.computation(INTS)
def as_vector(data):
    return data.batch(9).get_single_element()


@pytest.mark.parametrize("make", [positions, noisy], ids=["table", "generator"])
def test_data_sets_keep_what_they_are_made_with(contexts, native_context, make):
    @tff.federated_computation(tff.FederatedType(INTS, tff.CLIENTS))
    def data_of(values):
        return tff.federated_map(make, values)

    @tff.federated_computation(tff.FederatedType(INTS, tff.CLIENTS))
    def vectors_of(values):
        return tff.federated_map(as_vector, data_of(values))

    arguments = [[1, 2], [2, 1], [7, 1, 2, 3], [4]]
    with use(native_context):
        expected = [vector.tolist() for vector in vectors_of(arguments)]
    assert len(expected[2]) == 4
    for context in contexts:
        with use(context):
            data = data_of(arguments)
            # Another call: what the first data sets hold is not for it.
            vectors = vectors_of(arguments[::-1])[::-1]
            assert [vector.tolist() for vector in vectors] == expected
            assert [list(d.as_numpy_iterator()) for d in data] == expected
