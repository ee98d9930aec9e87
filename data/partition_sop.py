"""Writes which client has which training image of Stanford Online Products.

    ./run.sh partition_sop --data_dir=DIR

reads Stanford_Online_Products/Ebay_train.txt, in DIR or in the zip in DIR, and no
image. It writes data/partitions/sop_596_clients.csv, with a line per image:

    user_id,image_id,class

where image_id is that of Ebay_train.txt and class is its class_id less 1. `./run.sh
train --dataset=sop` makes the same partition itself; a file of this form goes in with
`--dataset=sop:clients_csv=FILE`.

Expected: 59,551 images of 11,318 classes on 596 clients; 595 of them have 100 images,
the last has 51, and they have 19.99 classes on average (FedSS, Section 4.3: 596
clients, 100 images, 20 classes). Which images meet on a client was not published: it
follows from --seed. The same seed gives the same bytes at every run. A second or two,
1.3 MB.
"""

import dataclasses
import pathlib

import numpy as np

from experiments.common import config, program
from tff_fedss import files
from tff_fedss.datasets import stanford_online_products
from tff_fedss.datasets.federated import partitions, split_csv
from tff_fedss.errors import InvalidInputError

_OUTPUT = pathlib.Path(__file__).parent / "partitions" / "sop_596_clients.csv"


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    data_dir: str | None = config.flag(
        None,
        "Folder that holds Stanford_Online_Products.zip or the unpacked "
        "Stanford_Online_Products, or either of them itself.",
    )
    output: str = config.flag(str(_OUTPUT), "The CSV file to write.")
    seed: int = config.flag(0, "Which partition; 0 <= seed < 2^63.")
    images_per_client: int = config.flag(
        stanford_online_products.IMAGES_PER_CLIENT,
        "How many images a client has; the last one may have fewer.",
    )


def main(config: Config) -> None:
    """Writes the file that the flags ask for and prints what is in it."""
    write(config.data_dir, config.output, config.images_per_client, config.seed)


def write(data_dir: str | None, output: str, images_per_client: int, seed: int) -> None:
    """Writes a partition and prints what is in it.

    Args:
        data_dir: Where Ebay_train.txt is; see `read_train_listing`.
        output: The file to write; its folder is made if it is not there.
        images_per_client: How many images a client has.
        seed: Which partition.

    Raises:
        InvalidInputError: If an argument cannot be used, or the data is not there or
            damaged.
        RunStoppedError: If the file cannot be written.
    """
    if not data_dir:
        raise InvalidInputError(
            "--data_dir is missing: name a folder that holds "
            f"{stanford_online_products.ARCHIVE} or what it unpacks to."
        )
    path = pathlib.Path(output)
    if not output or path.name in ("", "..") or path.is_dir():
        raise InvalidInputError(
            f"--output={output}: expected the name of a CSV file to write."
        )
    train = stanford_online_products.read_train_listing(data_dir)
    partition = stanford_online_products.make_partition(train, images_per_client, seed)
    files.make_folder(path.parent)
    split_csv.write(path, stanford_online_products.to_split(train, partition))
    print(summary(partition, train.labels))
    print(f"Written to {output}")


def summary(partition: partitions.Partition, labels: np.ndarray) -> str:
    """Describes a partition in three lines.

    Args:
        partition: The clients.
        labels: The class of every image, int32[N].

    Returns:
        The text.
    """
    counts = partitions.class_counts(partition, labels)
    classes = np.bincount(counts.clients)
    return (
        f"{partition.num_clients:,} clients, {len(labels):,} images of "
        f"{len(np.unique(labels)):,} classes\n"
        f"images per client:  {_statistics(partition.sizes)}\n"
        f"classes per client: {_statistics(classes)}"
    )


def _statistics(values: np.ndarray) -> str:
    return (
        f"min {values.min():,}, median {np.median(values):,g}, "
        f"mean {values.mean():,.2f}, max {values.max():,}"
    )


if __name__ == "__main__":
    program.run(main, Config())
