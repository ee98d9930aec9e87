r"""Brings Landmarks-User-160k (or its 23k mini) into the form that is trained on.

    ./run.sh prepare_landmarks --split_dir=landmarks-user-160k.zip --image_dir=IMAGES \
        --output_dir=CACHE

reads the split and the images of Google Landmarks v2, and writes

    CACHE/gld160k/train/<user_id>   a TFRecord file per client
    CACHE/gld160k/test.tfRecord     the test images
    CACHE/gld160k/*.csv             the split, as it was given
    CACHE/gld160k/finished.csv      what is whole: file, images, bytes, digest of rows
    CACHE/gld160k/rejected.csv      images that are missing or damaged, if there are any

which is the cache of `tff.simulation.datasets.gldv2` and what `--data_dir=CACHE` of
`./run.sh train` reads. IMAGES may be a folder of `<id>.jpg`, or the tree that the
original archives unpack to, `a/b/c/abc<...>.jpg`; `--shard_dir` reads these archives,
`images_000.tar` to `images_499.tar`, as they were downloaded.

Expected: 1,262 clients with 164,172 images of 2,028 classes, and 19,526 test images.
The output is as large as these images: about 22 GB, at the 0.12 MB that an image of
GLDv2 has on average (500 GB in 4.1 million). Every image is decoded once to see that it
is whole, some 800 of 0.17 MB a second on one core: minutes, if the disk keeps up.

The program may be killed at any time. The same command goes on where it stopped, and
ends with the same bytes. It exits with 0 if nothing is missing, with 1 if images are
(unless `--allow_missing`) or the disk is full, and with 2 on any other bad input.
"""

import dataclasses

from absl import flags

from experiments.common import program
from tff_fedss.datasets.landmarks import preparation, splits


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags.

    Not at the import: other programs have flags of these names, and a test may import
    more than one of them.

    Args:
        flag_values: Where to define them.
    """
    values = {"flag_values": flag_values}
    flags.DEFINE_enum(
        "split", "160k", list(splits.SPLITS), "Which published split.", **values
    )
    flags.DEFINE_string(
        "split_dir",
        None,
        "The folder or the zip with the two CSV files of the split: "
        "federated_train.csv and test.csv, or mini_gld_train_split.csv and "
        "mini_gld_test.csv.",
        **values,
    )
    flags.DEFINE_string(
        "train_csv",
        None,
        "Instead of --split_dir: the file of the clients' images.",
        **values,
    )
    flags.DEFINE_string(
        "test_csv",
        None,
        "Instead of --split_dir: the file of the test images.",
        **values,
    )
    flags.DEFINE_string(
        "image_dir",
        None,
        "The images: <id>.jpg, or a/b/c/<id>.jpg where <id> is abc...",
        **values,
    )
    flags.DEFINE_string(
        "shard_dir",
        None,
        "Instead of --image_dir: the folder of images_NNN.tar.",
        **values,
    )
    flags.DEFINE_string(
        "output_dir",
        None,
        "Where to write: the folder for gld160k or gld23k.",
        **values,
    )
    flags.DEFINE_integer(
        "threads",
        None,
        "How many images to read at a time; default: two per core.",
        lower_bound=1,
        **values,
    )
    flags.DEFINE_bool(
        "allow_missing",
        False,
        "Leave out images that are missing or damaged.",
        **values,
    )
    flags.DEFINE_bool(
        "allow_other_split",
        False,
        "Take CSV files that are not the published ones.",
        **values,
    )


def main() -> None:
    """Prepares the data set that the flags describe."""
    names = [field.name for field in dataclasses.fields(preparation.Options)]
    options = {name: flags.FLAGS[name].value for name in names}
    preparation.prepare(preparation.Options(**options))


if __name__ == "__main__":
    define_flags()
    program.run(main)
