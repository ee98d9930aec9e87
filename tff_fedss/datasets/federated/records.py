"""Images in TFRecord files: data sets that refer to the records of an index.

Nothing per image is held in memory: a client's data set holds where its records are,
and a record is read when its turn comes.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss.datasets.federated import clients, preprocessing
from tff_fedss.datasets.federated.record_index import (
    FOOTER_BYTES,
    HEADER_BYTES,
    RecordIndex,
)

# More references than this are not constants of a graph (28 bytes each) but are read
# from the index, this many at a time.
_MAX_CONSTANTS = 1 << 16


def _to_element(path, offset, length, label) -> collections.OrderedDict:
    return collections.OrderedDict(
        image=collections.OrderedDict(path=path, offset=offset, length=length),
        label=label,
    )


ELEMENT_SPEC = _to_element(
    tf.TensorSpec([], tf.string),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.int32),
)


def references(index: RecordIndex, rows: np.ndarray) -> tf.data.Dataset:
    """Makes a dataset that says where records are; it reads no image.

    Args:
        index: The records.
        rows: Which ones, positions in `index.records`, int64[N].

    Returns:
        A dataset of N elements `OrderedDict(image=OrderedDict(path=string[],
        offset=int64[], length=int64[]), label=int32[])`, in the order of `rows`. Up to
        65,536 of them are held as constants, so that the dataset can be sent to another
        process; more than that are read from the index when they are reached, and the
        dataset is of this process only.
    """
    rows = np.asarray(rows, np.int64)
    if len(rows) <= _MAX_CONSTANTS:
        return _constant_references(index, rows)
    num_chunks = -(-len(rows) // _MAX_CONSTANTS)

    def chunk(number: np.ndarray) -> tuple[np.ndarray, ...]:
        start = int(number) * _MAX_CONSTANTS
        return _reference_arrays(index, rows[start : start + _MAX_CONSTANTS])

    data = tf.data.Dataset.range(num_chunks).flat_map(
        lambda number: _references_in_graph(chunk, number)
    )
    return data.apply(tf.data.experimental.assert_cardinality(len(rows)))


def _constant_references(index: RecordIndex, rows: np.ndarray) -> tf.data.Dataset:
    chosen = index.records[rows]
    # Every path once, as it is much longer than a number.
    files, which = np.unique(chosen["file"], return_inverse=True)
    paths = tf.constant([index.paths[file] for file in files], tf.string)
    arrays = which, chosen["offset"], chosen["length"], chosen["label"]

    def named(which, *rest):
        return tf.data.Dataset.from_tensor_slices(
            _to_element(tf.gather(paths, which), *rest)
        )

    data = tf.data.Dataset.from_tensors(arrays).flat_map(named)
    return data.apply(tf.data.experimental.assert_cardinality(len(rows)))


def _reference_arrays(index: RecordIndex, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    chosen = index.records[rows]
    paths = np.array([index.paths[file].encode() for file in chosen["file"]], object)
    return paths, chosen["offset"], chosen["length"], chosen["label"]


def _references_in_graph(
    arrays_fn: Callable[[np.ndarray], tuple[np.ndarray, ...]], argument: tf.Tensor
) -> tf.data.Dataset:
    arrays = tf.numpy_function(
        arrays_fn, [argument], [tf.string, tf.int64, tf.int64, tf.int32]
    )
    for array in arrays:
        array.set_shape([None])
    return tf.data.Dataset.from_tensor_slices(_to_element(*arrays))


def read_image(feature: str) -> Callable[[Mapping[str, tf.Tensor]], tf.Tensor]:
    """Makes the function that reads and decodes the image of a reference.

    Args:
        feature: The feature of the record, a `tf.train.Example`, that has the image.

    Returns:
        A function for `Preprocessing(read=...)`: it takes
        `{path: string[], offset: int64[], length: int64[]}` and returns
        uint8[height, width, 3]. It is a graph of plain TensorFlow ops, so that another
        process with the same files can run it too.
    """
    features = {feature: tf.io.FixedLenFeature([], tf.string)}

    def read(reference: Mapping[str, tf.Tensor]) -> tf.Tensor:
        # Goes straight to the record and compares its checksums. (A
        # FixedLengthRecordDataset with header_bytes reads all that lies before it.)
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[reference["path"]],
            compression_type="",
            buffer_size=HEADER_BYTES + reference["length"] + FOOTER_BYTES,
            byte_offsets=[reference["offset"] - HEADER_BYTES],
        )
        data = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        record = data.take(1).get_single_element()
        example = tf.io.parse_single_example(record, features)
        return preprocessing.decode_image(example[feature])

    return read


class RecordClientData(clients.CountedClientData):
    """`ClientData` whose examples are references to records.

    `create_tf_dataset_for_client` is the way to a client's data and the cheap one: the
    dataset holds its references as constants, so that TFF can send it to its worker.
    `serializable_dataset_fn` calls back into this Python process, for
    `create_tf_dataset_from_all_clients` and `preprocess`.
    """

    def __init__(
        self,
        index: RecordIndex,
        client_ids: Sequence[str],
        rows_of: Callable[[int], np.ndarray],
    ):
        """Keeps the arguments.

        Args:
            index: The records.
            client_ids: K different ids, in the order in which they are to be listed.
            rows_of: Maps a client's position in client_ids to its examples, positions
                in `index.records`, int64[n_k] with n_k >= 1; always the same.
        """
        super().__init__()
        self._index = index
        self._client_ids = list(client_ids)
        self._position = {client_id: k for k, client_id in enumerate(client_ids)}
        self._rows_of = rows_of

    @property
    def client_ids(self) -> list[str]:
        """The ids of all clients, always in the same order."""
        return self._client_ids

    @property
    def element_type_structure(self) -> collections.OrderedDict:
        """The `tf.TensorSpec`s of an example."""
        return ELEMENT_SPEC

    def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
        """Returns references to the examples of one client, in a fixed order.

        Args:
            client_id: One of `client_ids`.

        Returns:
            n_k elements as `references` makes them, held as constants.

        Raises:
            ValueError: If client_id is not one of `client_ids`.
        """
        return _constant_references(self._index, self._rows(client_id))

    @property
    def serializable_dataset_fn(self) -> Callable[[str], tf.data.Dataset]:
        """A function from client id to dataset, traceable inside this process only."""

        def arrays(name: bytes) -> tuple[np.ndarray, ...]:
            # Bytes in a graph, an array of them outside.
            client_id = np.asarray(name, object).item().decode()
            return _reference_arrays(self._index, self._rows(client_id))

        def dataset_for_client(client_id):
            return _references_in_graph(arrays, tf.convert_to_tensor(client_id))

        return dataset_for_client

    @property
    def dataset_computation(self):
        """Not available: a TFF worker cannot call back into this process.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "RecordClientData looks its records up in this Python process, which a TFF "
            "worker cannot reach: pass create_tf_dataset_for_client(client_id) to the "
            "computation instead of the client id."
        )

    def num_examples(self, client_id: str) -> int:
        """Returns n_k."""
        return len(self._rows(client_id))

    def positives(self, client_id: str) -> np.ndarray:
        """Returns P_k, int32[|P_k|]."""
        return np.unique(self._index.records["label"][self._rows(client_id)])

    def contents(self) -> dict[str, Any]:
        """Returns what a fingerprint says of the records, see `fingerprint.of`."""
        rows = [np.asarray(self._rows_of(k)) for k in range(len(self._client_ids))]
        labels = self._index.records["label"][np.concatenate(rows)]
        return {
            **self._index.contents(),
            "training images": len(labels),
            "images per class": np.bincount(labels),
            "records of clients": rows,
        }

    def _rows(self, client_id: str) -> np.ndarray:
        if client_id not in self._position:
            raise ValueError(f"{client_id!r} is not a client of this data set.")
        return self._rows_of(self._position[client_id])
