r"""Prepares Landmarks-User-160k (or the smaller 23k) for training.

    ./run.sh prepare_landmarks --split_dir=landmarks-user-160k.zip --image_dir=IMAGES \
        --output_dir=CACHE

reads the split and the images of Google Landmarks v2, and writes

    CACHE/gld160k/train/<user_id>   a TFRecord file per client
    CACHE/gld160k/test.tfRecord     the test images
    CACHE/gld160k/*.csv             the split, unchanged
    CACHE/gld160k/rejected.csv      images that are missing or damaged, if there are any

which is the cache of `tff.simulation.datasets.gldv2`, read by `--data_dir=CACHE` of
`./run.sh train`. IMAGES may be a folder of `<id>.jpg`, or the unpacked tree of the
original archives, `a/b/c/abc<...>.jpg`; `--shard_dir` reads the downloaded archives
themselves, `images_000.tar` to `images_499.tar`.

Expected: 1,262 clients with 164,172 images of 2,028 classes, and 19,526 test images.
The output is as large as these images: about 22 GB, at GLDv2's average of 0.12 MB an
image (500 GB in 4.1 million). Every image is decoded once to check it, about 800 of
0.17 MB a second on one core: minutes, if the disk is fast enough.

The program may be killed at any time. The same command resumes where it stopped, and
ends with the same bytes. It exits with 0 if nothing is missing, with 1 if images are
missing (unless `--allow_missing`) or the disk is full, and with 2 for any other bad
input.
"""

import dataclasses

from experiments.common import config, program
from tff_fedss.datasets import landmarks
from tff_fedss.datasets.landmarks import preparation


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the program."""

    split: str = config.flag("160k", "The published split.", choices=landmarks.SPLITS)
    split_dir: str | None = config.flag(
        None,
        "The folder or the zip with the two CSV files of the split: "
        "federated_train.csv and test.csv, or mini_gld_train_split.csv and "
        "mini_gld_test.csv.",
    )
    image_dir: str | None = config.flag(
        None, "The images: <id>.jpg, or a/b/c/<id>.jpg where <id> is abc..."
    )
    shard_dir: str | None = config.flag(
        None, "Instead of --image_dir: the folder of images_NNN.tar."
    )
    output_dir: str | None = config.flag(
        None, "The output folder, for gld160k or gld23k."
    )
    threads: int | None = config.flag(
        None, "How many images to read at a time; default: two per core.", low=1
    )
    allow_missing: bool = config.flag(
        False, "Leave out images that are missing or damaged."
    )
    allow_other_split: bool = config.flag(
        False, "Accept CSV files that are not the published ones."
    )


def main(config: Config) -> None:
    """Prepares the data set."""
    preparation.prepare(**dataclasses.asdict(config))


if __name__ == "__main__":
    program.run(main, Config())
