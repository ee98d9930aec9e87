"""ImageNet-21k as a federated data set (FedSS, Appendix A.4), from TFRecord shards.

`./run.sh prepare_imagenet21k` writes the shards from the class tars; see
`data/prepare_imagenet21k.py`. Where the records are is a file that is mapped into
memory, and images are read when their turn comes. In memory is the order in which
clients hold the training images, 8 bytes an image.
"""

import math
import os
import pathlib

import numpy as np

from tff_fedss import errors
from tff_fedss.datasets import bijection
from tff_fedss.datasets.federated import partitions, preprocessing, records
from tff_fedss.datasets.federated.class_slots import class_slots
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.datasets.imagenet21k import shards

# "The train split is used to generate 25,691 clients, each containing approximately 400
# images distributed across 20 class labels." The split is the fall 2011 release's:
# "14.2 million images distributed across 21k classes".
PAPER_CLIENTS = 25_691
PAPER_IMAGES = 14_197_122
CLASSES_PER_CLIENT = 20

# Keep the draws of this data set apart from others of the same seed.
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
    """Loads ImageNet-21k as `./run.sh prepare_imagenet21k` has written it.

    The training images are dealt out to clients by `class_slots`: five
    seconds for 14 million of them.

    Args:
        data_dir: The folder that it was to write into, or the folder of the shards in
            that.
        image_size: Height and width of an image that is ready, in pixels.
        resize_size: Height and width in pixels that images are brought to before the
            crop; by default 256/224 of image_size, as in the paper.
        num_clients: K. By default as many as give a client the paper's 442 images on
            average: see `default_num_clients`.
        classes_per_client: |P_k| of every client.
        seed: Which clients; 0 <= seed < 2^63. Which images are for the test was decided
            by the seed of the preparation.

    Returns:
        The data set. Labels are the places of the wnids in alphabetical order. `test`
        is in random order, so that its first elements are a fair sample.
    """
    # Checks its arguments.
    preprocess = preprocessing.Preprocessing(
        image_size, resize_size, records.read_image("image")
    )
    folder = _folder(pathlib.Path(data_dir))
    sizes = shards.read_class_sizes(folder)
    train = shards.open_index(folder, "train")
    test = shards.open_index(folder, "test")
    partition = client_partition(
        sizes["train"] + sizes["test"],
        seed=seed,
        num_clients=num_clients,
        classes_per_client=classes_per_client,
    )
    client_data = records.RecordClientData(
        train, partition.client_ids, partition.examples
    )
    test_order = bijection.Bijection(
        len(test), partitions.generator(seed, _TEST_ORDER_STREAM)
    )
    return FederatedDataset(
        name=shards.NAME,
        num_classes=len(sizes["train"]),
        image_shape=(image_size, image_size, 3),
        train=client_data,
        test=HeldOut(
            records.references(test, test_order(np.arange(len(test)))),
            len(test),
            np.count_nonzero(sizes["test"]),
        ),
        preprocessing=preprocess,
        pooled=lambda: records.references(train, partition.order),
        note=f"about {len(train) / partition.num_clients:.0f} images a client",
        contents=lambda: {
            **client_data.contents(),
            **{f"test: {key}": value for key, value in test.contents().items()},
        },
    )


def client_partition(
    class_sizes: np.ndarray,
    *,
    seed: int = 0,
    num_clients: int | None = None,
    classes_per_client: int = CLASSES_PER_CLIENT,
) -> partitions.Partition:
    """Deals the training images out to clients, from the sizes of the classes alone.

    Args:
        class_sizes: n_c, how many images each class has, int64[n], training and test
            together; see `shards.read_class_sizes`.
        seed: Which clients.
        num_clients: K; see `load`.
        classes_per_client: |P_k| of every client.

    Returns:
        The clients, of exactly classes_per_client different classes each. Examples are
        numbered class after class: their labels are `training_labels(class_sizes)`.
    """
    labels = training_labels(class_sizes)
    errors.check_at_least(1, classes_per_client=classes_per_client)
    if num_clients is None:
        num_clients = default_num_clients(class_sizes, classes_per_client)
    return class_slots(
        labels,
        num_clients,
        classes_per_client,
        partitions.generator(seed, _PARTITION_STREAM),
    )


def training_labels(class_sizes: np.ndarray) -> np.ndarray:
    """Returns the labels of the training images, ascending, int32[N].

    Args:
        class_sizes: n_c, how many images each class has, int64[n], training and test
            together.
    """
    class_sizes = np.asarray(class_sizes)
    train = class_sizes - shards.num_test(class_sizes)
    return np.repeat(np.arange(len(train), dtype=np.int32), train)


def default_num_clients(
    class_sizes: np.ndarray, classes_per_client: int = CLASSES_PER_CLIENT
) -> int:
    """Chooses how many clients there are, in the paper's proportion to the images.

    The paper's 25,691 clients have 442 training images on average: 80 % of the
    14,197,122 images of the fall 2011 release. (It says "approximately 400".) Another
    release, or a miniature, gets as many as give the same average, but enough that
    every class finds a place.

    Args:
        class_sizes: n_c, how many images each class has, int64[n], training and test
            together.
        classes_per_client: How many classes each client has.

    Returns:
        25,691 for the fall 2011 release.
    """
    proportional = round(PAPER_CLIENTS * int(np.sum(class_sizes)) / PAPER_IMAGES)
    return max(
        proportional, math.ceil(np.count_nonzero(class_sizes) / classes_per_client)
    )


def _folder(data_dir: pathlib.Path) -> pathlib.Path:
    version = pathlib.Path(shards.NAME) / shards.VERSION
    found = "a folder without it" if data_dir.is_dir() else "no such folder"
    for folder in (data_dir, data_dir / version):
        if (folder / shards.CLASS_SIZES_FILE).is_file():
            return folder.absolute()
        if (folder / shards.PREPARATION_FILE).is_file():
            found = f"{version}, which is not finished"
    raise errors.InvalidInputError(
        f"data_dir={data_dir}: found {found}; expected {version}, as ./run.sh "
        "prepare_imagenet21k writes it from the class tars of ImageNet-21k."
    )
