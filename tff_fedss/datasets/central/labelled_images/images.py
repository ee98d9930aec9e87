"""What every source of labelled images gives: `LabelledImages`, decoded, in memory."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from PIL import Image, ImageOps

from tff_fedss import memory
from tff_fedss.datasets import fingerprint, sources
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.errors import InvalidInputError, check_range

# In messages.
EXPECTED = (
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
        marked: Training images whose share of a selection is of interest, bool[N]:
            mislabelled, rare or copied ones, by what somebody made of the data.
        test_is_rare: bool[test images], which are of a rare subclass; None: nobody made
            subclasses.
    """

    name: str
    class_names: tuple[str, ...]
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    note: str = ""
    marked: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    test_is_rare: np.ndarray | None = None

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
        return self.of(kept)

    def of(self, kept: np.ndarray) -> "LabelledImages":
        """Returns the data set with these training images alone, int64[kept]."""
        return dataclasses.replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
            marked={name: is_marked[kept] for name, is_marked in self.marked.items()},
        )


def fitted(image: Image.Image, image_size: int | None) -> Image.Image:
    """Cuts a square from the middle of an image and resizes it, if a size is given."""
    if image_size is None or image.size == (image_size, image_size):
        return image
    return ImageOps.fit(image, (image_size, image_size), Image.Resampling.BILINEAR)


def as_array(image: Image.Image, channels: int) -> np.ndarray:
    """uint8[height, width, channels] of an image."""
    array = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    return array.reshape(*array.shape[:2], channels)


def check_memory(num_train: int, num_test: int, shape: tuple[int, int, int]) -> None:
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


def check_num_classes(num_classes: int, flag: str) -> None:
    """Checks that there are two classes or more; flag is what a message begins with."""
    if num_classes < 2:
        raise InvalidInputError(
            f"{flag}: all training images are of one class; expected two or more."
        )
