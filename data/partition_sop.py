"""Writes the partition of Stanford Online Products: which client has which image.

    ./run.sh partition_sop --data_dir=DIR

reads Stanford_Online_Products/Ebay_train.txt, in DIR or in the zip in DIR, and no
image. It writes data/partitions/sop_596_clients.csv, with a line per image:

    user_id,image_id,class

where image_id is that of Ebay_train.txt and class is its class_id less 1. `./run.sh
train --dataset=sop` makes the same partition itself; `--dataset=sop:clients_csv=FILE`
reads a file of this form.

Expected: 59,551 images of 11,318 classes on 596 clients; 595 of them have 100 images,
the last has 51, and they have 19.8 classes on average (FedSS, Section 4.3: 596
clients, 100 images, 20 classes). The paper's partition was not published: --seed
decides ours. The same seed gives the same bytes at every run. It takes a second or two
and 1.3 MB.
"""

import dataclasses
import pathlib

import numpy as np

from experiments.common import config, program
from tff_fedss import files
from tff_fedss.datasets import stanford_online_products
from tff_fedss.datasets.federated import partitions, split_csv

_OUTPUT = pathlib.Path(__file__).parent / "partitions" / "sop_596_clients.csv"


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the program."""

    data_dir: str | None = config.flag(
        None,
        "Folder that holds Stanford_Online_Products.zip or the unpacked "
        "Stanford_Online_Products, or either of them itself.",
    )
    output: str = config.flag(str(_OUTPUT), "The CSV file to write.")
    seed: int = config.flag(0, "Seed of the partition.", low=0)
    images_per_client: int = config.flag(
        stanford_online_products.IMAGES_PER_CLIENT,
        "How many images a client has; the last one may have fewer.",
    )


def main(config: Config) -> None:
    """Writes the partition and prints a summary."""
    train = stanford_online_products.read_train_listing(config.data_dir)
    partition = stanford_online_products.make_partition(
        train, config.images_per_client, config.seed
    )
    files.make_folder(pathlib.Path(config.output).parent)
    split = stanford_online_products.to_split(train, partition)
    split_csv.write(config.output, split)
    print(summary(partition, train.labels))
    print(f"Written to {config.output}")


def summary(partition: partitions.Partition, labels: np.ndarray) -> str:
    """Describes a partition in three lines; labels are those of all images."""
    classes = [len(np.unique(labels[examples])) for _, examples in partition.items()]
    return (
        f"{partition.num_clients:,} clients, {len(labels):,} images of "
        f"{len(np.unique(labels)):,} classes\n"
        f"images per client:  {_statistics(partition.sizes)}\n"
        f"classes per client: {_statistics(np.array(classes))}"
    )


def _statistics(values: np.ndarray) -> str:
    return (
        f"min {values.min():,}, median {np.median(values):,g}, "
        f"mean {values.mean():,.2f}, max {values.max():,}"
    )


if __name__ == "__main__":
    program.run(main, Config())
