"""Labelled images of any origin as a federated data set."""

import concurrent.futures
import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tff_fedss.datasets import splits
from tff_fedss.datasets.federated import clients as client_data
from tff_fedss.datasets.federated import partitioners, partitions
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.datasets.federated.preprocessing import Preprocessing, decode_image
from tff_fedss.datasets.images import index, layout, resized
from tff_fedss.errors import InvalidInputError, check_range

# Separates these draws from others with the same seed.
_PHILOX_STREAM = int.from_bytes(b"images..", "big")

# The smallest and largest default size, and the number of images that decide it.
_SIZES = (8, 56)
_MEASURED_IMAGES = 16

# Partitioners of a user's images, the default first.
AnyPartitioner = (
    partitioners.Iid
    | partitioners.Natural
    | partitioners.Dirichlet
    | partitioners.Classes
    | partitioners.Chunks
    | partitioners.Quantity
)


def load(
    images: index.ImageIndex,
    *,
    partition: AnyPartitioner = partitioners.Iid(),
    image_size: int | None = None,
    resize_size: int | None = None,
    retrieval: bool = False,
    test: Literal[splits.TESTS] | None = None,
    test_share: float = 0.2,
    num_public_classes: int = 0,
    validation_share: float = 0.0,
    on_validation: bool = False,
    seed: int = 0,
) -> FederatedDataset:
    """Makes a federated data set of labelled images.

    No image is read here. Clients read and check theirs on request; only the index is
    in memory.

    Args:
        image_size: Height and width in pixels of the model's images: a crop. By default
            56, or the shorter side of most images if that is less.
        resize_size: Height and width in pixels to which images are resized before the
            crop; by default 256/224 of image_size, the paper's ratio (Appendix A.2).
        retrieval: Whether the test is of classes that no client has.
        test: The images that are held out. "given": the data's own test (or val). A
            share of the "images" of each class, of the "classes" (for retrieval) or of
            the "clients". By default given if there is one, else images, or classes for
            retrieval.
        test_share: The share that is held out, above 0 and below 1.
        num_public_classes: Number of classes, drawn at random, that no client gets, for
            a warm start.
        validation_share: The share of clients that are validation clients, in [0, 1).
        on_validation: Whether the held-out images are those of the validation clients
            instead of the test's: for choices that must not use the test.
        seed: Seed of all draws; 0 <= seed < 2^63.

    Returns:
        The data set, see `federated_dataset`. Classes that clients may have are
        numbered in the order of `images.class_names`.
    """
    check_range("validation_share", validation_share, 0, 1, above=on_validation)
    rng = partitions.generator(seed, _PHILOX_STREAM)
    chosen = splits.hold_out(
        images,
        is_unseen=retrieval,
        test=test,
        share=test_share,
        num_public_classes=num_public_classes,
        rng=rng,
    )
    labels, present = splits.numbered(images.labels, chosen.train)
    everyone = partition.split(
        labels[chosen.train],
        rng,
        None if images.clients is None else images.clients[chosen.train],
        images.client_names,
    )
    held_out, notes = chosen.test, [images.note, chosen.note]
    if images.clients is not None and not isinstance(partition, partitioners.Natural):
        notes.append("the data's own clients are not used, see --partition=natural")
    is_apart = splits.choose_validation(everyone.num_clients, validation_share, rng)
    # The rows of all clients' images, and whether they are validation clients'.
    rows, row_is_apart = chosen.train[everyone.order], is_apart.repeat(everyone.sizes)
    clients = partitions.Partition(
        list(itertools.compress(everyone.client_ids, ~is_apart)),
        rows[~row_is_apart],
        np.append(0, np.cumsum(everyone.sizes[~is_apart])),
    )
    unseen, num_left_out = retrieval, 0
    if on_validation:
        held_out = np.sort(rows[row_is_apart])
        # Only trained classes, unless for retrieval.
        seen = np.full(len(present), unseen)
        unseen = False
        seen[labels[clients.order]] = True
        known = seen[labels[held_out]]
        num_left_out, held_out = int(np.sum(~known)), held_out[known]
    elif unseen:
        labels[held_out] = splits.numbered(images.labels, held_out)[0][held_out]
    if validation_share:
        num_apart = int(is_apart.sum())
        notes.append(splits.note_validation(num_apart, num_left_out, len(held_out)))
        untrained = len(present) - len(np.unique(labels[clients.order]))
        if untrained and not (on_validation or retrieval):
            notes.append(f"{untrained:,} classes have no training image, and stay in n")
    public = chosen.public
    if len(public):
        labels[public] = splits.numbered(images.labels, public)[0][public]
    return federated_dataset(
        images,
        labels,
        clients,
        test=held_out,
        public=public,
        num_classes=len(present),
        image_size=image_size or _fitting_size(images, chosen.train),
        resize_size=resize_size,
        test_is_unseen=unseen,
        class_names=[images.class_names[c] for c in present],
        note="; ".join(filter(None, notes)),
    )


def _fitting_size(images: index.ImageIndex, rows: np.ndarray) -> int:
    """Returns the median of some images' shorter sides, limited to 8..56."""
    few = rows[:: -(-len(rows) // _MEASURED_IMAGES)]
    sides = [min(images.pixels(row).shape[:2]) for row in few]
    return int(np.clip(np.median(sides), *_SIZES))


def load_folder(
    data_dir: str | os.PathLike | None,
    *,
    folders: Literal[layout.FOLDERS] = "auto",
    **options: Any,
) -> FederatedDataset:
    """Loads the images of a folder, an archive or a table.

    See `index.load` and `load`.

    Args:
        folders: The meaning of the folders above an image. "auto": its class, unless
            that could also be client/class; client/class if clients are needed.
    """
    return _with_validation(open_folder(data_dir, folders, **options), **options)


def load_tfds(
    data_dir: str | os.PathLike | None = None,
    *,
    name: str,
    image: str | None = None,
    label: str | None = None,
    client: str | None = None,
    **options: Any,
) -> FederatedDataset:
    """Loads the images of a data set of TFDS.

    Args:
        data_dir: TFDS's folder; None: TFDS's own default.
        name: `NAME[/CONFIG][:VERSION]`.
        image: The feature with the image; by default the only image.
        label: The feature with the class, a number or a text; by default the only class
            label.
        client: The feature with the client, for partition=natural and test=clients.
        **options: See `load`.

    Raises:
        InvalidInputError: See `tfds_index.load` and `load`.
    """
    # TFDS takes seconds to import.
    from tff_fedss.datasets.images import tfds_index

    images = tfds_index.load(name, data_dir, image=image, label=label, client=client)
    return _with_validation(images, **options)


def _with_validation(images: index.ImageIndex, **options: Any) -> FederatedDataset:
    """Loads images, with `on_validation`."""
    dataset = load(images, **options)
    if not options.get("validation_share") or options.get("on_validation"):
        return dataset
    options["on_validation"] = True
    again = functools.partial(load, images, **options)
    return dataclasses.replace(dataset, on_validation=again)


def open_folder(
    data_dir: str | os.PathLike | None,
    folders: str = "auto",
    *,
    test: str | None = None,
    partition: AnyPartitioner | None = None,
    **options: Any,
) -> index.ImageIndex:
    """Indexes the images of a folder, an archive or a table, see `load_folder`.

    With folders="auto", test="clients" and the partition `Natural` need clients.
    Other options of `load` have no effect here.
    """
    if not data_dir:
        raise InvalidInputError(
            "own images need `data_dir`: a folder, archive or table."
        )
    if folders == "auto" and (
        test == "clients" or isinstance(partition, partitioners.Natural)
    ):
        folders = "client/class"
    return index.load(data_dir, folders=folders)


def federated_dataset(
    images: index.ImageIndex,
    labels: np.ndarray,
    partition: partitions.Partition,
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
        labels: The label of each row in its use, int32[N].
        partition: The clients; its examples are rows.
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

    Returns:
        The data set. Stored images are string[], the bytes of a JPEG or PNG, or, if
        that is less, uint8[resize_size, resize_size, 3], read from `ResizedImages`;
        pooled and held-out images are int64[], rows of the index.
    """
    preprocessing = Preprocessing(image_size, resize_size)
    size = preprocessing.resize_size
    if resized.ResizedImages.are_smaller(images, size):
        store = resized.ResizedImages(images, preprocessing)
        read_row, spec = store.pixels, tf.TensorSpec([size, size, 3], tf.uint8)
    else:
        read_row, spec = images.encoded, tf.TensorSpec([], tf.string)

    def read(stored: tf.Tensor) -> tf.Tensor:
        if stored.dtype == tf.int64:
            row = stored
            stored = tf.numpy_function(lambda k: read_row(int(k)), [row], spec.dtype)
            stored.set_shape(spec.shape)
        return decode_image(stored) if stored.dtype == tf.string else stored

    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())

    def read_rows(rows: np.ndarray) -> np.ndarray:
        contents = np.empty(
            [len(rows), *spec.shape], object if spec.dtype == tf.string else np.uint8
        )
        for k, content in enumerate(pool.map(read_row, rows.tolist())):
            contents[k] = content
        return contents

    def rows_dataset(rows: np.ndarray) -> tf.data.Dataset:
        return client_data.dataset_from_arrays(rows, labels[rows].astype(np.int32))

    def held_out(part: str) -> HeldOut | None:
        rows = used[part]
        if not len(rows):
            return None
        return HeldOut(rows_dataset(rows), len(rows), len(np.unique(labels[rows])))

    rows = np.asarray(partition.order, np.int64)
    used = {"test": test, "public": public, "unseen": unseen}
    used = {part: np.asarray(chosen, np.int64) for part, chosen in used.items()}
    return FederatedDataset(
        name=name or images.name,
        num_classes=num_classes,
        image_shape=(image_size, image_size, 3),
        train=client_data.IndexedClientData(partition, labels, read_rows, spec),
        test=held_out("test"),
        test_is_unseen=test_is_unseen,
        preprocessing=dataclasses.replace(preprocessing, read=read),
        pooled=lambda: rows_dataset(np.sort(rows) if is_pooled_in_order else rows),
        public=held_out("public"),
        unseen=held_out("unseen"),
        class_names=class_names,
        note=note,
        contents=lambda: {
            **images.fingerprint(np.sort(np.concatenate([rows, *used.values()]))),
            **{
                f"{part} rows": [chosen, labels[chosen]]
                for part, chosen in used.items()
            },
        },
    )
