"""Labelled images for methods without clients (LEAP, contrastive learning), in memory.

`load` reads the data sets in `SOURCES`, from a user's files (a folder for each class,
or MNIST's IDX files) or from TFDS; `from_index` takes images of any other index.
"""

import dataclasses
import os
import pathlib

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps

from tff_fedss import memory, progress
from tff_fedss.datasets import fingerprint, sources, splits, tiny_imagenet
from tff_fedss.datasets.central import idx_files
from tff_fedss.datasets.federated import record_writer
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.datasets.images import index, layout
from tff_fedss.errors import InvalidInputError, check_choice, check_range

# Keep these draws apart from others of the same seed.
_PHILOX_STREAM = int.from_bytes(b"labelled", "big")
_DECODED_AT_A_TIME = 64
# Without a test part, so many images of the training part stand for one test image.
_HELD_OUT_OF = 5
# In messages.
_EXPECTED = (
    "train/CLASS/IMAGE and test/CLASS/IMAGE (val stands for test too), in a folder or "
    f"an archive ({', '.join(sources.SUFFIXES)}), or MNIST's "
    "train-images-idx3-ubyte[.gz], ..."
)


@dataclasses.dataclass(frozen=True)
class Source:
    """What a data set is called at TFDS, and what its images are.

    Attributes:
        tfds_name: At TFDS, with its configuration.
        train: The TFDS split to train on.
        test: The TFDS split to test on.
        num_classes: n.
        channels: 1 or 3; files are converted to it.
        image_size: Height and width in pixels; None: they differ from image to image.
    """

    tfds_name: str
    train: str = "train"
    test: str = "test"
    num_classes: int = 10
    channels: int = 3
    image_size: int | None = 32


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """A training and a test part.

    Attributes:
        name: What to call the data set.
        class_names: n names; a label is a position here.
        train_images: uint8[N, height, width, channels].
        train_labels: int32[N].
        test_images: uint8[test images, height, width, channels].
        test_labels: int32[test images].
        note: What is special about it, for the summary; may be empty.
        mislabelled: bool[N], which training images somebody gave a wrong label; None:
            nobody did.
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
        """N."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.train_images.shape[1:]

    def summary(self) -> str:
        """The data in one line."""
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

    def subset(self, num_train: int, seed: int = 0) -> "LabelledImages":
        """Returns a class-balanced subset of the training images, where sizes allow.

        Args:
            num_train: How many to keep in all.
            seed: Of the choice.

        Returns:
            The data set with these training images, in their order. The test is whole.
        """
        check_range("num_train", num_train, self.num_classes, len(self.train_labels))
        generator = np.random.Generator(np.random.Philox(key=[seed, num_train]))
        order = generator.permutation(len(self.train_labels))
        # The first images of all classes, then the second ones, and so on.
        by_class = order[np.argsort(self.train_labels[order], kind="stable")]
        sizes = np.bincount(self.train_labels, minlength=self.num_classes)
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = np.sort(by_class[np.argsort(place, kind="stable")[:num_train]])
        return dataclasses.replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
        )


def _fitted(image: Image.Image, image_size: int | None) -> Image.Image:
    """Cuts a square from the middle of an image and resizes it, if a size is given."""
    if image_size is None or image.size == (image_size, image_size):
        return image
    return ImageOps.fit(image, (image_size, image_size), Image.Resampling.BILINEAR)


def _as_array(image: Image.Image, channels: int) -> np.ndarray:
    """uint8[height, width, channels] of an image."""
    array = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    return array.reshape(*array.shape[:2], channels)


def _check_memory(num_train: int, num_test: int, shape: tuple[int, int, int]) -> None:
    """Checks that images of a shape fit into memory, before they are decoded."""
    height, width, channels = shape
    memory.check(
        {
            f"{part} images ({count:,} of {height:,} x {width:,})": count
            * height
            * width
            * channels
            for part, count in (("training", num_train), ("test", num_test))
        }
    )


def _check_num_classes(num_classes: int, flag: str) -> None:
    """Checks that there are two classes or more; flag is what a message begins with."""
    if num_classes < 2:
        raise InvalidInputError(
            f"{flag}: all training images are of one class; expected two or more."
        )


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
        data = from_index(images, image_size=image_size, test="given")
        return dataclasses.replace(data, name=name, note="")
    if data_dir is None:
        return _from_tfds(name, source, image_size)
    path, flag = pathlib.Path(data_dir), f"data_dir={os.fspath(data_dir)}"
    if name in _IDX_DATASETS and any(path.glob("*-idx3-ubyte*")):
        return _from_idx_files(name, path, flag, source, image_size)
    return _load_folders(name, path, flag, source.channels, image_size)


def _from_idx_files(
    name: str, path: pathlib.Path, flag: str, source: Source, image_size: int | None
) -> LabelledImages:
    """Reads MNIST's files; of one part only, every fifth image becomes the test."""
    parts = idx_files.read(path, flag, source.num_classes)
    if image_size is not None:
        counts = (
            len(parts[part][1]) if part in parts else 0 for part in idx_files.FILES
        )
        _check_memory(*counts, (image_size, image_size, source.channels))
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
        note = (
            f"of the {part} files alone: every {_HELD_OUT_OF}th image is a test image"
        )
    train, test = parts["train"], parts["test"]
    num_classes = 1 + int(max(train[1].max(), test[1].max()))
    if missing := set(range(num_classes)) - {*train[1].tolist()}:
        raise InvalidInputError(
            f"{flag}: no training image has the label {min(missing)}; expected some of "
            f"each of 0 to {num_classes - 1}."
        )
    _check_num_classes(num_classes, flag)
    class_names = tuple(map(str, range(num_classes)))
    return LabelledImages(name, class_names, *train, *test, note=note)


def _converted(images: np.ndarray, channels: int, image_size: int | None) -> np.ndarray:
    return np.stack(
        [_as_array(_fitted(Image.fromarray(i), image_size), channels) for i in images]
    )


def _load_folders(
    name: str, path: pathlib.Path, flag: str, channels: int, image_size: int | None
) -> LabelledImages:
    """Reads train/CLASS/IMAGE and test/CLASS/IMAGE; all must be there."""
    images = index.load(path, folders="class")
    if images.splits is None or images.without_images:
        empty = f"; without images: {layout.shown(images.without_images)}"
        raise InvalidInputError(
            f"{flag}: expected {_EXPECTED}{empty if images.without_images else ''}."
        )
    of_train = np.unique(images.labels[images.splits == layout.TRAIN])
    for row in np.flatnonzero(~np.isin(images.labels, of_train)):
        raise InvalidInputError(
            f"{flag}: {images.image_name(row)} is of the class "
            f"{images.class_names[images.labels[row]]!r}, which has no training image."
        )
    data = from_index(images, image_size=image_size, channels=channels, test="given")
    return dataclasses.replace(data, name=name, note=images.note)


def from_index(
    images: index.ImageIndex,
    *,
    image_size: int | None = None,
    channels: int = 3,
    test: str | None = None,
    test_share: float = 0.2,
    seed: int = 0,
) -> LabelledImages:
    """Decodes all images of an index.

    Args:
        images: Which there are.
        image_size: See `load`.
        channels: 1 or 3.
        test: What is for the test, see `splits.hold_out`; not "classes". None: by
            what the data have.
        test_share: The share to hold out, see `splits.hold_out`.
        seed: Of the choice of the test images.

    Returns:
        The data set, in the order of the index. Its classes are those of the training
        images, in the order of their names.
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
    _check_num_classes(len(classes), images.label)
    first = int(chosen.train[0])

    def decoded(row: int) -> np.ndarray:
        return _as_array(
            _fitted(Image.fromarray(images.pixels(row)), image_size), channels
        )

    shape = decoded(first).shape
    _check_memory(len(chosen.train), len(chosen.test), shape)

    def checked(row: int) -> np.ndarray:
        array = decoded(row)
        if array.shape != shape:
            raise InvalidInputError(
                f"{images.label}: {images.image_name(row)} is "
                f"{array.shape[0]}x{array.shape[1]} pixels, {images.image_name(first)} "
                f"{shape[0]}x{shape[1]}; expected images of one size, or an "
                "`image_size` to bring them to."
            )
        return array

    with progress.bar(
        f"Reading {images.name}", len(chosen.train) + len(chosen.test)
    ) as bar:

        def stacked(rows: np.ndarray) -> np.ndarray:
            # Straight to their places: nothing is in memory twice.
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


def _from_tfds(name: str, source: Source, image_size: int | None) -> LabelledImages:
    """Loads a data set of TFDS, which TFDS downloads if it is not on the disk.

    Args:
        name: What to call it.
        source: Its name and splits at TFDS.
        image_size: See `load`.
    """
    # TFDS takes seconds to import.
    import tensorflow_datasets as tfds

    from tff_fedss.datasets import tfds_download

    builder = tfds_download.prepared(
        lambda: tfds.builder(source.tfds_name),
        lambda reason: (
            f"dataset={name} is not on this disk where TFDS keeps its data "
            f"(TFDS_DATA_DIR or ~/tensorflow_datasets), and could not be downloaded "
            f"({reason}). Name a folder or an archive that has it with `data_dir`."
        ),
    )
    parts = [builder.as_dataset(split=part) for part in (source.train, source.test)]
    height, width = builder.info.features["image"].shape[:2]
    _check_memory(
        *(max(0, int(part.cardinality())) for part in parts),  # Negative: unknown.
        (image_size or height, image_size or width, source.channels),
    )
    train, test = (_arrays(part, source.channels, image_size) for part in parts)
    class_names = tuple(builder.info.features["label"].names)
    return LabelledImages(name, class_names, *train, *test)


def _arrays(
    examples: tf.data.Dataset, channels: int, image_size: int | None
) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    for example in examples.as_numpy_iterator():
        image = example["image"]
        if image_size is not None and image.shape[:2] != (image_size, image_size):
            whole = Image.fromarray(image.squeeze(2) if channels == 1 else image)
            image = _as_array(_fitted(whole, image_size), channels)
        images.append(image)
        labels.append(example["label"])
    return np.stack(images), np.array(labels, np.int32)
