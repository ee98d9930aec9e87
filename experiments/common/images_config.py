"""The flags for other people's images, which all programs on images share.

A program's own --dataset (or --task) and --data_dir stand beside them.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from experiments.common import config
from tff_fedss import tasks
from tff_fedss.datasets import images
from tff_fedss.datasets.central import labelled_images
from tff_fedss.errors import InvalidInputError

# The data sets that heed them, as --dataset calls them.
DATASETS = ("images", "tfds")
DATA_DIR = (
    "images: CLASS/image or CLIENT/CLASS/image, with train/ and test/ above or not, in "
    "a folder, zip or tar; or an images.csv with path,label and perhaps client and "
    "split. tfds: TFDS's own folder."
)


@dataclasses.dataclass(frozen=True)
class ImagesConfig(config.Config):
    """How to read images, and what of them is for the test."""

    folders: str | None = config.flag(
        None,
        "For images in folders: what the folders above an image are. `auto`, the "
        "default: its `class`, unless that could also be `client/class`.",
        group="Data",
        choices=images.FOLDERS,
    )
    test: str | None = config.flag(
        None,
        "For images and tfds: what is held out. `given`: what the data call test (or "
        "val). A share of the `images` of each class, of the `classes` (for retrieval) "
        "or of the `clients`. Default: given if there is one, else images, or classes "
        "for retrieval and identities.",
        choices=images.TESTS,
    )
    test_share: float | None = config.flag(
        None,
        "The share that --test holds out. Default: 0.2, of identities 0.1.",
        low=1e-6,
        high=0.999999,
    )
    tfds_name: str | None = config.flag(
        None, "For tfds: NAME[/CONFIG][:VERSION] of a data set with images and labels."
    )
    image_key: str | None = config.flag(
        None, "For tfds: the feature with the image. Default: the only image."
    )
    label_key: str | None = config.flag(
        None,
        "For tfds: the feature with the class, a number or a text. Default: the only "
        "class label.",
    )
    client_key: str | None = config.flag(
        None,
        "For tfds: the feature with the client, for --partition=natural and "
        "--test=clients.",
    )


_NAMES = tuple(ImagesConfig.flags())


def check_heeded(
    asked: config.Config,
    dataset: str,
    *,
    flag: str = "dataset",
    names: Iterable[str] = _NAMES,
) -> None:
    """Refuses flags that go with other data sets.

    Args:
        asked: What the user asks for.
        dataset: A key of `tasks.FAMILIES`, or a data set that heeds none of them.
        flag: The name of the flag that says which.
        names: The flags to look at; those that are no option of any family pass.

    Raises:
        InvalidInputError: If one is given that the data set does not heed.
    """
    for name in names:
        those = [k for k, f in tasks.FAMILIES.items() if name in f.options]
        if those and dataset not in those and getattr(asked, name) is not None:
            raise InvalidInputError(
                f"--{name} goes with --{flag}={' or '.join(those)} only, found "
                f"--{flag}={dataset}."
            )


def check(asked: ImagesConfig, dataset: str, *, flag: str = "dataset") -> None:
    """Checks what can be told before anything is read.

    Args:
        asked: With a flag data_dir.
        dataset: See `check_heeded`.
        flag: Likewise.

    Raises:
        InvalidInputError: If a flag does not go with the data set, or one is missing.
    """
    check_heeded(asked, dataset, flag=flag)
    for name, needs, value in (
        ("images", "data_dir", "DIR"),
        ("tfds", "tfds_name", "NAME"),
    ):
        if dataset == name and not getattr(asked, needs):
            raise InvalidInputError(f"--{flag}={dataset} needs --{needs}={value}.")


def given(asked: ImagesConfig, *names: str) -> dict[str, Any]:
    """Returns the flags of `ImagesConfig` that are given, of these names if any."""
    values = {name: getattr(asked, name) for name in names or _NAMES}
    return {name: value for name, value in values.items() if value is not None}


def open_index(asked: ImagesConfig, dataset: str) -> images.ImageIndex:
    """Indexes the images that the flags name.

    Args:
        asked: With a flag data_dir.
        dataset: One of `DATASETS`.

    Raises:
        InvalidInputError: See `images.open_index`.
    """
    return images.open_index(
        dataset,
        asked.data_dir,
        needs_clients=asked.test == "clients",
        **given(asked, "folders", "tfds_name", "image_key", "label_key", "client_key"),
    )


def held_out(asked: ImagesConfig) -> dict[str, Any]:
    """Returns --test and --test_share where they are given, as arguments."""
    return given(asked, "test", "test_share")


def load_labelled(
    asked: ImagesConfig, dataset: str, image_size: int | None
) -> labelled_images.LabelledImages:
    """Loads labelled images: other people's, or known ones by their name.

    Args:
        asked: With a flag data_dir.
        dataset: One of `DATASETS`, or a key of `labelled_images.SOURCES`.
        image_size: See `labelled_images.load`.

    Raises:
        InvalidInputError: If the data are not there, damaged or larger than memory.
    """
    if dataset in DATASETS:
        index = open_index(asked, dataset)
        return labelled_images.from_index(
            index, image_size=image_size, **held_out(asked)
        )
    return labelled_images.load(dataset, asked.data_dir, image_size=image_size)
