"""Computations that would give something else if calls shared what they keep."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.framework.random_seed import DEFAULT_GRAPH_SEED

X = tff.TensorType(np.int32, [3])
ARGUMENTS = [
    np.array(x, np.int32) for x in ([1, 2, 3], [3, 2, 1], [2, 1, 3], [5, 6, 1])
]

# Each takes an int32[3] and would give something else if it were not alone.
PROBES = {}
# TFF's own runtime fails from their second call on, or continues where the last call
# of the same session has stopped.
NOT_FOR_TFF = {}


def probe(function):
    PROBES[function.__name__] = function
    return function


def not_for_tff(function):
    NOT_FOR_TFF[function.__name__] = function
    return function


def after(operation, function):
    with tf.control_dependencies([operation]):
        return function()


def count(keys, table):
    """Adds one to the table's value of each key, and returns the values."""
    more = table.lookup(keys) + 1
    return after(table.insert(keys, more), lambda: table.lookup(keys))


def mutable_table():
    return tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, 0)


@probe
def static_table_from_the_argument(x):
    values = tf.lookup.KeyValueTensorInitializer(x, tf.range(3))
    return tf.lookup.StaticHashTable(values, -1).lookup(tf.constant([1, 2, 3]))


@probe
def table_of_a_mapped_data_set(x):
    values = tf.lookup.KeyValueTensorInitializer(x, tf.range(3))
    table = tf.lookup.StaticHashTable(values, -1)
    data = tf.data.Dataset.range(1, 4, output_type=tf.int32).map(table.lookup)
    return data.batch(3).get_single_element()


@probe
def counted_words(x):
    return count(x, mutable_table())


@probe
def counts_in_a_function(x):
    @tf.function
    def counted(x):
        return count(x, mutable_table())

    first = counted(x)
    return first, after(first, lambda: counted(x))


@probe
def counts_in_a_loop(x):
    def body(i, total):
        return i + 1, after(total, lambda: total + count(x, mutable_table()))

    return tf.while_loop(
        lambda i, _: i < 3, body, (0, tf.zeros([3], tf.int32)), parallel_iterations=1
    )


@probe
def two_tables_of_one_name(x):
    def table():
        return tf.raw_ops.MutableHashTableV2(
            key_dtype=tf.int32, value_dtype=tf.int32, shared_name="same"
        )

    insert = tf.raw_ops.LookupTableInsertV2(table_handle=table(), keys=x, values=x)
    return after(insert, lambda: tf.raw_ops.LookupTableSizeV2(table_handle=table()))


@probe
def dense_table(x):
    return count(
        x,
        tf.lookup.experimental.DenseHashTable(
            tf.int32, tf.int32, 0, empty_key=-1, deleted_key=-2
        ),
    )


@probe
def table_of_vectors(x):
    return count(x, tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, [0, 0]))


def fill(queue, x, *priorities):
    return after(queue.enqueue_many([*priorities, x]), queue.size)


@probe
def queue(x):
    return fill(tf.queue.FIFOQueue(4, [tf.int32], [[]]), x)


@probe
def random_shuffle_queue(x):
    return fill(tf.queue.RandomShuffleQueue(4, 0, [tf.int32], [[]]), x)


@probe
def padding_queue(x):
    return fill(tf.queue.PaddingFIFOQueue(4, [tf.int32], [[]]), x)


@probe
def priority_queue(x):
    queue = tf.queue.PriorityQueue(4, [tf.int32], [[]])
    size = fill(queue, x, tf.cast(x, tf.int64))
    return size, after(size, queue.dequeue)


@probe
def mutex(x):
    lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2())
    return after(lock, lambda: x + 0)


@probe
def variable_that_nobody_initializes(x):
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[3])
    was_there = tf.raw_ops.VarIsInitializedOp(resource=handle)
    with tf.control_dependencies([was_there]):
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=x)
    return after(assign, lambda: tf.identity(was_there))


@probe
def variable(x):
    total = tf.Variable(tf.ones([3], tf.int32))
    return after(total.assign_add(x), total.read_value)


@probe
def random_generator(x):
    generator = tf.random.Generator.from_seed(5)
    return generator.uniform([]) + tf.cast(x[0], tf.float32)


@probe
def shuffled_and_cached_data(x):
    @tf.function
    def shuffled(x):
        data = tf.data.Dataset.from_tensor_slices(x).cache().shuffle(3, seed=1)
        return data.batch(3).get_single_element()

    return shuffled(x)


@probe
def iterator_in_a_function(x):
    @tf.function
    def first_two(x):
        iterator = iter(tf.data.Dataset.from_tensor_slices(x))
        return next(iterator) + next(iterator)

    return first_two(x)


SCALARS = {"output_types": [tf.int32], "output_shapes": [[]]}


def slices(x):
    return tf.data.experimental.to_variant(tf.data.Dataset.from_tensor_slices(x))


def first_two(x, iterator):
    def get_next():
        return tf.raw_ops.IteratorGetNext(iterator=iterator, **SCALARS)[0]

    first = after(
        tf.raw_ops.MakeIterator(dataset=slices(x), iterator=iterator), get_next
    )
    return first, after(first, get_next)


@probe
def anonymous_iterators(x):
    return [
        first_two(x, tf.raw_ops.AnonymousIterator(**SCALARS)),
        first_two(x, tf.raw_ops.AnonymousIteratorV2(**SCALARS).handle),
        first_two(x, tf.raw_ops.AnonymousIteratorV3(**SCALARS)),
    ]


@probe
def anonymous_tables(x):
    types = {"key_dtype": tf.int32, "value_dtype": tf.int32}
    dense = tf.raw_ops.AnonymousMutableDenseHashTable(
        empty_key=-1, deleted_key=-2, value_dtype=tf.int32
    )
    sizes = []
    for table, values in [
        (tf.raw_ops.AnonymousMutableHashTable(**types), x),
        (dense, x),
        (
            tf.raw_ops.AnonymousMutableHashTableOfTensors(value_shape=[1], **types),
            x[:, tf.newaxis],
        ),
    ]:
        insert = tf.raw_ops.LookupTableInsertV2(
            table_handle=table, keys=x, values=values
        )
        sizes.append(
            after(insert, lambda t=table: tf.raw_ops.LookupTableSizeV2(table_handle=t))
        )
    static = tf.raw_ops.AnonymousHashTable(**types)
    initialize = tf.raw_ops.InitializeTableV2(table_handle=static, keys=x, values=x)
    size = after(initialize, lambda: tf.raw_ops.LookupTableSizeV2(table_handle=static))
    return [*sizes, size]


@probe
def anonymous_parts_of_data_sets(x):
    cache = tf.raw_ops.AnonymousMemoryCache().handle
    data = tf.raw_ops.CacheDatasetV2(
        input_dataset=slices(x), filename="", cache=cache, **SCALARS
    )
    seeds = tf.raw_ops.AnonymousSeedGenerator(seed=5, seed2=6, reshuffle=True).handle
    data = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=data,
        buffer_size=3,
        seed=5,
        seed2=6,
        seed_generator=seeds,
        **SCALARS,
    )
    iterator = tf.raw_ops.AnonymousIteratorV3(**SCALARS)
    make = tf.raw_ops.MakeIterator(dataset=data, iterator=iterator)
    with tf.control_dependencies([make]):
        return tf.raw_ops.IteratorGetNext(iterator=iterator, **SCALARS)[0]


@probe
def arrays_of_one_run(x):
    array = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.int32)
    flow = tf.raw_ops.TensorArrayWriteV3(
        handle=array.handle, index=0, value=x, flow_in=array.flow
    )
    written = tf.raw_ops.TensorArrayReadV3(
        handle=array.handle, index=0, flow_in=flow, dtype=tf.int32
    )
    stack = tf.raw_ops.StackV2(max_size=1, elem_type=tf.int32)
    push = tf.raw_ops.StackPushV2(handle=stack, elem=x)
    pushed = after(
        push, lambda: tf.raw_ops.StackPopV2(handle=stack, elem_type=tf.int32)
    )
    return written, pushed


@not_for_tff
def iterators(x):
    named = {"shared_name": "", "container": ""}
    old = tf.raw_ops.Iterator(**named, **SCALARS)
    new = tf.raw_ops.IteratorV2(**named, **SCALARS)
    return first_two(x, old), first_two(x, new)


@not_for_tff
def accumulator(x):
    sums = tf.compat.v1.ConditionalAccumulator(tf.float32, [3])
    apply = sums.apply_grad(tf.cast(x, tf.float32))
    return after(apply, sums.num_accumulated)


@not_for_tff
def seeded_random_numbers(x):
    uniform = tf.random.uniform([], seed=7)
    normal = tf.random.normal([2], seed=8)
    return uniform, normal, tf.random.shuffle(x, seed=9)


@not_for_tff
def seeded_random_numbers_in_a_data_set(x):
    data = tf.data.Dataset.from_tensor_slices(x)
    data = data.map(lambda y: tf.random.uniform([], 0, 1000, tf.int32, seed=5))
    return data.batch(3).get_single_element()


@not_for_tff
def samplers_that_learn(x):
    classes = tf.cast(x[:, tf.newaxis], tf.int64)
    return [
        sampler(
            true_classes=classes,
            num_true=1,
            num_sampled=6,
            unique=False,
            range_max=9,
            seed=DEFAULT_GRAPH_SEED,  # TFF refuses others.
            seed2=4,
        )
        for sampler in (
            tf.raw_ops.LearnedUnigramCandidateSampler,
            tf.raw_ops.ThreadUnsafeUnigramCandidateSampler,
        )
    ]


ALL = {**PROBES, **NOT_FOR_TFF}


def summary(folder):
    """A probe that writes a summary."""

    def write(x):
        writer = tf.raw_ops.SummaryWriter()
        create = tf.raw_ops.CreateSummaryFileWriter(
            writer=writer,
            logdir=folder,
            max_queue=9,
            flush_millis=9,
            filename_suffix="",
        )
        with tf.control_dependencies([create]):
            write = tf.raw_ops.WriteScalarSummary(
                writer=writer, step=0, tag="first", value=x[0]
            )
        with tf.control_dependencies([write]):
            close = tf.raw_ops.CloseSummaryWriter(writer=writer)
        return after(close, lambda: x + 0)

    return write
