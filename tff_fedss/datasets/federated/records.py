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

# More references than this are not constants of a graph (a path each) but are read
# from the index, this many at a time.
_MAX_CONSTANTS = 1 << 16


_SPEC = collections.OrderedDict(
    path=tf.TensorSpec([], tf.string),
    offset=tf.TensorSpec([], tf.int64),
    length=tf.TensorSpec([], tf.int64),
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
        return clients.dataset_from_arrays(*_arrays(index, rows))
    num_chunks = -(-len(rows) // _MAX_CONSTANTS)

    def chunk(number: int) -> clients.Arrays:
        start = number * _MAX_CONSTANTS
        return _arrays(index, rows[start : start + _MAX_CONSTANTS])

    return clients.dataset_from_chunks(chunk, num_chunks, len(rows), _SPEC)


def _arrays(index: RecordIndex, rows: np.ndarray) -> clients.Arrays:
    chosen = index.records[rows]
    images = collections.OrderedDict(
        path=np.array([index.paths[file].encode() for file in chosen["file"]], object),
        offset=chosen["offset"],
        length=chosen["length"],
    )
    return images, chosen["label"]


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


class RecordClientData(clients.ArrayClientData):
    """`ClientData` whose examples are references to records."""

    def __init__(
        self,
        index: RecordIndex,
        client_ids: Sequence[str],
        rows_of: Callable[[int], np.ndarray],
    ):
        """Says who has which record.

        Args:
            index: The records.
            client_ids: K different ids, in the order in which they are to be listed.
            rows_of: Maps a client's position in client_ids to its examples, positions
                in `index.records`, int64[n_k] with n_k >= 1; always the same.
        """
        super().__init__(client_ids, ())
        self._image_spec = _SPEC
        self._index = index
        self._rows_of = rows_of

    def client_arrays(self, client_id: str) -> clients.Arrays:
        """Returns references to the examples of a client, in a fixed order."""
        return _arrays(self._index, self._rows(client_id))

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
        return self._rows_of(self.position(client_id))
