"""Data sets of arrays and of any client data of TFF."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.datasets import sql_client_data_utils

from tff_fedss import algorithms, tasks, training
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError


def arrays(labels, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (len(labels), 4, 5, 3), np.uint8)
    return images, np.array(labels, np.int64)


CLIENTS = {"ann": arrays([0, 2, 2]), "bob": arrays([1] * 300, 1)}
TEST = arrays([0, 1, 2, 2], 2)


def to_element(images, labels):
    return collections.OrderedDict(image=images, label=labels)


def dataset_of(client_id):
    return tf.data.Dataset.from_tensor_slices(to_element(*CLIENTS[client_id]))


SPEC = to_element(tf.TensorSpec([4, 5, 3], tf.uint8), tf.TensorSpec([], tf.int64))


def file_per_user(tmp_path):
    paths = {}
    for client_id in CLIENTS:
        paths[client_id] = str(tmp_path / client_id)
        with tf.io.TFRecordWriter(paths[client_id]) as writer:
            for image, label in zip(*CLIENTS[client_id], strict=True):
                writer.write(bytes([label]) + image.tobytes())

    def parse(record):
        values = tf.io.decode_raw(record, tf.uint8)
        image = tf.reshape(values[1:], [4, 5, 3])
        return to_element(image, tf.cast(values[0], tf.int64))

    return tff.simulation.datasets.FilePerUserClientData(
        paths, lambda path: tf.data.TFRecordDataset(path).map(parse)
    )


def sql(tmp_path):
    path = str(tmp_path / "clients.sqlite")
    sql_client_data_utils.save_to_sql_client_data(list(CLIENTS), dataset_of, path)
    return sql_client_data_utils.load_and_parse_sql_client_data(path, SPEC)


def in_memory(tmp_path):
    del tmp_path
    return tff.simulation.datasets.TestClientData(
        {client_id: to_element(*found) for client_id, found in CLIENTS.items()}
    )


def of_clients(dataset):
    result = {}
    for client_id in dataset.train.client_ids:
        data = dataset.client_examples(client_id, np.array([0, 0], np.int32))
        images, labels = next(
            data.batch(1000).map(lambda e: (e["image"], e["label"])).as_numpy_iterator()
        )
        result[client_id] = images, labels
    return result


def check(dataset):
    assert dataset.num_classes == 3 and dataset.image_shape == (4, 5, 3)
    assert dataset.test.num_examples == 4 and dataset.max_positives == 2
    found = of_clients(dataset)
    assert found.keys() == CLIENTS.keys()
    for client_id, (images, labels) in CLIENTS.items():
        np.testing.assert_array_equal(found[client_id][0], images)
        np.testing.assert_array_equal(found[client_id][1], labels)
        assert found[client_id][1].dtype == np.int32
        assert dataset.num_examples(client_id) == len(labels)
        np.testing.assert_array_equal(dataset.positives(client_id), np.unique(labels))
    assert dataset.fingerprint() == dataset.fingerprint()


def test_arrays():
    check(FederatedDataset.from_arrays(CLIENTS, TEST))


@pytest.mark.parametrize("make", [file_per_user, sql, in_memory])
def test_client_data(make, tmp_path):
    test = tf.data.Dataset.from_tensor_slices(to_element(*TEST))
    check(FederatedDataset.from_client_data(make(tmp_path), test))


@pytest.mark.parametrize("dtype, shape", [(np.float32, (7,)), (np.int32, (3, 2))])
def test_other_inputs_than_images(dtype, shape):
    """Vectors and tokens, in memory and as client data; a process trains on them."""
    rng = np.random.default_rng(0)
    clients = {
        name: (rng.integers(0, 9, (6, *shape)).astype(dtype), np.arange(6) % 3)
        for name in ("ann", "bob")
    }
    held_out = clients["ann"]
    dataset = FederatedDataset.from_arrays(clients, held_out)
    data = tff.simulation.datasets.TestClientData(
        {name: to_element(*arrays) for name, arrays in clients.items()}
    )
    for other in (dataset, FederatedDataset.from_client_data(data, data)):
        assert other.image_shape == shape and other.num_classes == 3
        images, labels = of_clients(other)["bob"]
        np.testing.assert_array_equal(images, clients["bob"][0])
        np.testing.assert_array_equal(labels, clients["bob"][1])
        assert images.dtype == dtype

    def phi():
        inputs = x = tf.keras.Input(shape)
        if dtype == np.int32:
            x = tf.keras.layers.Embedding(9, 4, embeddings_initializer="ones")(x)
        x = tf.keras.layers.Flatten()(x)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(2, None, True, "ones")(x))

    task = tasks.Classification(dataset, phi)
    rate = tf.keras.optimizers.SGD(0.1)
    central = training.CentralizedRun(
        "c", task, rate, cohort_size=1, batch_size=4, seed=0
    )
    assert central.run_round()["num_examples"] == 8  # Two steps.
    process = algorithms.build_fedss(
        phi, 3, algorithms.ClassSets(3), algorithms.ClientTraining(image_dtype=dtype)
    )
    task = tasks.Classification(dataset, phi)
    run = training.FederatedRun("fedss", process, task, cohort_size=2, seed=0)
    assert run.run_round()["num_examples"] == 12
    assert "top1" in task.evaluate(run.weights)


def test_examples_of_other_structure():
    pixels = {
        client_id: collections.OrderedDict(
            label=labels.astype(np.int32), pixels=images[..., 0] / np.float32(255)
        )
        for client_id, (images, labels) in CLIENTS.items()
    }
    data = tff.simulation.datasets.TestClientData(pixels)
    dataset = FederatedDataset.from_client_data(
        data,
        data,
        example_fn=lambda e: (
            tf.saturate_cast(tf.round(e["pixels"] * 255), tf.uint8)[..., tf.newaxis],
            e["label"],
        ),
    )
    assert dataset.image_shape == (4, 5, 1)
    images, _ = of_clients(dataset)["ann"]
    np.testing.assert_array_equal(images[..., 0], CLIENTS["ann"][0][..., 0])
    with pytest.raises(InvalidInputError, match="expected `image` and `label`"):
        FederatedDataset.from_client_data(data, data)


def test_example_fn_is_traced_once_for_all_clients():
    """TensorFlow frees no function of a data set that a graph has read."""
    traced = []

    def example_fn(example):
        traced.append(example)
        label = example["label"]
        if label > 0:  # AutoGraph converts it.
            label = tf.identity(label)
        return example["image"], label

    data = in_memory(None)
    dataset = FederatedDataset.from_client_data(data, data, example_fn=example_fn)
    num_traced = len(traced)
    of_clients(dataset)
    assert len(traced) == num_traced


def test_clients_without_examples_are_left_out():
    clients = {k: to_element(*v) for k, v in CLIENTS.items()}
    data = tff.simulation.datasets.TestClientData(clients)
    picky = data.preprocess(lambda d: d.filter(lambda e: e["label"] != 1))
    dataset = FederatedDataset.from_client_data(picky, data)
    assert dataset.train.client_ids == ["ann"] and dataset.num_clients == 1
    assert set(of_clients(dataset)) == {"ann"}
