"""Labelled images for methods without clients (LEAP, contrastive learning), in memory.

`load` reads the data sets in `SOURCES`, from a user's files (a folder for each class,
or MNIST's IDX files) or from TFDS; `from_index` takes images of any other index.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from tff_fedss import memory, progress
from tff_fedss.datasets import fingerprint, sources, splits, tiny_imagenet
from tff_fedss.datasets.central import idx_files
from tff_fedss.datasets.federated import partitions, record_writer
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.datasets.images import index, layout
from tff_fedss.errors import InvalidInputError, check_choice, check_range

# Separates these draws from others with the same seed.
_PHILOX_STREAM = int.from_bytes(b"labelled", "big")
_DECODED_AT_A_TIME = 64
# Without a test part, one in this number of training images is a test image.
_HELD_OUT_OF = 5
# The layout, for messages.
_EXPECTED = (
    "train/CLASS/IMAGE and test/CLASS/IMAGE (or val/CLASS/IMAGE), in a folder or an "
    f"archive ({', '.join(sources.SUFFIXES)}), or MNIST's "
    "train-images-idx3-ubyte[.gz], ..."
)


class Source(NamedTuple):
    """A data set of TFDS and the form of its images.

    Attributes:
        channels: 1 or 3; images are converted to it.
        image_size: Height and width in pixels; None: they differ from image to image.
        splits: See `tfds_index.load`.
    """

    tfds_name: str
    channels: int = 3
    image_size: int | None = 32
    splits: Mapping[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """A training and a test part.

    Attributes:
        class_names: n names; a label is a position here.
        train_images: uint8[N, height, width, channels].
        train_labels: int32[N].
        test_images: uint8[test images, height, width, channels].
        test_labels: int32[test images].
        note: An addition to the summary; may be empty.
        mislabelled: bool[N], which training images were given a wrong label; None:
            none.
    """

    name: str
    class_names: tuple[str, ...]
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    note: str = ""
    mislabelled: np.ndarray | None = None

    @property
    def num_classes(self) -> int:
        """n, the number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.train_images.shape[1:]

    def summary(self) -> str:
        """A description of the data in one line."""
        height, width, channels = self.image_shape
        text = (
            f"{self.name}: n={self.num_classes:,} classes, "
            f"{len(self.train_labels):,} training and {len(self.test_labels):,} test "
            f"images, {height}x{width}x{channels}"
        )
        return f"{text}; {self.note}" if self.note else text

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the data (see `fingerprint`)."""
        sizes = np.bincount(self.train_labels, minlength=self.num_classes)
        return fingerprint.of(
            {
                "data set": self.name,
                "classes": self.num_classes,
                "names of classes": self.class_names,
                "image shape": self.image_shape,
                "training images": len(self.train_labels),
                "test images": len(self.test_labels),
                "images per class": sizes,
                "labels of training images": self.train_labels,
                "labels of test images": self.test_labels,
                "contents of training images": self.train_images,
                "contents of test images": self.test_images,
            }
        )

    def subset(self, num_train: int) -> "LabelledImages":
        """Returns a class-balanced subset of the training images, where sizes allow.

        The same number gives the same images.

        Returns:
            The data set with these training images, in their order, and the whole test.
        """
        check_range("num_train", num_train, self.num_classes, len(self.train_labels))
        generator = np.random.Generator(np.random.Philox(key=[0, num_train]))
        order = generator.permutation(len(self.train_labels))
        # The first images of all classes, then the second ones, and so on.
        by_class = order[np.argsort(self.train_labels[order], kind="stable")]
        sizes = np.bincount(self.train_labels, minlength=self.num_classes)
        place = partitions.ranges(sizes)
        kept = np.sort(by_class[np.argsort(place, kind="stable")[:num_train]])
        return dataclasses.replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
        )


def _fitted(image: Image.Image, image_size: int | None) -> Image.Image:
    """Cuts a square from the centre of an image and resizes it, if a size is given."""
    if image_size is None or image.size == (image_size, image_size):
        return image
    return ImageOps.fit(image, (image_size, image_size), Image.Resampling.BILINEAR)


def _as_array(image: Image.Image, channels: int) -> np.ndarray:
    """Returns an image as uint8[height, width, channels]."""
    array = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    return array.reshape(*array.shape[:2], channels)


def _check_memory(counts: Mapping[str, int], shape: tuple[int, int, int]) -> None:
    """Checks before decoding that images of a shape, by part, fit into memory."""
    height, width, channels = shape
    memory.check(
        {
            f"{part} images ({count:,} of {height:,} x {width:,})": count
            * height
            * width
            * channels
            for part, count in counts.items()
        }
    )


# By their names on the command line.
SOURCES = {
    "mnist": Source("mnist", 1, 28),
    "fashion_mnist": Source("fashion_mnist", 1, 28),
    "cifar10": Source("cifar10"),
    "cifar100": Source("cifar100"),
    # The training and the extra set together, as in LEAP (4.5).
    "svhn_cropped": Source(
        "svhn_cropped",
        splits={"train": layout.TRAIN, "extra": layout.TRAIN, "test": layout.TEST},
    ),
    "imagenette": Source("imagenette/320px-v2", image_size=None),
    "tiny_imagenet": Source("tiny_imagenet", image_size=64),
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
            IDX files of one part only, every fifth image is a test image. Tiny-ImageNet
            is read in its published layout, see `tiny_imagenet.load`; its test is the
            validation set. None: TFDS, which downloads missing data.
        image_size: Height and width in pixels to which images are resized, after their
            longer side is cut to a square. None: they are not resized and must have one
            size.

    Returns:
        The data set. The classes of folders are numbered in the order of their names.
    """
    check_choice("dataset", name, SOURCES)
    source = SOURCES[name]
    if image_size is None and source.image_size is None:
        raise InvalidInputError(f"images of {name} differ in size: give `image_size`.")
    if name == "tiny_imagenet":
        images = tiny_imagenet.open_index(data_dir)
    elif data_dir is None:
        from tff_fedss.datasets.images import tfds_index  # Slow to import.

        hint = f"dataset={name} also reads your own files, with `data_dir`."
        # CIFAR-100 has a second class label, a coarse one.
        images = tfds_index.load(
            source.tfds_name, label="label", splits=source.splits, hint=hint
        )
    else:
        path, flag = pathlib.Path(data_dir), f"data_dir={os.fspath(data_dir)}"
        if name in _IDX_DATASETS and any(path.glob("*-idx3-ubyte*")):
            return _from_idx_files(name, path, flag, source, image_size)
        images = _index_of_folders(path, flag)
    data = from_index(
        images, image_size=image_size, channels=source.channels, test="given"
    )
    return dataclasses.replace(data, name=name)


def _from_idx_files(
    name: str, path: pathlib.Path, flag: str, source: Source, image_size: int | None
) -> LabelledImages:
    """Reads MNIST's files; with one part only, every fifth image is a test image."""
    parts = idx_files.read(path, flag)
    if image_size is not None:
        counts = {part: len(labels) for part, (_, labels) in parts.items()}
        _check_memory(counts, (image_size, image_size, source.channels))
    parts = {
        part: (_converted(images, source.channels, image_size), labels)
        for part, (images, labels) in parts.items()
    }
    note = ""
    if len(parts) == 1:
        ((part, (images, labels)),) = parts.items()
        is_test = np.arange(len(labels)) % _HELD_OUT_OF == 0
        parts = {
            "train": (images[~is_test], labels[~is_test]),
            "test": (images[is_test], labels[is_test]),
        }
        note = f"{part} files only: every {_HELD_OUT_OF}th image is a test image"
    train, test = parts["train"], parts["test"]
    first, other = ("x".join(map(str, part[0].shape[1:3])) for part in (train, test))
    if first != other:
        raise InvalidInputError(
            f"{flag}: training images have {first} pixels and test images {other}: "
            "give `image_size`."
        )
    # One image of one part is a test image.
    num_classes = 1 + int(np.append(train[1], test[1]).max())
    if missing := set(range(num_classes)) - {*train[1].tolist()}:
        raise InvalidInputError(f"{flag}: no training image has label {min(missing)}.")
    class_names = tuple(map(str, range(num_classes)))
    return LabelledImages(name, class_names, *train, *test, note=note)


def _converted(images: np.ndarray, channels: int, image_size: int | None) -> np.ndarray:
    return np.stack(
        [_as_array(_fitted(Image.fromarray(i), image_size), channels) for i in images]
    )


def _index_of_folders(path: pathlib.Path, flag: str) -> index.ImageIndex:
    """Lists train/CLASS/IMAGE and test/CLASS/IMAGE; both must exist."""
    images = index.load(path, folders="class")
    if images.splits is None or images.without_images:
        empty = f"; {images.note}" if images.without_images else ""
        raise InvalidInputError(f"{flag}: expected {_EXPECTED}{empty}.")
    of_train = np.unique(images.labels[images.splits == layout.TRAIN])
    for row in np.flatnonzero(~np.isin(images.labels, of_train)):
        name = images.image_name(row)
        raise InvalidInputError(f"{flag}: no training image has the class of {name}.")
    return images


def from_index(
    images: index.ImageIndex,
    *,
    image_size: int | None = None,
    channels: int = 3,
    test: str | None = None,
    test_share: float = 0.2,
    seed: int = 0,
) -> LabelledImages:
    """Decodes all images of an index, in its order, to 1 or 3 channels.

    `test` is as in `splits.hold_out`, but not "classes". The classes are those of the
    training images, in the order of `images.class_names`.
    """
    chosen = splits.hold_out(
        images,
        is_unseen=False,
        test=test,
        share=test_share,
        num_public_classes=0,
        rng=np.random.Generator(np.random.Philox(key=[seed, _PHILOX_STREAM])),
    )
    labels, classes = splits.numbered(images.labels, chosen.train)
    first = int(chosen.train[0])

    def decoded(row: int) -> np.ndarray:
        return _as_array(
            _fitted(Image.fromarray(images.pixels(row)), image_size), channels
        )

    shape = decoded(first).shape
    counts = {"training": len(chosen.train), "test": len(chosen.test)}
    _check_memory(counts, shape)

    def checked(row: int) -> np.ndarray:
        array = decoded(row)
        if array.shape != shape:
            sizes = (
                f"{array.shape[0]}x{array.shape[1]} pixels, not {shape[0]}x{shape[1]}"
            )
            raise InvalidInputError(
                f"{images.label}: {images.image_name(row)} has {sizes} as "
                f"{images.image_name(first)}: give `image_size`."
            )
        return array

    with progress.bar(
        f"Reading {images.name}", len(chosen.train) + len(chosen.test)
    ) as bar:

        def stacked(rows: np.ndarray) -> np.ndarray:
            # Decoded in place, so that no image is in memory twice.
            result = np.empty((len(rows), *shape), np.uint8)

            def put(places: range) -> None:
                for place in places:
                    result[place] = checked(int(rows[place]))

            every = range(len(rows))
            parts = (
                every[k : k + _DECODED_AT_A_TIME]
                for k in range(0, len(rows), _DECODED_AT_A_TIME)
            )
            for part, _ in record_writer.in_threads(put, parts):
                bar.update(len(part))
            return result

        train, tests = stacked(chosen.train), stacked(chosen.test)
    return LabelledImages(
        images.name,
        tuple(images.class_names[k] for k in classes),
        train,
        labels[chosen.train],
        tests,
        labels[chosen.test],
        note="; ".join(filter(None, [images.note, chosen.note])),
    )
