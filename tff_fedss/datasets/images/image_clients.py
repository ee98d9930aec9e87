"""Image clients: rows of an image index as clients' and held-out data."""

import concurrent.futures
import functools
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_fedss import tensors
from tff_fedss.datasets.federated import clients as client_data
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.datasets.federated.partitions import Partition
from tff_fedss.datasets.federated.preprocessing import Preprocessing, decode_image
from tff_fedss.datasets.images.index import ImageIndex


def federated_dataset(
    images: ImageIndex,
    labels: np.ndarray,
    partition: Partition,
    *,
    test: np.ndarray,
    public: Sequence[int] = (),
    unseen: Sequence[int] = (),
    num_classes: int,
    image_size: int,
    resize_size: int | None = None,
    test_is_unseen: bool = False,
    is_pooled_in_order: bool = False,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    note: str = "",
) -> FederatedDataset:
    """Makes a federated data set of the rows of an index.

    No image is read here. Clients read theirs on request; only the index is in memory.

    Args:
        images: The index.
        labels: The label of each row in its use, int32[N].
        partition: The clients; its examples are rows.
        test: The rows of the test.
        public: The rows of public classes; may be empty.
        unseen: The rows of unseen classes; may be empty.
        num_classes: n.
        image_size: Height and width in pixels of the model's images: a crop.
        resize_size: Height and width to which images are resized first; None: the
            paper's ratio (Appendix A.2).
        test_is_unseen: Whether the test is of classes that no client has.
        is_pooled_in_order: Whether the pooled examples are in the order of their rows,
            not client by client.
        name: The name of the data set; by default the index's.
        class_names: See `FederatedDataset`.
        note: See `FederatedDataset`.

    Returns:
        The data set. Stored images are string[], the bytes of a JPEG or PNG; pooled and
        held-out images int64[], rows of the index.
    """

    def read(stored: tf.Tensor) -> tf.Tensor:
        if stored.dtype == tf.string:
            return decode_image(stored)
        content = tf.numpy_function(
            lambda row: images.encoded(int(row)), [stored], tf.string
        )
        content.set_shape([])
        return decode_image(content)

    def rows_dataset(rows: np.ndarray) -> tf.data.Dataset:
        element = client_data.to_element(rows, labels[rows].astype(np.int32))
        return tensors.slices(element)

    def held_out(part: str) -> HeldOut | None:
        rows = used[part]
        if not len(rows):
            return None
        return HeldOut(rows_dataset(rows), len(rows), len(np.unique(labels[rows])))

    train = ImageClients(images, labels, partition)
    rows = np.asarray(partition.order, np.int64)
    used = {"test": test, "public": public, "unseen": unseen}
    used = {part: np.asarray(chosen, np.int64) for part, chosen in used.items()}
    return FederatedDataset(
        name=name or images.name,
        num_classes=num_classes,
        image_shape=(image_size, image_size, 3),
        train=train,
        test=held_out("test"),
        test_is_unseen=test_is_unseen,
        preprocessing=Preprocessing(image_size, resize_size, read),
        pooled=lambda: rows_dataset(np.sort(rows) if is_pooled_in_order else rows),
        public=held_out("public"),
        unseen=held_out("unseen"),
        class_names=class_names,
        note=note,
        contents=lambda: {
            **images.fingerprint(np.sort(rows)),
            **{
                f"{part} rows": [chosen, labels[chosen]]
                for part, chosen in used.items()
            },
        },
    )


class ImageClients(client_data.ArrayClientData):
    """Clients whose images are read on request."""

    def __init__(self, images: ImageIndex, labels: np.ndarray, partition: Partition):
        """Takes the clients of a partition.

        Args:
            images: All images.
            labels: Labels of all rows of images, int32[N].
            partition: Its examples are rows of images.
        """
        super().__init__(partition.client_ids, (), tf.string)
        self._images, self._labels, self._partition = images, labels, partition
        self._pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())

    def client_arrays(self, client_id: str) -> client_data.Arrays:
        """See the base class."""
        rows = self._rows(client_id)
        contents = np.empty(len(rows), object)
        contents[:] = list(self._pool.map(self._images.encoded, rows.tolist()))
        return contents, self.labels(client_id)

    def labels(self, client_id: str) -> np.ndarray:
        """Returns the label of every example of a client, int32[n_k]."""
        return self._labels[self._rows(client_id)].astype(np.int32)

    def num_examples(self, client_id: str) -> int:
        """Returns n_k."""
        return len(self._rows(client_id))

    def positives(self, client_id: str) -> np.ndarray:
        """Returns P_k, int32[|P_k|]."""
        return np.unique(self.labels(client_id))

    @functools.cached_property
    def max_positives(self) -> int:
        """The largest |P_k|."""
        counts = partitions.class_counts(self._partition, self._labels)
        return int(np.bincount(counts.clients).max())

    def _rows(self, client_id: str) -> np.ndarray:
        return self._partition.examples(self.position(client_id))
