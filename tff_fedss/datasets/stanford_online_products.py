"""Stanford Online Products: photographs of 22,634 products (Song et al., CVPR 2016).

FedSS (Section 4.3, Appendix A.5) splits its 59,551 training images of 11,318 products
over 596 clients of 100 images and about 20 products each, and retrieves images of the
11,316 other products. The original is `Stanford_Online_Products.zip`:

    Stanford_Online_Products/Ebay_train.txt      a line per training image:
                                                 image_id class_id super_class_id path
    Stanford_Online_Products/Ebay_test.txt       the same of the test images
    Stanford_Online_Products/<...>_final/*.JPG   the images
"""

import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tff_fedss import files
from tff_fedss.datasets import sources
from tff_fedss.datasets.federated import partitions, split_csv
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.datasets.images import ImageIndex, layout
from tff_fedss.datasets.images.federated import federated_dataset
from tff_fedss.errors import InvalidInputError

TITLE = "Stanford Online Products"
ARCHIVE = "Stanford_Online_Products.zip"
IMAGES_PER_CLIENT = 100
_TRAIN, _TEST = "Ebay_train.txt", "Ebay_test.txt"
_COLUMNS = ("image_id", "class_id", "super_class_id", "path")
_LAYOUT = f"{ARCHIVE}, or a folder that holds it or what it unpacks to"
# The original's training images and classes, and test images.
_ORIGINAL = (59_551, 11_318, 60_502)

# Separates this data set's draws from others with the same seed.
_PHILOX_STREAM = int.from_bytes(b"products", "big")


class Listing(NamedTuple):
    """The rows of Ebay_train.txt or Ebay_test.txt, in their order.

    Attributes:
        image_ids: str[N], all different.
        labels: `class_id` - 1, int32[N]. In the original, 0..11317 in training and
            11318..22633 in the test.
        lines: Places of the rows, as "file:line" for messages.
    """

    image_ids: list[str]
    labels: np.ndarray
    paths: list[str]
    lines: list[str]


def load(
    data_dir: str | os.PathLike | None,
    *,
    image_size: int = 224,
    resize_size: int | None = None,
    images_per_client: int = IMAGES_PER_CLIENT,
    seed: int = 0,
    clients_csv: str | os.PathLike | None = None,
) -> FederatedDataset:
    """Loads the clients' images and the test images; no image stays in memory.

    The first call reads every image and checks that it decodes. Images are read in
    place, and not rotated by their Exif orientation, as in TFDS and other work.

    Args:
        data_dir: `Stanford_Online_Products.zip`, or a folder that holds it or what it
            unpacks to.
        image_size: Height and width of the model's images, in pixels.
        resize_size: Height and width in pixels to which images are resized before the
            crop; by default 256/224 of image_size, as in the paper.
        images_per_client: How many images a client has; the last one may have fewer.
        seed: Seed of the partition; 0 <= seed < 2^63. The paper's is not published.
        clients_csv: A partition written by `data/partition_sop.py`; by default the one
            for the same images_per_client and seed.

    Returns:
        The data set. Labels are 0..n-1 in training (`class_id` - 1), from n on in the
        test.
    """
    source = _open(data_dir)
    train, test = _read_train(source), _read(source, _TEST)
    if clients_csv is None:
        partition = make_partition(train, images_per_client, seed)
    else:
        partition = read_partition(clients_csv, train)
    for row in np.flatnonzero(np.isin(test.labels, train.labels))[:1]:
        raise InvalidInputError(
            f"{test.lines[row]}: class_id {test.labels[row] + 1} is one of {_TRAIN}."
        )
    rows = [*_rows(train, layout.TRAIN), *_rows(test, layout.TEST)]
    what = layout.from_rows(rows, source.names)
    images = ImageIndex(source, what, TITLE, normalize=bytes)
    images.check_images()
    num_train, num_classes = len(train.labels), int(train.labels.max()) + 1
    found = (num_train, num_classes, len(test.labels))
    note = f"{num_train:,} training images"
    if found != _ORIGINAL:
        note += (
            "; not the original, which has {:,} of {:,} classes and {:,} test images"
        ).format(*_ORIGINAL)
    return federated_dataset(
        images,
        images.labels,
        partition,
        test=np.arange(num_train, len(rows)),
        num_classes=num_classes,
        image_size=image_size,
        resize_size=resize_size,
        test_is_unseen=True,
        is_pooled_in_order=True,
        note=note,
    )


def make_partition(
    train: Listing, images_per_client: int = IMAGES_PER_CLIENT, seed: int = 0
) -> partitions.Partition:
    """Splits the listing's rows over clients of equal size; see `partitions.chunks`.

    The original has 596 clients for images_per_client=100.
    """
    rng = partitions.generator(seed, _PHILOX_STREAM)
    starts = partitions.equal_sizes(len(train.labels), images_per_client)
    return partitions.chunks(train.labels, starts, rng)


def to_split(train: Listing, partition: partitions.Partition) -> split_csv.Split:
    """Names the images of a partition, client after client, for `split_csv.write`."""
    return split_csv.Split(
        [train.image_ids[row] for row in partition.order],
        train.labels[partition.order],
        np.repeat(partition.client_ids, partition.sizes).tolist(),
    )


def read_partition(path: str | os.PathLike, train: Listing) -> partitions.Partition:
    """Reads and checks a partition: a CSV file of user_id, image_id and class.

    The clients, and the images of each, are in the order of the file.
    """
    split = split_csv.read(path, int(train.labels.max()) + 1)
    row_of = {image_id: row for row, image_id in enumerate(train.image_ids)}
    found, listed = (
        dict(zip(images.image_ids, labels.tolist(), strict=True))
        for images, labels in ((split, split.classes), (train, train.labels))
    )
    for image_id, _ in sorted(found.items() ^ listed.items())[:1]:
        raise InvalidInputError(
            f"{os.fspath(path)}: the class of the image_id {image_id!r} is "
            f"{found.get(image_id, 'missing')}; expected, by its class_id in {_TRAIN} "
            f"less 1, {listed.get(image_id, 'no such image')}."
        )
    rows = np.array([row_of[image_id] for image_id in split.image_ids])
    client_ids = list(dict.fromkeys(split.clients))
    position = {client_id: k for k, client_id in enumerate(client_ids)}
    client_of = np.array([position[client_id] for client_id in split.clients])
    by_client = np.argsort(client_of, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(client_of)))
    return partitions.Partition(client_ids, rows[by_client], starts)


def read_train_listing(data_dir: str | os.PathLike) -> Listing:
    """Reads and checks Ebay_train.txt alone; needs no image.

    Args:
        data_dir: See `load`; Ebay_train.txt of the unpacked folder is enough.
    """
    return _read_train(_open(data_dir))


def _open(data_dir: str | os.PathLike | None) -> sources.Source:
    # There may be other files beside the zip.
    archive = pathlib.Path(data_dir or "") / ARCHIVE
    is_beside = data_dir and archive.is_file()
    return sources.open_source(
        archive if is_beside else data_dir, f"data_dir={data_dir}"
    )


def _read_train(source: sources.Source) -> Listing:
    train = _read(source, _TRAIN)
    present = np.unique(train.labels)
    for gap in np.flatnonzero(present != np.arange(len(present)))[:1]:
        raise InvalidInputError(
            f"{source.label}: no row of {_TRAIN} has the class_id {gap + 1}."
        )
    return train


def _read(source: sources.Source, name: str) -> Listing:
    path, content = source.read_only(name, _LAYOUT)
    folder = path.removesuffix(name)
    line_of, labels, paths = {}, [], []
    rows = files.csv_table(content, f"{source.label}: {path}", _COLUMNS, " ")
    for where, row in rows:
        class_id, image_id = row["class_id"], row["image_id"]
        files.expect_once(line_of, image_id, where, "image_id")
        labels.append(files.whole_number(class_id, where, "class_id", 1) - 1)
        paths.append(folder + row["path"])
    if not labels:
        raise InvalidInputError(f"{source.label}: {path} has no image.")
    lines = list(line_of.values())
    return Listing(list(line_of), np.array(labels, np.int32), paths, lines)


def _rows(listing: Listing, split: int) -> Iterator[layout.Row]:
    for label, path, line in zip(
        listing.labels, listing.paths, listing.lines, strict=True
    ):
        # With leading zeros, so that the order of the names is that of the numbers.
        yield layout.Row(line, path, f"{label + 1:09}", None, split)
