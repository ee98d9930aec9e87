"""Labelled images of any origin as a federated data set."""

import concurrent.futures
import dataclasses
import os

import numpy as np
import tensorflow as tf

from tff_fedss.datasets import fingerprint, splits
from tff_fedss.datasets.federated import clients as client_data
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.datasets.federated.partitions import Partition
from tff_fedss.datasets.federated.preprocessing import Preprocessing, decode_image
from tff_fedss.datasets.images import clients, index
from tff_fedss.errors import InvalidInputError

# Keep these draws apart from others of the same seed.
_PHILOX_STREAM = int.from_bytes(b"images..", "big")


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """What becomes of labelled images.

    Attributes:
        image_size: Height and width in pixels of what the model sees: a crop.
        resize_size: Height and width that images are brought to first; None: the
            paper's ratio (Appendix A.2).
        retrieval: Whether the test is of classes that no client has.
        test: See `splits.hold_out`; None: by what the data have.
        test_share: Likewise.
        num_public_classes: Likewise, for a warm start.
        split: How the training images are split over clients.
        validation_share: The share of clients that are kept apart as validation
            clients, in [0, 1).
        on_validation: Whether the held-out images are those of the validation clients
            instead of the test's: for choices that must not know the test.
        seed: Of all draws; 0 <= seed < 2^63.
    """

    image_size: int = 64
    resize_size: int | None = None
    retrieval: bool = False
    test: str | None = None
    test_share: float = 0.2
    num_public_classes: int = 0
    split: clients.ClientOptions = dataclasses.field(
        default_factory=clients.ClientOptions
    )
    validation_share: float = 0.0
    on_validation: bool = False
    seed: int = 0


def load(images: index.ImageIndex, options: ImageOptions) -> FederatedDataset:
    """Makes a federated data set of labelled images.

    No image is read here. Clients read and check theirs when they are asked for;
    memory is that of the index.

    Args:
        images: Which there are.
        options: What becomes of them.

    Returns:
        The data set. Classes are numbered in the order of their names among those that
        clients may have. Stored images are string[], the bytes of a JPEG or PNG;
        pooled and test images int64[], rows of `images`.

    Raises:
        InvalidInputError: If the options do not go with each other or with the images.
    """
    if not 0 <= options.seed < 2**63:
        raise InvalidInputError(f"seed={options.seed} must be in 0..2^63-1.")
    splits.check_validation(options.validation_share, options.on_validation)

    def read(stored: tf.Tensor) -> tf.Tensor:
        if stored.dtype == tf.string:
            return decode_image(stored)
        content = tf.numpy_function(
            lambda row: images.encoded(int(row)), [stored], tf.string
        )
        content.set_shape([])
        return decode_image(content)

    preprocessing = Preprocessing(options.image_size, options.resize_size, read)
    rng = np.random.Generator(np.random.Philox(key=[options.seed, _PHILOX_STREAM]))
    chosen = splits.hold_out(
        images,
        is_unseen=options.retrieval,
        test=options.test,
        share=options.test_share,
        num_public_classes=options.num_public_classes,
        rng=rng,
    )
    labels, present = splits.numbered(images.labels, chosen.train)
    num_classes = len(present)
    partition = clients.split(
        labels[chosen.train],
        None if images.clients is None else images.clients[chosen.train],
        images.client_names,
        options.split,
        rng,
    )
    test, notes = chosen.test, [images.note, chosen.note]
    is_validation = splits.choose_validation(
        partition.num_clients, options.validation_share, rng
    )
    if options.validation_share:
        notes.append(splits.note_chosen(int(is_validation.sum())))
    train = _ImageClients(images, labels, chosen.train, partition, ~is_validation)
    unseen = chosen.test_is_unseen
    if options.on_validation:
        test = np.sort(
            np.concatenate(
                [
                    chosen.train[partition.examples(k)]
                    for k in np.flatnonzero(is_validation)
                ]
            )
        )
        # Of the classes that are trained, unless it is for retrieval.
        seen = np.full(num_classes, unseen)
        unseen = False
        seen[labels[train.rows]] = True
        known = seen[labels[test]]
        if not known.all():
            notes.append(splits.note_left_out(int(np.sum(~known))))
        test = test[known]
        if not len(test):
            raise InvalidInputError(splits.NO_KNOWN_CLASS)
    if unseen:
        test_labels, _ = splits.numbered(images.labels, test)
    else:
        test_labels = labels
    of_train = images.labels[chosen.train]
    public_labels, public = splits.numbered(images.labels, chosen.public)

    def rows_dataset(rows: np.ndarray, numbers: np.ndarray) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(
            client_data.to_element(
                rows.astype(np.int64), numbers[rows].astype(np.int32)
            )
        )

    def rows_held_out(rows: np.ndarray, numbers: np.ndarray) -> HeldOut:
        data = rows_dataset(rows, numbers)
        return HeldOut(data, len(rows), len(np.unique(numbers[rows])))

    return FederatedDataset(
        name=images.name,
        num_classes=num_classes,
        image_shape=(options.image_size, options.image_size, 3),
        train=train,
        test=rows_held_out(test, test_labels),
        test_is_unseen=unseen,
        preprocessing=preprocessing,
        pooled=lambda: rows_dataset(train.rows, labels),
        public=rows_held_out(chosen.public, public_labels) if len(public) else None,
        class_names=[images.class_names[c] for c in np.unique(of_train)],
        note="; ".join(filter(None, notes)),
        contents=lambda: {
            **images.fingerprint(np.sort(train.rows)),
            "test rows": fingerprint.of_arrays([test, test_labels[test]]),
            "public rows": fingerprint.of_arrays([chosen.public]),
        },
    )


class _ImageClients(client_data.ArrayClientData):
    """Clients whose images are read when asked for."""

    def __init__(
        self,
        images: index.ImageIndex,
        labels: np.ndarray,
        rows: np.ndarray,
        partition: Partition,
        is_training: np.ndarray,
    ):
        """Takes the training clients of a partition.

        Args:
            images: All images.
            labels: Of all rows of images, int32[N].
            rows: Those that partition splits.
            partition: Of rows.
            is_training: Whether a client of it trains, bool[K].
        """
        kept = np.flatnonzero(is_training)
        super().__init__([partition.client_ids[k] for k in kept], (), tf.string)
        self._images, self._labels = images, labels
        sizes = partition.sizes[kept]
        self._starts = np.append(0, np.cumsum(sizes))
        self.rows = rows[np.concatenate([partition.examples(k) for k in kept])]
        self._place = {client: k for k, client in enumerate(self.client_ids)}
        self._pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        owner = np.repeat(np.arange(len(kept)), sizes)
        pairs = np.unique(owner * (int(labels.max()) + 1) + labels[self.rows])
        owner, present = np.divmod(pairs, int(labels.max()) + 1)
        self._positives = present.astype(np.int32)
        self._positives_ends = np.searchsorted(owner, np.arange(len(kept) + 1))
        self.max_positives = int(np.diff(self._positives_ends).max())

    def client_arrays(self, client_id: str) -> client_data.Arrays:
        """See the base class."""
        rows = self._rows_of(client_id)
        contents = np.empty(len(rows), object)
        contents[:] = list(self._pool.map(self._images.encoded, rows.tolist()))
        return contents, self._labels[rows]

    def num_examples(self, client_id: str) -> int:
        """n_k of a client; reads no image."""
        return len(self._rows_of(client_id))

    def positives(self, client_id: str) -> np.ndarray:
        """P_k of a client, int32[|P_k|], ascending; reads no image."""
        k = self._number(client_id)
        return self._positives[self._positives_ends[k] : self._positives_ends[k + 1]]

    def _rows_of(self, client_id: str) -> np.ndarray:
        k = self._number(client_id)
        return self.rows[self._starts[k] : self._starts[k + 1]]

    def _number(self, client_id: str) -> int:
        if client_id not in self._place:
            raise ValueError(f"{client_id!r} is not a client of this data set.")
        return self._place[client_id]
