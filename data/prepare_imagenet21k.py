"""Prepares ImageNet-21k for training, as TFRecord shards.

    ./run.sh prepare_imagenet21k --archive=fall11_whole.tar --output_dir=DIR

reads the class tars, splits every class 80-20 into training and test images (FedSS,
Appendix A.4) and writes

    DIR/imagenet21k/1.0.0/imagenet21k-{train,test}.tfrecord-*   a shard of each class
    DIR/imagenet21k/1.0.0/index.npz              the length of each record
    DIR/imagenet21k/1.0.0/class_sizes.csv        wnid,train,test: images of each class
    DIR/imagenet21k/1.0.0/undecodable.csv        tar,member,reason: images left out
    DIR/imagenet21k/1.0.0/*.json, *.txt          TFDS's metadata

which `--data_dir=DIR` of `./run.sh train` reads, and also `tfds.load("imagenet21k",
data_dir=DIR)`. `--archive` is a folder of `<wnid>.tar`, one tar of them (fall 2011) or
that gzipped (winter 2021).

Expected, by reports on the two releases: fall 2011 has 21,841 classes and 14,197,122
images, 1.31 TB; winter 2021 19,167 classes and 13,151,276 images, 1.1 TB. DIR takes as
much disk as the images, 1.1 to 1.3 TB, and a few class tars. Every image is decoded
once to check it; a few are known to be damaged.

Time: 1 ms of one core for an image (500x375 pixels, 83 kB), so 2 hours on 2 cores, or
the time to read and write a terabyte of disk. A gzipped tar is decompressed on one
core, at 250 MB/s, twice: to list the classes, on which the labels depend, and to read
them; 1.3 hours each. `--wnids=FILE`, a list of the classes, saves the first pass; `tar
-xzf` beforehand saves both, for another 1.1 TB of disk.

The program may be killed at any time. The same command resumes where it stopped (a
gzipped tar is decompressed up to there), and ends with the same bytes. It exits with 0
if everything is written; with 1 if there are images that cannot be decoded, unless
`--allow_undecodable`, or if the disk is full; and with 2 for any other bad input.
"""

import dataclasses

from experiments.common import config, program
from tff_fedss.datasets.imagenet21k import dataset, preparation
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the program."""

    archive: str | None = config.flag(
        None, "fall11_whole.tar, winter21_whole.tar.gz, or a folder of <wnid>.tar."
    )
    output_dir: str | None = config.flag(
        None, "The output folder, for imagenet21k/1.0.0."
    )
    seed: int = config.flag(0, "Seed of the random 80-20 split.", low=0)
    workers: int | None = config.flag(
        None, "How many classes to process at a time; default: one per core.", low=1
    )
    wnids: str | None = config.flag(
        None,
        "A file with the wnids of all classes, one a line: saves the first pass "
        "through a gzipped tar.",
    )
    allow_undecodable: bool = config.flag(
        False, "Leave out images that cannot be decoded."
    )


def main(config: Config) -> None:
    """Prepares the data set and prints a summary."""
    for name in ("archive", "output_dir"):
        if not getattr(config, name):
            raise InvalidInputError(f"--{name} must be given; see --help.")
    folder = preparation.prepare(**dataclasses.asdict(config))
    sizes = dataset.read_class_sizes(folder)
    print(
        f"{folder} holds {sizes['train'].sum():,} training and "
        f"{sizes['test'].sum():,} test images of {len(sizes['train']):,} classes."
    )


if __name__ == "__main__":
    program.run(main, Config())
