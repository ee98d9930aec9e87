"""Client data as one array of images and one of labels per client.

An array of images is uint8[N, h, w, c], or object[N] of the bytes of N image files.
Other inputs of phi can replace images: float32[N, ...] or int32[N, ...].
"""

import abc
import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import tensors
from tff_fedss.datasets.federated import partitions

Arrays = tuple[Any, np.ndarray]  # Images and labels int32[N].


def to_element(image, label) -> collections.OrderedDict:
    """Names the parts of an example (or of a stack of examples)."""
    return collections.OrderedDict(image=image, label=label)


def dataset_from_arrays(images: Any, labels: np.ndarray) -> tf.data.Dataset:
    """Makes a dataset of unbatched examples from arrays held in memory.

    Images are uint8[N, h, w, c], object[N] of bytes, or a mapping of arrays; labels
    are int32[N]. The N elements are `OrderedDict(image=uint8[h, w, c],
    label=int32[])`, or with image=string[] or a mapping.
    """
    return tensors.slices(to_element(images, labels))


def dataset_from_chunks(
    chunk: Callable[[int], Arrays], num_chunks: int, num_examples: int, image_spec: Any
) -> tf.data.Dataset:
    """Makes a dataset as `dataset_from_arrays` does, chunk by chunk when it is reached.

    `num_examples` is the sum over all chunks, `image_spec` the `tf.TensorSpec`s of
    an image. It calls back into this Python process, so it cannot be serialized.
    """
    dataset = tf.data.Dataset.range(num_chunks).flat_map(
        lambda i: _dataset_in_graph(lambda j: chunk(int(j)), i, image_spec)
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(num_examples))


def _dataset_in_graph(
    arrays_fn: Callable[..., Arrays], argument: tf.Tensor, image_spec: Any
) -> tf.data.Dataset:
    spec = to_element(image_spec, tf.TensorSpec([], tf.int32))
    specs = tf.nest.flatten(spec)
    arrays = tf.numpy_function(
        lambda x: tf.nest.flatten(to_element(*arrays_fn(x))),
        [argument],
        [part.dtype for part in specs],
    )
    for array, part in zip(arrays, specs, strict=True):
        array.set_shape([None, *part.shape])
    return tf.data.Dataset.from_tensor_slices(tf.nest.pack_sequence_as(spec, arrays))


class CountedClientData(tff.simulation.datasets.ClientData, metaclass=abc.ABCMeta):
    """`ClientData` with known sizes and classes of clients, without reading images."""

    def __init__(self, client_ids: Sequence[str]):
        super().__init__()
        self._client_ids = list(client_ids)

    @property
    def client_ids(self) -> list[str]:
        """The ids of all clients, always in the same order."""
        return self._client_ids

    @abc.abstractmethod
    def num_examples(self, client_id: str) -> int:
        """Returns n_k, the number of examples of a client."""

    @abc.abstractmethod
    def positives(self, client_id: str) -> np.ndarray:
        """Returns P_k, the sorted distinct labels of a client, int32[|P_k|]."""

    def position(self, client_id: str) -> int:
        """Returns a client's position in `client_ids`; ValueError if it is none."""
        if client_id not in self._position_of:
            raise ValueError(f"{client_id!r} is not a client of this data set.")
        return self._position_of[client_id]

    @functools.cached_property
    def _position_of(self) -> dict[str, int]:
        return {client_id: k for k, client_id in enumerate(self.client_ids)}

    @functools.cached_property
    def max_positives(self) -> int:
        """The largest |P_k|."""
        return max(len(self.positives(client_id)) for client_id in self.client_ids)


class Counted(CountedClientData):
    """Some clients of any TFF client data, with known sizes and classes."""

    def __init__(
        self,
        source: tff.simulation.datasets.ClientData,
        client_ids: list[str],
        num_examples: Callable[[str], int],
        positives: Callable[[str], np.ndarray],
    ):
        """Chooses clients; maps an id to n_k, and to P_k, int32[|P_k|]."""
        super().__init__(client_ids)
        self._source = source
        self._num_examples, self._positives = num_examples, positives

    @property
    def element_type_structure(self):
        """The `tf.TensorSpec`s of an example."""
        return self._source.element_type_structure

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        """Returns the examples of one client, unbatched."""
        self.position(client_id)
        return self._source.create_tf_dataset_for_client(client_id)

    @property
    def serializable_dataset_fn(self):
        """The source's function from client id to dataset."""
        return self._source.serializable_dataset_fn

    @property
    def dataset_computation(self):
        """A TFF computation from client id to dataset, if the source has one."""
        return self._source.dataset_computation

    def num_examples(self, client_id: str) -> int:
        """Returns n_k."""
        self.position(client_id)
        return self._num_examples(client_id)

    def positives(self, client_id: str) -> np.ndarray:
        """Returns P_k, int32[|P_k|]."""
        self.position(client_id)
        return self._positives(client_id)


class ArrayClientData(CountedClientData):
    """`ClientData` whose subclasses produce a client's examples as NumPy arrays.

    Use `create_tf_dataset_for_client` for a client's data: it is the cheap way, and the
    dataset holds the arrays as constants, so that TFF can send it to its worker.
    `serializable_dataset_fn` calls back into this Python process, which works within
    the process (`create_tf_dataset_from_all_clients`, `preprocess`) but not in a
    worker, so `dataset_computation` raises an error.
    """

    def __init__(self, client_ids: Sequence[str], image_spec: Any):
        """Sets the `tf.TensorSpec` of an image, string[] for bytes, and the clients."""
        super().__init__(client_ids)
        self._image_spec = image_spec

    @abc.abstractmethod
    def client_arrays(self, client_id: str) -> Arrays:
        """Returns a client's images and labels, see `dataset_from_arrays`.

        Raises ValueError if client_id is not one of `client_ids`.
        """

    @property
    def element_type_structure(self) -> collections.OrderedDict:
        """The `tf.TensorSpec` of an example."""
        return to_element(self._image_spec, tf.TensorSpec([], tf.int32))

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        """Returns the examples of one client, unbatched, in a fixed order."""
        return dataset_from_arrays(*self.client_arrays(client_id))

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        """A function from client id to dataset, traceable inside this process only."""

        def dataset_for_client(client_id):
            return _dataset_in_graph(
                # Bytes in a graph, an array of bytes outside.
                lambda name: self.client_arrays(
                    np.asarray(name, object).item().decode()
                ),
                tf.convert_to_tensor(client_id),
                self._image_spec,
            )

        return dataset_for_client

    @property
    def dataset_computation(self):
        """Not available: a TFF worker cannot call back into this process."""
        raise NotImplementedError(
            "TFF workers cannot reach arrays of this process: give the computation "
            "create_tf_dataset_for_client(client_id)."
        )


class LabelledClientData(ArrayClientData):
    """Client data whose labels are known without reading or drawing images."""

    @abc.abstractmethod
    def labels(self, client_id: str) -> np.ndarray:
        """Returns the label of every example of a client, int32[n_k]."""

    def num_examples(self, client_id: str) -> int:
        """Returns n_k."""
        return len(self.labels(client_id))

    def positives(self, client_id: str) -> np.ndarray:
        """Returns P_k, int32[|P_k|]."""
        return np.unique(self.labels(client_id))


class IndexedClientData(LabelledClientData):
    """Client data whose images are rows of an index and read on request."""

    def __init__(
        self,
        partition: partitions.Partition,
        labels: np.ndarray,
        read: Callable[[np.ndarray], Any],
        image_spec: Any,
    ):
        """Takes clients of rows, labels int32[N], and a reader of rows, int64[n]."""
        super().__init__(partition.client_ids, image_spec)
        self._partition, self._labels, self._read = partition, labels, read

    def client_arrays(self, client_id: str) -> Arrays:
        """See the base class."""
        return self._read(self._rows(client_id)), self.labels(client_id)

    def labels(self, client_id: str) -> np.ndarray:
        """See the base class."""
        return self._labels[self._rows(client_id)].astype(np.int32)

    def _rows(self, client_id: str) -> np.ndarray:
        return self._partition.examples(self.position(client_id))


class InMemoryClientData(LabelledClientData):
    """Client data that is held in memory."""

    def __init__(self, clients: Mapping[str, Arrays]):
        """Keeps the arrays, without copying them.

        For each client, in order: images uint8[n_k, h, w, c] or object[n_k] of
        bytes, and labels int32[n_k], with n_k >= 1.
        """
        self._clients = dict(clients)
        images, _ = next(iter(self._clients.values()))
        dtype = tf.string if images.dtype == object else images.dtype
        super().__init__(list(self._clients), tf.TensorSpec(images.shape[1:], dtype))

    def client_arrays(self, client_id: str) -> Arrays:
        """Returns the arrays of a client."""
        self.position(client_id)
        return self._clients[client_id]

    def labels(self, client_id: str) -> np.ndarray:
        """See the base class."""
        _, labels = self.client_arrays(client_id)
        return labels

    def contents(self) -> dict[str, Any]:
        """Returns the examples' part of a fingerprint, see `fingerprint.of`."""
        images, labels = map(list, zip(*self._clients.values(), strict=True))
        return {
            "training images": sum(map(len, labels)),
            "images per class": np.bincount(np.concatenate(labels)),
            "labels of training images": labels,
            "contents of training images": images,
        }
