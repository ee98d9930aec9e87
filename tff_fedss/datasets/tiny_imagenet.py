"""Tiny-ImageNet as a federated data set: 200 classes of 64x64 photographs.

It is a subset of ImageNet (Deng et al., 2009) made for a course (CS231N, Stanford): 500
images of each class for training, 50 for validation, and 10,000 without labels, which
are not used here.
"""

import os
import re
from collections.abc import Iterator

import numpy as np

from tff_fedss import files
from tff_fedss.datasets import sources
from tff_fedss.datasets.federated import partitioners, partitions
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.datasets.images import ImageIndex, layout
from tff_fedss.datasets.images.federated import federated_dataset
from tff_fedss.errors import InvalidInputError, check_range

# Separates this data set's draws from others with the same seed.
_PHILOX_STREAM = int.from_bytes(b"tiny-img", "big")

_LAYOUT = (
    "train/<wnid>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt, in a "
    f"folder tiny-imagenet-200 or an archive of it ({', '.join(sources.SUFFIXES)})"
)
_ANNOTATIONS = "val/val_annotations.txt"
_CLASSES = "wnids.txt"


def load(
    data_dir: os.PathLike | None,
    *,
    partition: partitioners.Mixed | partitioners.Dirichlet = partitioners.Mixed(),
    image_size: int = 64,
    resize_size: int | None = None,
    num_public_classes: int = 0,
    num_unseen_classes: int = 0,
    seed: int = 0,
) -> FederatedDataset:
    """Loads Tiny-ImageNet, or a part of it in the same layout.

    Every image is read and decoded once, to check it, and later read on request.

    Args:
        data_dir: The folder tiny-imagenet-200, a folder with it or with an archive of
            it, or the path of such an archive; the original is tiny-imagenet-200.zip.
            Nothing is downloaded.
        seed: Seed of the partition; 0 <= seed < 2^63.
        image_size: Height and width in pixels of the model's images: a crop.
        resize_size: Height and width in pixels to which images are resized first. By
            default image_size * 256/224, as in the paper (Appendix A.2): 73 for 64.
        num_public_classes: Number of classes, drawn at random, that no client gets, so
            that n is smaller: their training images are the public ones, for a warm
            start. A small network does not learn these photographs from scratch on
            clients.
        num_unseen_classes: Number of unseen classes, drawn after the public ones: all
            their training and validation images are for retrieval among each other.

    Returns:
        The data set, see `images.federated.federated_dataset`. Classes are numbered in
        the order of their sorted wnids. The test images are those of the
        validation set, of the classes that clients have.
    """
    images = open_index(data_dir)
    is_train = images.splits == layout.TRAIN
    most = len(images.class_names) - 2
    check_range("num_public_classes", num_public_classes, 0, most)
    if num_unseen_classes:
        most_unseen = most - num_public_classes
        check_range("num_unseen_classes", num_unseen_classes, 2, most_unseen)
    rng = partitions.generator(seed, _PHILOX_STREAM)
    # 0: clients' classes, 1: public ones, 2: unseen ones. Without public classes
    # nothing is drawn, so that partitions are as before.
    use = np.zeros(most + 2, int)
    if num_public_classes:
        use[rng.choice(len(use), num_public_classes, replace=False)] = 1
    if num_unseen_classes:
        others = np.flatnonzero(use == 0)
        use[rng.choice(others, num_unseen_classes, replace=False)] = 2
    # Classes are numbered from 0 on within each use.
    number = np.array([np.sum(use[:label] == use[label]) for label in range(len(use))])
    labels, use_of_row = number[images.labels].astype(np.int32), use[images.labels]

    rows = np.flatnonzero(is_train & (use_of_row == 0))
    split = partition.split(labels[rows], rng)
    test = np.flatnonzero(~is_train & (use_of_row == 0))
    if not len(test):
        raise InvalidInputError(f"{images.label}: val has none of clients' classes.")
    return federated_dataset(
        images,
        labels,
        split._replace(order=rows[split.order]),
        test=test,
        public=np.flatnonzero(is_train & (use_of_row == 1)),
        unseen=np.flatnonzero(use_of_row == 2),
        num_classes=int(np.sum(use == 0)),
        image_size=image_size,
        resize_size=resize_size,
        is_pooled_in_order=True,
        name="tiny_imagenet",
        note="test images are those of the validation set",
    )


def open_index(data_dir: str | os.PathLike | None) -> ImageIndex:
    """Indexes the images: training images by class, then those of validation.

    The splits are `layout.TRAIN` and `VALIDATION`. A label is the position of a
    wnid among all, sorted.
    """
    source = sources.open_source(data_dir)
    path, annotations = source.read_only(_ANNOTATIONS, _LAYOUT)
    root = path.removesuffix(_ANNOTATIONS)
    train = list(_train_rows(source, root))
    wnids = {row.label for row in train}
    validation = _validation_rows(source, root, annotations, wnids)
    for name, content in source.read_all(f"{root}{_CLASSES}".__eq__):
        listed = set(files.decoded_lines(content, name)) - {""}
        if odd := listed ^ wnids:
            raise InvalidInputError(
                f"{source.label}: the class {min(odd)} is in {name} or in {root}train "
                "only, not in both."
            )
    what = layout.from_rows(train + validation, source.names)
    images = ImageIndex(source, what, "tiny_imagenet")
    images.check_images()
    return images


def _train_rows(source: sources.Source, root: str) -> Iterator[layout.Row]:
    """Yields the training images, by class and then by path."""
    # Every file in a folder `images` is an image, whatever its name.
    pattern = re.compile(rf"{re.escape(root)}train/([^/]+)/images/[^/]+")
    found = filter(None, map(pattern.fullmatch, source.names))
    for path, wnid in sorted((m[0], m[1]) for m in found):
        yield layout.Row(f"{source.label}: {path}", path, wnid)


def _validation_rows(
    source: sources.Source, root: str, content: bytes, wnids: set[str]
) -> list[layout.Row]:
    """Returns the validation images, by path, with the classes of the annotations."""
    name = f"{source.label}: {root}{_ANNOTATIONS}"
    folder = f"{root}val/images/"
    missing = {n for n in source.names if n.startswith(folder)}
    rows = []
    for where, fields in files.csv_rows(content, name, "\t"):
        image, wnid = [*fields, ""][:2]
        if wnid not in wnids:
            raise InvalidInputError(
                f"{where}: {image} has the class {wnid!r}, which {root}train lacks."
            )
        missing.discard(folder + image)
        rows.append(layout.Row(where, folder + image, wnid, None, layout.VALIDATION))
    if missing:
        raise InvalidInputError(f"{name}: {min(missing)} has no line.")
    if not rows:
        raise InvalidInputError(f"{name} has no image.")
    return sorted(rows, key=lambda row: row.path)
