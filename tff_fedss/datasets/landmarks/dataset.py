"""Landmarks-User-160k: photographs of landmarks, grouped by photographer.

The federated split of Google Landmarks v2 by Hsu et al. ("Federated Visual
Classification with Real-World Data Distribution", ECCV 2020), which FedSS uses in its
Section 4.2, and the smaller split of TFF's `gld23k`. `data/prepare_landmarks.py` writes
the files that are read here. They have the layout of TFF's cache of this data set, so
that a cache made by TFF can also be read:

    gld160k/train/<user_id>    a TFRecord file per client
    gld160k/test.tfRecord

Records are `tf.train.Example`s of `image/encoded_jpeg` and `class`. (In TFF 0.87,
`tff.simulation.datasets.gldv2.load_data` cannot read its own cache: it ignores the
error and starts to download half a terabyte. It is not called here.)
"""

import collections
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss.datasets.federated import records, split_csv
from tff_fedss.datasets.federated.clients import Counted
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.datasets.federated.preprocessing import (
    Preprocessing,
    TracedOnce,
    decode_image,
)
from tff_fedss.errors import InvalidInputError, check_choice

TRAIN_FOLDER = "train"
TEST_FILE = "test.tfRecord"
IMAGE_FEATURE = "image/encoded_jpeg"
CLASS_FEATURE = "class"


@dataclasses.dataclass(frozen=True)
class Published:
    """The published description of a split.

    Attributes:
        train_csv: The name of the file that lists the clients' images.
        num_classes: n.
        num_test_images: The number of test images; None if not published.
    """

    title: str
    folder: str
    train_csv: str
    test_csv: str
    num_classes: int
    num_clients: int
    num_train_images: int
    num_test_images: int | None = None


SPLITS = {
    "160k": Published(
        title="Landmarks-User-160k",
        folder="gld160k",
        train_csv="federated_train.csv",
        test_csv="test.csv",
        num_classes=2028,
        num_clients=1262,
        num_train_images=164_172,
        num_test_images=19_526,
    ),
    "23k": Published(
        title="Landmarks-User-23k",
        folder="gld23k",
        train_csv="mini_gld_train_split.csv",
        test_csv="mini_gld_test.csv",
        num_classes=203,
        num_clients=233,
        num_train_images=23_080,
    ),
}


def load(
    data_dir: os.PathLike | None,
    *,
    split: Literal[tuple(SPLITS)] = "160k",
    image_size: int = 224,
    resize_size: int | None = None,
) -> FederatedDataset:
    """Loads the clients and the test images; no image stays in memory.

    The first call reads every record, decodes every image once, and keeps an index
    in the cache. Later calls take a second.

    Args:
        data_dir: The folder that holds `gld160k` (or `gld23k`), or that folder itself.
        split: Split of Landmarks-User-160k or of the smaller Landmarks-User-23k.
        image_size: Height and width of the model's images, in pixels.
        resize_size: Height and width in pixels to which images are resized before the
            crop; by default 256/224 of image_size, as in the paper.

    Returns:
        The data set. A client's stored examples are `OrderedDict(image=string[], the
        encoded file, label=int32[])` in the order of its file, from TFF's own
        `FilePerUserClientData`, which a TFF worker can read.
    """
    check_choice("split", split, SPLITS)
    preprocessing = Preprocessing(image_size, resize_size, read=_read_stored)
    published = SPLITS[split]
    folder = _find_folder(data_dir, published)
    client_ids = _find_clients(folder, published)
    paths = [str(folder / TRAIN_FOLDER / client_id) for client_id in client_ids]

    index = records.build_index(
        [*paths, str(folder / TEST_FILE)],
        records.example_parser(IMAGE_FEATURE, CLASS_FEATURE, published.num_classes),
        what=published.title,
    )
    # The rows are in the order of the files and of the records in each.
    starts = np.searchsorted(index.records["file"], np.arange(len(paths) + 2))
    labels = [
        np.asarray(index.records["label"][begin:end], np.int32)
        for begin, end in itertools.pairwise(starts)
    ]
    *train_labels, test_labels = labels
    clients = dict(zip(client_ids, train_labels, strict=True))

    positives = {client_id: np.unique(found) for client_id, found in clients.items()}
    num_train = int(starts[-2])
    return FederatedDataset(
        name=published.title,
        num_classes=published.num_classes,
        image_shape=(image_size, image_size, 3),
        train=Counted(
            tff.simulation.datasets.FilePerUserClientData(
                dict(zip(client_ids, paths, strict=True)), _stored_examples
            ),
            client_ids,
            lambda client_id: len(clients[client_id]),
            positives.__getitem__,
        ),
        test=HeldOut(
            _stored_examples(str(folder / TEST_FILE)),
            len(test_labels),
            len(np.unique(test_labels)),
        ),
        preprocessing=preprocessing,
        pooled=lambda: records.references(index, np.arange(num_train)),
        note=_note(num_train, len(clients), published),
        contents=lambda: {"training images": num_train, **index.contents()},
    )


def _note(num_train: int, num_clients: int, published: Published) -> str:
    note = f"{num_train:,} training images"
    if (num_train, num_clients) != (published.num_train_images, published.num_clients):
        note += (
            f" (published: {published.num_train_images:,} of "
            f"{published.num_clients:,} clients)"
        )
    return note


def _find_folder(data_dir: os.PathLike | None, published: Published) -> pathlib.Path:
    """Returns the absolute path of the folder of one split."""
    root = pathlib.Path(data_dir or "").absolute()
    for folder in (root / published.folder, root):
        if (
            data_dir
            and (folder / TRAIN_FOLDER).is_dir()
            and (folder / TEST_FILE).is_file()
            and folder.name not in {s.folder for s in SPLITS.values() if s != published}
        ):
            return folder
    raise InvalidInputError(
        f"data_dir={data_dir}: expected {published.folder}/{TRAIN_FOLDER}/<user_id> "
        f"and {published.folder}/{TEST_FILE}, of `./run.sh prepare_landmarks`."
    )


def _find_clients(folder: pathlib.Path, published: Published) -> list[str]:
    """Returns the clients, sorted as `FilePerUserClientData` sorts them."""
    train_folder = folder / TRAIN_FOLDER
    found = {entry.name for entry in train_folder.iterdir()}
    listing = folder / published.train_csv
    # A cache made by TFF has no copy of it.
    if listing.exists():
        listed = {*split_csv.read(listing, published.num_classes).clients}
        if found != listed:
            strays, missing = sorted(found - listed), sorted(listed - found)
            raise InvalidInputError(
                f"{train_folder}: {len(missing):,} of {len(listed):,} clients have no "
                f"file {missing[:1]}, {len(strays):,} files are of no client "
                f"{strays[:1]}. Remove these, and run `./run.sh prepare_landmarks`."
            )
    return sorted(found)


_FEATURES = {
    IMAGE_FEATURE: tf.io.FixedLenFeature([], tf.string),
    CLASS_FEATURE: tf.io.FixedLenFeature([], tf.int64),
}


def _stored_example(serialized: tf.Tensor) -> collections.OrderedDict:
    example = tf.io.parse_single_example(serialized, _FEATURES)
    return collections.OrderedDict(
        image=example[IMAGE_FEATURE],
        label=tf.cast(example[CLASS_FEATURE], tf.int32),
    )


_parse = TracedOnce(lambda data: data.map(_stored_example))


def _stored_examples(path: str | tf.Tensor) -> tf.data.Dataset:
    """Reads a file's examples; also in a graph, where the path is a tensor."""
    return _parse(tf.data.TFRecordDataset(path))


_read_reference = records.read_image(IMAGE_FEATURE)


def _read_stored(image: Any) -> tf.Tensor:
    """Decodes a stored image: a client's file content or a reference to a record."""
    return _read_reference(image) if isinstance(image, Mapping) else decode_image(image)
