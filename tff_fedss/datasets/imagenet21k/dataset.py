"""ImageNet-21k as a federated data set (FedSS, Appendix A.4), from TFRecord shards.

`./run.sh prepare_imagenet21k` writes the shards from the class tars; see
`data/prepare_imagenet21k.py`. Images are read on request. Memory holds the index of
records, 24 bytes an image, and the clients' order of the training images, 8 bytes an
image.
"""

import math
import os
import pathlib

import numpy as np

from tff_fedss import errors, files, unpacking
from tff_fedss.datasets import bijection
from tff_fedss.datasets.federated import partitions, preprocessing, records
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut

NAME = "imagenet21k"
VERSION = "1.0.0"
SPLITS = ("train", "test")
PREPARATION_FILE = "preparation.json"
CLASS_SIZES_FILE = "class_sizes.csv"  # Written last.
UNDECODABLE_FILE = "undecodable.csv"
INDEX_FILE = "index.npz"  # The lengths of each split's records, int64[N].


def shard_name(split: str, label: int, num_classes: int) -> str:
    """Returns the name of a shard's file, in TFDS's form."""
    digits = max(5, len(str(num_classes)))
    return f"{NAME}-{split}.tfrecord-{label:0{digits}}-of-{num_classes:0{digits}}"


def open_index(folder: pathlib.Path, split: str) -> records.RecordIndex:
    """Opens the index of "train" or "test", and checks that its shards are complete.

    It takes 24 bytes of memory a record.
    """
    folder = folder.absolute()
    sizes = read_class_sizes(folder)[split]
    path = folder / INDEX_FILE
    lengths = unpacking.read_npz(path)[split]  # It compares a checksum.
    if len(lengths) != sizes.sum():
        found = f"{sizes.sum():,} images for {split}, not {len(lengths):,}"
        raise errors.InvalidInputError(f"{folder / CLASS_SIZES_FILE}: {found}.")
    frame = records.HEADER_BYTES + records.FOOTER_BYTES
    ends = np.cumsum(lengths + frame)  # Counted over all shards.
    shard_ends = np.append(0, ends)[np.cumsum(sizes)]
    shard_starts = np.append(0, shard_ends[:-1])
    index = np.empty(len(lengths), records.DTYPE)
    index["file"] = index["label"] = np.repeat(np.arange(len(sizes)), sizes)
    index["length"] = lengths
    index["offset"] = ends - lengths - records.FOOTER_BYTES
    index["offset"] -= np.repeat(shard_starts, sizes)
    paths = [
        folder / shard_name(split, label, len(sizes)) for label in range(len(sizes))
    ]
    for shard, wanted in zip(paths, shard_ends - shard_starts, strict=True):
        found = shard.stat().st_size if shard.exists() else 0
        if found != wanted:
            raise errors.InvalidInputError(f"{shard}: {found:,} bytes, not {wanted:,}.")
    return records.RecordIndex(tuple(map(str, paths)), index)


def read_class_sizes(folder: os.PathLike) -> dict[str, np.ndarray]:
    """Returns each split's images of each class, int64[n], from CLASS_SIZES_FILE."""
    path = pathlib.Path(folder) / CLASS_SIZES_FILE
    where_of, sizes = {}, []
    columns = ("wnid", *SPLITS)
    for where, row in files.csv_table(files.read_bytes(path), path, columns):
        files.expect_once(where_of, row["wnid"], where, "wnid")
        sizes.append([files.whole_number(row[s], where, f"{s} size") for s in SPLITS])
    return dict(zip(SPLITS, np.array(sizes, np.int64).reshape(-1, 2).T, strict=True))


# "The train split is used to generate 25,691 clients, each containing approximately 400
# images distributed across 20 class labels." The split is the fall 2011 release's:
# "14.2 million images distributed across 21k classes".
PAPER_CLIENTS = 25_691
PAPER_IMAGES = 14_197_122
CLASSES_PER_CLIENT = 20

# Separates this data set's draws from others with the same seed.
_PARTITION_STREAM = int.from_bytes(b"inet21k", "big")
_TEST_ORDER_STREAM = int.from_bytes(b"inet21kt", "big")


def load(
    data_dir: os.PathLike,
    *,
    image_size: int = 224,
    resize_size: int | None = None,
    num_clients: int | None = None,
    classes_per_client: int = CLASSES_PER_CLIENT,
    seed: int = 0,
) -> FederatedDataset:
    """Loads ImageNet-21k as written by `./run.sh prepare_imagenet21k`.

    `class_slots` assigns the training images to clients, in five seconds for 14
    million.

    Args:
        data_dir: The output folder of the preparation, or the folder of the shards in
            it.
        image_size: Height and width of ready images, in pixels.
        resize_size: Height and width in pixels to which images are resized before the
            crop; by default 256/224 of image_size, as in the paper.
        num_clients: Number of clients. By default a client has the paper's 442 images
            on average.
        classes_per_client: |P_k| of every client.
        seed: Seed of the clients; 0 <= seed < 2^63. The test images were chosen by the
            preparation's seed.

    Returns:
        The data set. Labels are positions of the wnids in alphabetical order. `test` is
        in random order, so that its first elements are a random sample.
    """
    # Checks the arguments.
    preprocess = preprocessing.Preprocessing(
        image_size, resize_size, records.read_image("image")
    )
    if not data_dir:
        raise errors.InvalidInputError(
            "`data_dir` must name the output folder of ./run.sh prepare_imagenet21k."
        )
    folder = _folder(pathlib.Path(data_dir))
    sizes = read_class_sizes(folder)
    train = open_index(folder, "train")
    test = open_index(folder, "test")
    if num_clients is None:
        all_sizes = sizes["train"] + sizes["test"]
        num_clients = default_num_clients(all_sizes, classes_per_client)
    partition = partitions.class_slots(
        train.records["label"],
        num_clients,
        classes_per_client,
        partitions.generator(seed, _PARTITION_STREAM),
    )
    test_order = bijection.Bijection(
        len(test), partitions.generator(seed, _TEST_ORDER_STREAM)
    )
    return FederatedDataset(
        name=NAME,
        num_classes=len(sizes["train"]),
        image_shape=(image_size, image_size, 3),
        train=records.client_data(train, partition),
        test=HeldOut(
            records.references(test, test_order(np.arange(len(test)))),
            len(test),
            np.count_nonzero(sizes["test"]),
        ),
        preprocessing=preprocess,
        pooled=lambda: records.references(train, partition.order),
        note=f"about {len(train) / partition.num_clients:.0f} images a client",
        contents=lambda: {
            **train.contents(),
            "training images": len(train),
            "images per class": np.bincount(train.records["label"]),
            "records of clients": [rows for _, rows in partition.items()],
            **{f"test: {key}": value for key, value in test.contents().items()},
        },
    )


def default_num_clients(
    class_sizes: np.ndarray, classes_per_client: int = CLASSES_PER_CLIENT
) -> int:
    """Returns the number of clients, in the paper's proportion to the images.

    The paper's 25,691 clients have 442 training images on average: 80 % of the
    14,197,122 images of the fall 2011 release. (It says "approximately 400".)
    Another release, or a miniature, gets the number with the same average, but
    enough for all classes. Sizes are those of training and test together, int64[n].
    """
    errors.check_at_least(1, classes_per_client=classes_per_client)
    proportional = round(PAPER_CLIENTS * int(np.sum(class_sizes)) / PAPER_IMAGES)
    return max(
        proportional, math.ceil(np.count_nonzero(class_sizes) / classes_per_client)
    )


def _folder(data_dir: pathlib.Path) -> pathlib.Path:
    version = pathlib.Path(NAME) / VERSION
    found = "a folder without it" if data_dir.is_dir() else "no such folder"
    for folder in (data_dir, data_dir / version):
        if (folder / CLASS_SIZES_FILE).is_file():
            return folder.absolute()
        if (folder / PREPARATION_FILE).is_file():
            found = f"{version}, which is not finished"
    expected = f"{version}, which ./run.sh prepare_imagenet21k writes"
    raise errors.InvalidInputError(
        f"{data_dir=!s}: found {found}; expected {expected}."
    )
