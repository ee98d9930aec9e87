"""Which client has which training image: made, named, and read from a CSV file."""

import csv
import os

import numpy as np

from tff_fedss.datasets.federated import partitions, split_csv
from tff_fedss.datasets.stanford_online_products.original import Listing
from tff_fedss.errors import InvalidInputError

IMAGES_PER_CLIENT = 100

# Keeps the draws of this data set apart from others of the same seed.
_PHILOX_STREAM = int.from_bytes(b"products", "big")


def make_partition(
    train: Listing, images_per_client: int = IMAGES_PER_CLIENT, seed: int = 0
) -> partitions.Partition:
    """Splits the training images over clients; see `partitions.chunks`.

    Args:
        train: The listing of the training images.
        images_per_client: How many images a client has; the last one may have fewer.
        seed: Which partition; 0 <= seed < 2^63.

    Returns:
        The clients, with examples as rows of the listing. The original has 596 for
        images_per_client=100.

    Raises:
        InvalidInputError: If an argument is out of range.
    """
    rng = partitions.generator(seed, _PHILOX_STREAM)
    return partitions.chunks(train.labels, images_per_client, rng)


def to_split(train: Listing, partition: partitions.Partition) -> split_csv.Split:
    """Names the images of a partition, client after client, for `split_csv.write`."""
    return split_csv.Split(
        [train.image_ids[row] for row in partition.order],
        train.labels[partition.order],
        [
            client_id
            for client_id, size in zip(
                partition.client_ids, partition.sizes, strict=True
            )
            for _ in range(size)
        ],
    )


def read_partition(path: os.PathLike, train: Listing) -> partitions.Partition:
    """Reads a partition of the training images, and checks that it is one.

    Args:
        path: A CSV file with the columns user_id, image_id and class.
        train: The listing of the training images.

    Returns:
        The clients in the order in which they come up, each one's images likewise.

    Raises:
        InvalidInputError: If the file cannot be read, names an image that the listing
            does not have, has a wrong class for one, or lacks one.
    """
    split = split_csv.read(path, int(train.labels.max()) + 1)
    row_of = {image_id: row for row, image_id in enumerate(train.image_ids)}
    rows = np.array([row_of.get(image_id, -1) for image_id in split.image_ids])
    for i in np.flatnonzero(rows < 0)[:1]:
        raise InvalidInputError(
            f"{_csv_line(path, i)}: there is no image_id {split.image_ids[i]!r} in "
            f"{train.name}."
        )
    for i in np.flatnonzero(split.classes != train.labels[rows])[:1]:
        raise InvalidInputError(
            f"{_csv_line(path, i)}: image_id {split.image_ids[i]!r} has the class "
            f"{split.classes[i]}; expected {train.labels[rows[i]]}, which is the "
            f"class_id in {train.where(rows[i])}, less 1."
        )
    missing = np.setdiff1d(np.arange(len(train.image_ids)), rows)
    if len(missing):
        raise InvalidInputError(
            f"{os.fspath(path)}: {len(missing):,} of the {len(train.image_ids):,} "
            "training images are with no client, the first of them "
            f"{train.image_ids[missing[0]]!r} ({train.where(missing[0])})."
        )
    client_ids = list(dict.fromkeys(split.clients))
    position = {client_id: k for k, client_id in enumerate(client_ids)}
    client_of = np.array([position[client_id] for client_id in split.clients])
    by_client = np.argsort(client_of, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(client_of)))
    return partitions.Partition(client_ids, rows[by_client], starts)


def _csv_line(path: os.PathLike, row: int) -> str:
    """Names the line of a row of a CSV file that `split_csv` has read."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        lines = [reader.line_num for fields in reader if fields]
    return f"{os.fspath(path)}, line {lines[row + 1]}"
