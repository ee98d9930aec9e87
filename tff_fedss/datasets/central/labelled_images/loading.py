"""Labelled images by name: from a user's files, or from TFDS.

A data set is a training and a test part, decoded and in memory. It is read from files
as they lie (a folder for each class, or MNIST's IDX files), or comes from TFDS by name.
Images that have no name here are read by `indexed`.
"""

import dataclasses
import os
import pathlib

import numpy as np

from tff_fedss.datasets import tiny_imagenet
from tff_fedss.datasets.central.labelled_images import idx_files, indexed
from tff_fedss.datasets.central.labelled_images.images import (
    EXPECTED,
    LabelledImages,
    Source,
)
from tff_fedss.datasets.images import index, layout
from tff_fedss.errors import InvalidInputError, check_choice

# By the name that a user gives them.
SOURCES = {
    "mnist": Source("mnist", channels=1, image_size=28),
    "fashion_mnist": Source("fashion_mnist", channels=1, image_size=28),
    "cifar10": Source("cifar10"),
    "cifar100": Source("cifar100", num_classes=100),
    # The training and the extra set together, as LEAP (4.5) has it.
    "svhn_cropped": Source("svhn_cropped", train="train+extra"),
    "imagenette": Source("imagenette/320px-v2", test="validation", image_size=None),
    "tiny_imagenet": Source("tiny_imagenet", num_classes=200, image_size=64),
}
_IDX_DATASETS = ("mnist", "fashion_mnist")


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    image_size: int | None = None,
) -> LabelledImages:
    """Loads a data set.

    Args:
        name: A key of `SOURCES`.
        data_dir: A folder or an archive with train/CLASS/IMAGE and test/CLASS/IMAGE, a
            folder with one such archive, or a folder with MNIST's IDX files. If it has
            IDX files of one part only, every fifth image becomes the test.
            Tiny-ImageNet is read as it is published, see `tiny_imagenet.load`; its
            test is the validation set. None: TFDS, which downloads what is not on the
            disk.
        image_size: Height and width in pixels that images are brought to, their longer
            side cut to a square first. None: they stay as they are, and must be alike.

    Returns:
        The data set. The classes of folders are numbered in the order of their names.
    """
    check_choice("dataset", name, SOURCES)
    source = SOURCES[name]
    if image_size is None and source.image_size is None:
        raise InvalidInputError(f"the images of {name} differ in size: give a size.")
    if name == "tiny_imagenet":
        images = tiny_imagenet.open_index(data_dir)
        data = indexed.load(images, image_size=image_size, test="given")
        return dataclasses.replace(data, name=name, note="")
    if data_dir is None:
        # TFDS takes seconds to import.
        from tff_fedss.datasets.central.labelled_images import tfds_reader

        return tfds_reader.load(name, source, image_size)
    path, flag = pathlib.Path(data_dir), f"data_dir={os.fspath(data_dir)}"
    if name in _IDX_DATASETS and any(path.glob("*-idx3-ubyte*")):
        return idx_files.load(name, path, flag, source, image_size)
    return _load_folders(name, path, flag, source.channels, image_size)


def _load_folders(
    name: str, path: pathlib.Path, flag: str, channels: int, image_size: int | None
) -> LabelledImages:
    """Reads train/CLASS/IMAGE and test/CLASS/IMAGE; all must be there."""
    images = index.load(path, folders="class")
    if images.splits is None or images.without_images:
        empty = f"; without images: {layout.shown(images.without_images)}"
        raise InvalidInputError(
            f"{flag}: expected {EXPECTED}{empty if images.without_images else ''}."
        )
    of_train = np.unique(images.labels[images.splits == layout.TRAIN])
    for row in np.flatnonzero(~np.isin(images.labels, of_train)):
        raise InvalidInputError(
            f"{flag}: {images.image_name(row)} is of the class "
            f"{images.class_names[images.labels[row]]!r}, which has no training image."
        )
    data = indexed.load(images, image_size=image_size, channels=channels, test="given")
    return dataclasses.replace(data, name=name, note=images.note)
