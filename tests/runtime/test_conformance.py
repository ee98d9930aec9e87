"""The in-process runtime gives what TFF's own runtime gives."""

import collections
import functools
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy
from tff_fedss import runtime

SCALARS = tff.FederatedType(np.float32, tff.CLIENTS)
AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)


class Point(NamedTuple):
    x: object
    y: object


@pytest.fixture(scope="module")
def in_process():
    return runtime.InProcessContext(clients_per_device=2)


use = tff.framework.get_context_stack().install


def assert_same(ours, theirs, rtol=1e-5, atol=1e-6):
    """Values, containers, dtypes and shapes are the same; floats almost."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            assert_same(a, b, rtol, atol)
    elif isinstance(ours, tf.data.Dataset):
        assert ours.element_spec == theirs.element_spec
        assert_same(
            list(ours.as_numpy_iterator()), list(theirs.as_numpy_iterator()), rtol, atol
        )
    elif hasattr(ours, "__attrs_attrs__"):
        assert_same(vars(ours), vars(theirs), rtol, atol)
    else:
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
        assert np.shape(ours) == np.shape(theirs)
        if np.issubdtype(np.asarray(ours).dtype, np.floating):
            np.testing.assert_allclose(ours, theirs, rtol, atol)
        else:
            np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def check(in_process, native_context):
    def check_both(computation, *args, exact=True):
        with use(native_context):
            theirs = computation(*args)
        with use(in_process):
            ours = computation(*args)
        assert_same(ours, theirs, *((0, 0) if exact else ()))
        return ours

    return check_both


def floats(num_clients, shape=(), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(num_clients)]


@tff.tensorflow.computation(np.float32)
def square(x):
    return x * x


@tff.tensorflow.computation
def many_kinds():
    return collections.OrderedDict(
        float=tf.constant(1.5),
        half=tf.constant([1, 2], tf.float16),
        brain=tf.constant([1, 2], tf.bfloat16),
        ints=tf.constant([[1], [2]], tf.int64),
        bytes=tf.constant([1, 2], tf.uint8),
        flag=tf.constant(True),
        flags=tf.constant([True, False]),
        name=tf.constant("ab"),
        names=tf.constant(["a", "bc"]),
        nothing=tf.zeros([0, 3]),
        complex=tf.constant([1 + 2j]),
        point=Point([tf.constant(1), tf.constant(2.0)], (tf.constant(3),)),
        empty=(),
        sequence=tf.data.Dataset.range(3),
        pairs=tf.data.Dataset.from_tensor_slices({"a": [3.0, 4.0], "b": [1, 2]}),
    )


def test_results_have_the_same_types(check):
    check(many_kinds)


@tff.tensorflow.computation(
    collections.OrderedDict(z=np.float32, a=tff.TensorType(np.int32, [None]))
)
def take_apart(value):
    return value["a"] + tf.cast(value["z"], tf.int32), value["z"]


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(z=np.float32(2), a=np.array([1, 2], np.int32)),
        collections.OrderedDict(z=2.0, a=[1, 2, 3]),
        collections.OrderedDict(z=tf.constant(2.0), a=tf.constant([1])),
        collections.OrderedDict(z=tf.Variable(2.0), a=np.zeros(0, np.int32)),
    ],
    ids=["numpy", "python", "tensors", "variables"],
)
def test_arguments_may_be_what_they_may_be_in_tff(check, value):
    check(take_apart, value)


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(z=np.float64(2), a=np.array([1], np.int32)),
        collections.OrderedDict(z=2.0, a=[1.5]),
        collections.OrderedDict(z=2.0, a=np.array([[1]], np.int32)),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_by_both(
    in_process, native_context, value
):
    for context in (in_process, native_context):
        with use(context), pytest.raises(TypeError):
            take_apart(value)


# One computation with many intrinsics: compiling takes longer than running.
@tff.federated_computation(SCALARS, AT_SERVER)
def every_placement(values, at_server):
    ten = tff.tensorflow.computation(lambda: tf.constant(10.0))
    plus = tff.tensorflow.computation(lambda a, b: a + b, (np.float32, np.float32))
    broadcast = tff.federated_broadcast(at_server)
    return collections.OrderedDict(
        value_at_clients=tff.federated_value(1.5, tff.CLIENTS),
        value_at_server=tff.federated_value(2, tff.SERVER),
        eval_at_clients=tff.federated_eval(ten, tff.CLIENTS),
        eval_at_server=tff.federated_eval(ten, tff.SERVER),
        map_at_clients=tff.federated_map(square, values),
        map_at_server=tff.federated_map(square, at_server),
        map_all_equal=tff.federated_map(square, broadcast),
        broadcast=broadcast,
        map_of_two=tff.federated_map(plus, (values, broadcast)),
        zip_at_clients=tff.federated_zip((values, (broadcast, values))),
        zip_at_server=tff.federated_zip({"b": at_server, "a": {"c": at_server}}),
    )


def test_placements_and_maps(check):
    result = check(every_placement, floats(5), np.float32(3))
    assert len(result["map_at_clients"]) == 5


STRUCT = collections.OrderedDict(
    w=tff.TensorType(np.float32, [3]), b=(np.int32, tff.TensorType(np.float32))
)


@tff.federated_computation(tff.FederatedType(STRUCT, tff.CLIENTS), SCALARS)
def every_sum(values, weights):
    return collections.OrderedDict(
        sum=tff.federated_sum(values),
        mean=tff.federated_mean(values.w),
        weighted_mean=tff.federated_mean(values.w, weights),
        min=tff.federated_min(values),
        max=tff.federated_max(values),
    )


def test_sums_and_means(check):
    rng = np.random.default_rng(3)
    values = [
        collections.OrderedDict(
            w=rng.normal(size=3).astype(np.float32),
            b=(np.int32(rng.integers(9)), np.float32(rng.normal())),
        )
        for _ in range(7)
    ]
    check(every_sum, values, [np.abs(w) for w in floats(7)], exact=False)


@tff.federated_computation(
    SCALARS, tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True)
)
def order_matters(values, factor):
    """2 (... 2 (2 * 1 + x_0) + x_1 ...) + x_7 for a part, and a + 3 b for two sums: no
    other order gives the same."""
    zero = tff.tensorflow.computation(lambda: (tf.constant(1.0), tf.constant(0)))
    state = zero.type_signature.result

    @tff.tensorflow.computation(state, np.float32)
    def accumulate(total, x):
        return 2.0 * total[0] + x, total[1] + 1

    @tff.tensorflow.computation(state, state)
    def merge(a, b):
        return a[0] + 3.0 * b[0], a[1] + b[1]

    @tff.tensorflow.computation(state)
    def report(total):
        return collections.OrderedDict(total=total[0], count=total[1])

    return tff.federated_aggregate(values, zero(), accumulate, merge, report), factor


@pytest.mark.parametrize("num_clients", [1, 8, 41])
def test_aggregate_is_in_the_order_of_the_clients(in_process, num_clients):
    values = floats(num_clients)
    sums = []
    for start in range(0, num_clients, 8):
        total = np.float32(1)
        for x in values[start : start + 8]:
            total = np.float32(2) * total + x
        sums.append(total)
    while len(sums) > 1:  # Six parts, three pairs, ...
        pairs = [a + np.float32(3) * b for a, b in zip(sums[::2], sums[1::2])]
        sums = pairs + (sums[-1:] if len(sums) % 2 else [])
    with use(in_process):
        result, factor = order_matters(values, 4.0)
    assert result == {"total": sums[0], "count": num_clients} and factor == 4.0


NUM_ROWS, NUM_KEYS = 11, 4
TABLE = collections.OrderedDict(
    w=tff.TensorType(np.float32, [NUM_ROWS, 3]), b=tff.TensorType(np.int32, [NUM_ROWS])
)
KEYS = tff.FederatedType(tff.TensorType(np.int32, [NUM_KEYS]), tff.CLIENTS)


@functools.cache
def selection(kind):
    @tff.tensorflow.computation(TABLE, np.int32)
    def rows(table, key):
        # Names in another order would confuse TFF's own runtime.
        return collections.OrderedDict(
            b=(key, tf.gather(table["b"], key)), w=tf.gather(table["w"], key)
        )

    @tff.tensorflow.computation(TABLE, np.int32)
    def with_branches(table, key):
        return tf.cond(
            key > 5, lambda: table["w"][key], lambda: tf.reduce_sum(table["w"], 0)
        )

    @tff.tensorflow.computation(TABLE, np.int32)
    def with_a_variable(table, key):
        row = tf.Variable(tf.zeros([3]))
        with tf.control_dependencies([row.assign(tf.gather(table["w"], key))]):
            return 2.0 * row.read_value()

    @tff.tensorflow.computation(TABLE, np.int32)
    def of_unknown_shape(table, key):
        return table["w"][key : key + 1][tf.newaxis, :, : tf.size(table["b"][:3])]

    @tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
    def double(row):
        return 2.0 * row

    @tff.federated_computation(TABLE, np.int32)
    def in_two_steps(table, key):
        return double(with_branches(table, key)), key

    select_fn = locals()[kind]

    @tff.federated_computation(KEYS, tff.FederatedType(TABLE, tff.SERVER))
    def selected(keys, table):
        most = tff.federated_value(NUM_ROWS - 1, tff.SERVER)
        return tff.federated_select(keys, most, table, select_fn)

    return selected


def make_table(seed=0):
    rng = np.random.default_rng(seed)
    return collections.OrderedDict(
        w=rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
        b=rng.integers(0, 99, NUM_ROWS).astype(np.int32),
    )


@pytest.mark.parametrize(
    "kind", ["rows", "with_a_variable", "of_unknown_shape", "in_two_steps"]
)
def test_select(check, kind):
    keys = [
        np.array(k, np.int32) for k in ([0, 10, 3, 3], [5, 6, 5, 6], [10, 10, 10, 10])
    ]
    for seed in range(2):  # Another table: nothing of the first is kept.
        result = check(selection(kind), keys, make_table(seed), exact=False)
        assert [len(list(rows)) for rows in result] == [NUM_KEYS] * 3


def test_select_from_a_sequence(in_process):
    numbers = tff.SequenceType(np.int64)

    @tff.tensorflow.computation(numbers, np.int32)
    def above(sequence, key):
        return sequence.reduce(tf.cast(key, tf.int64), lambda a, b: a + b)

    @tff.federated_computation(KEYS, tff.FederatedType(numbers, tff.SERVER))
    def selected(keys, sequence):
        most = tff.federated_value(9, tff.SERVER)
        return tff.federated_select(keys, most, sequence, above)

    keys = np.arange(NUM_KEYS, dtype=np.int32)
    with use(in_process):
        (rows,) = selected([keys], tf.data.Dataset.range(4))
    assert list(rows) == [6, 7, 8, 9]


@pytest.mark.parametrize("key", [-1, NUM_ROWS])
def test_select_checks_the_keys(in_process, key):
    keys = [np.zeros(NUM_KEYS, np.int32), np.array([1, key, 2, 3], np.int32)]
    with use(in_process), pytest.raises(ValueError, match=f"client 1 .* key {key}, "):
        selection("rows")(keys, make_table())


INTS = collections.OrderedDict(a=np.int32, b=tff.TensorType(np.int32, [2]))


@functools.cache
def secure_sums():
    @tff.federated_computation(tff.FederatedType(INTS, tff.CLIENTS))
    def sums(values):
        return collections.OrderedDict(
            bitwidth=tff.federated_secure_sum_bitwidth(values, 8),
            max_input=tff.federated_secure_sum(
                values, collections.OrderedDict(a=np.int32(60), b=np.int32(90))
            ),
            modular=tff.backends.mapreduce.federated_secure_modular_sum(values, 7),
        )

    return sums


def test_secure_sums(in_process):
    """TFF's runtime has none. These are the sums that the protocols arrive at."""
    values = [
        collections.OrderedDict(a=np.int32(k), b=np.array([2 * k, 30], np.int32))
        for k in (10, 20, 30)
    ]
    with use(in_process):
        result = secure_sums()(values)
        for name, (a, b) in {
            "bitwidth": (60, [120, 90]),
            "max_input": (60, [120, 90]),
            "modular": (60 % 7, [120 % 7, 90 % 7]),
        }.items():
            assert result[name]["a"] == a
            np.testing.assert_array_equal(result[name]["b"], b)
        values[1]["a"] = np.int32(61)
        with pytest.raises(runtime.ClientError, match="Client 1 of 3.*larger than max"):
            secure_sums()(values)


EXAMPLES = tff.SequenceType(
    collections.OrderedDict(n=np.int32, x=tff.TensorType(np.float32, [2]))
)


@tff.tensorflow.computation(EXAMPLES)
def with_data_and_variables(examples):
    """A stateful computation: a loop over a data set that updates two variables."""
    total = tf.Variable(tf.zeros([2]))
    count = tf.Variable(0)

    @tf.function
    def run(data):
        for example in data:
            total.assign_add(example["x"])
            count.assign_add(example["n"])
        return total.read_value(), count.read_value()

    return run(examples), examples.map(lambda e: e["x"] * 2.0)


@tff.federated_computation(tff.FederatedType(EXAMPLES, tff.CLIENTS))
def on_data(examples):
    return tff.federated_map(with_data_and_variables, examples)


def data_set(size, seed=0):
    rng = np.random.default_rng(seed)
    return tf.data.Dataset.from_tensor_slices(
        {
            "n": rng.integers(0, 9, size).astype(np.int32),
            "x": rng.normal(size=(size, 2)).astype(np.float32),
        }
    )


def test_data_sets_and_variables(check):
    data = [data_set(size, size) for size in (3, 0, 5, 1, 8, 2)]
    check(on_data, data, exact=False)
    # Every client starts with fresh variables, also the second time.
    check(on_data, data[::-1], exact=False)


def test_data_may_be_a_list_or_come_from_python(check):
    def generate():
        for k in range(4):
            yield {"n": np.int32(k), "x": np.full(2, k, np.float32)}

    signature = {
        "n": tf.TensorSpec([], tf.int32),
        "x": tf.TensorSpec([2], tf.float32),
    }
    elements = [collections.OrderedDict(e) for e in generate()]
    check(on_data, [elements, elements[:1]])
    # TFF's worker is another process: it cannot call a Python function of this one.
    ours = runtime.InProcessContext()
    with use(ours):
        generated = on_data(
            [
                tf.data.Dataset.from_generator(generate, output_signature=signature)
                for _ in range(2)
            ]
        )
        from_list = on_data([elements] * 2)
    assert_same(generated, from_list)


def test_sequences_outside_of_tensorflow(in_process):
    """TFF's worker does not sum a sequence at the clients."""
    ints = tff.SequenceType(np.int32)
    double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)
    plus = tff.tensorflow.computation(lambda a, b: a + b, (np.int32, np.int32))

    @tff.federated_computation(tff.FederatedType(ints, tff.CLIENTS))
    def sums(values):
        of_client = tff.federated_computation(
            lambda s: (
                tff.sequence_sum(s),
                tff.sequence_reduce(s, 5, plus),
                tff.sequence_sum(tff.sequence_map(double, s)),
            ),
            ints,
        )
        return tff.federated_map(of_client, values)

    with use(in_process):
        assert sums([[1, 2], [], [3]]) == [(3, 8, 6), (0, 5, 0), (3, 8, 6)]


@pytest.mark.parametrize("size", [1, 2])
def test_elements_of_a_mapped_sequence_may_be_tuples(in_process, size):
    element = tff.StructType([np.int32] * size)
    double = tff.tensorflow.computation(lambda x: 2 * x[0], element)

    @tff.federated_computation(tff.SequenceType(element))
    def total(sequence):
        return tff.sequence_sum(tff.sequence_map(double, sequence))

    columns = (np.array([1, 2], np.int32),) * size
    with use(in_process):
        assert total(tf.data.Dataset.from_tensor_slices(columns)) == 6


def test_unseeded_noise_differs_between_clients_and_calls(in_process):
    draw = tff.tensorflow.computation(lambda: tf.random.normal([]))

    @tff.federated_computation(SCALARS)
    def noise(values):
        del values
        return tff.federated_eval(draw, tff.CLIENTS)

    with use(in_process):
        draws = noise(floats(6)) + noise(floats(6))
    assert len(set(draws)) == 12


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def three_rounds(process, context, cohort):
    with use(context):
        state = process.initialize()
        metrics = []
        for r in range(3):
            state, round_metrics = process.next(state, cohort(r))
            metrics.append(round_metrics)
        return state, metrics, process.get_model_weights(state)


@pytest.mark.parametrize(
    "method", ["fedss", *slow("neg_only", "pos_only", "full_softmax", "fedaws")]
)
def test_our_methods(in_process, native_context, method):
    if method == "fedaws":
        process = toy.build_fedaws(spreadout_weight=0.1, spreadout_margin=1.0)
    else:
        process = toy.build(method)
    ours, theirs = (
        three_rounds(process, context, lambda r: toy.to_tff(toy.make_cohort(r)))
        for context in (in_process, native_context)
    )
    assert_same(ours, theirs)


def tiny_model():
    """A Keras model with a dense layer and metrics, for tff.learning."""
    images = tf.keras.Input([4])
    initializer = tf.keras.initializers.RandomNormal(seed=1)
    logits = tf.keras.layers.Dense(3, kernel_initializer=initializer)(images)
    return tff.learning.models.from_keras_model(
        tf.keras.Model(images, logits),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
        input_spec=(
            tf.TensorSpec([None, 4], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ),
    )


def batches(round_num):
    """Five clients of different sizes; the last batch of each is short."""
    rng = np.random.default_rng(round_num)
    return [
        tf.data.Dataset.from_tensor_slices(
            (
                rng.normal(size=(size, 4)).astype(np.float32),
                rng.integers(0, 3, size).astype(np.int32),
            )
        ).batch(3)
        for size in (4, 7, 1, 10, 5)
    ]


SGD = tff.learning.optimizers.build_sgdm(0.1)
SERVER = tff.learning.optimizers.build_sgdm(1.0, 0.9)


def weighted(aggregator=None):
    return tff.learning.algorithms.build_weighted_fed_avg(
        tiny_model, SGD, SERVER, model_aggregator=aggregator
    )


def unweighted(aggregator):
    return tff.learning.algorithms.build_unweighted_fed_avg(
        tiny_model, SGD, SERVER, model_aggregator=aggregator
    )


LEARNING = {
    "weighted_fed_avg": weighted,
    "fed_sgd": lambda: tff.learning.algorithms.build_fed_sgd(
        tiny_model, tff.learning.optimizers.build_sgdm(0.1, 0.9)
    ),
    "compression": lambda: weighted(
        tff.learning.compression_aggregator(zeroing=True, clipping=True, weighted=True)
    ),
    "dp_without_noise": lambda: unweighted(
        tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
            0.0, 5.0, initial_l2_norm_clip=0.05
        )
    ),
}


@pytest.mark.parametrize("name", ["weighted_fed_avg", *slow(*list(LEARNING)[1:])])
def test_tff_learning(in_process, native_context, name):
    process = LEARNING[name]()
    ours, theirs = (
        three_rounds(process, context, batches)
        for context in (in_process, native_context)
    )
    assert_same(ours, theirs)


@pytest.mark.slow
def test_secure_aggregation_is_what_it_stands_for(in_process, native_context):
    """TFF's runtime refuses it; its test compiler says what the sums are."""
    process = unweighted(tff.learning.secure_aggregator(weighted=False))
    replace = tff.backends.test.replace_secure_intrinsics_with_bodies
    with use(in_process):
        state = process.initialize()
        ours = process.next(state, batches(0))
    with use(native_context):
        theirs = replace(process.next)(state, batches(0))
    for a, b in zip(
        process.get_model_weights(ours.state).trainable,
        theirs["state"]["global_model_weights"]["trainable"],
        strict=True,
    ):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
