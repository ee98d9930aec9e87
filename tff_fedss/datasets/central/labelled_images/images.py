"""What every source of labelled images gives: `LabelledImages`, decoded, in memory."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from PIL import Image, ImageOps

from tff_fedss import memory
from tff_fedss.datasets import archives, fingerprint
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.errors import InvalidInputError

# In messages.
EXPECTED = (
    "train/CLASS/IMAGE and test/CLASS/IMAGE (val stands for test too), in a folder or "
    f"an archive ({', '.join(archives.SUFFIXES)}), or MNIST's "
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


# Keep the draws of what is changed apart from each other, and from those of `subset`.
_NOISE, _TAIL, _COPIES = (2**32 + i for i in (1, 2, 3))
# How often an image is copied, how far a copy is moved, in pixels, and the most that is
# added to or taken from a value.
_COPIES_OF_AN_IMAGE, _COPY_SHIFT, _COPY_NOISE = 20, 1, 8


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
            `mislabelled` (`with_label_noise`), `rare` (`with_subclasses`) and `copied`
            (`with_near_duplicates`), as far as somebody did that.
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
        """Keeps as many training images of each class as of any other, if there are.

        Args:
            num_train: How many to keep in all.
            seed: Of the choice.

        Returns:
            The data set with these training images, in their order. The test is whole.

        Raises:
            InvalidInputError: If there are not so many, or fewer than one per class.
        """
        if not self.num_classes <= num_train <= len(self.train_labels):
            raise InvalidInputError(
                f"num_train={num_train} must be in {self.num_classes}.."
                f"{len(self.train_labels)}, the training images of {self.name}."
            )
        generator = np.random.Generator(np.random.Philox(key=[seed, num_train]))
        order = generator.permutation(len(self.train_labels))
        # The first images of all classes, then the second ones, and so on.
        by_class = order[np.argsort(self.train_labels[order], kind="stable")]
        sizes = np.bincount(self.train_labels, minlength=self.num_classes)
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = np.sort(by_class[np.argsort(place, kind="stable")[:num_train]])
        return self._of(kept)

    def with_subclasses(
        self, num_classes: int, imbalance: float, seed: int
    ) -> "LabelledImages":
        """Merges classes, of which some parts are then seldom seen: a long tail.

        Class i becomes a subclass of class i mod num_classes. Of a class with R
        subclasses, the r-th (from 0) keeps its share imbalance^(-r / (R - 1)) of the
        training images, an exponential tail (Cui et al., 2019), of as many as the
        smallest subclass has. Those with r > (R - 1) / 2 are the rare ones. The test is
        whole, and as balanced as it was.

        Args:
            num_classes: How many classes there are to be; each must get two subclasses.
            imbalance: How many times as many images the largest subclass of a class has
                as its smallest, at least 1.
            seed: Of the choice of images.

        Returns:
            The data set with these classes, its images in their order.

        Raises:
            InvalidInputError: If there are too few classes.
        """
        if not 2 <= num_classes <= self.num_classes // 2:
            raise InvalidInputError(
                f"merge_classes={num_classes} must be in 2..{self.num_classes // 2}: "
                f"each of them gets two or more of the {self.num_classes} classes of "
                f"{self.name}."
            )
        subclasses = np.arange(self.num_classes)
        ranks, merged = np.divmod(subclasses, num_classes)
        last_ranks = (self.num_classes - 1 - merged) // num_classes
        sizes = np.bincount(self.train_labels, minlength=self.num_classes).min()
        sizes = sizes * float(imbalance) ** (-ranks / last_ranks)
        sizes = np.maximum(1, np.rint(sizes)).astype(int)
        generator = np.random.Generator(np.random.Philox(key=[seed, _TAIL]))
        order = generator.permutation(len(self.train_labels))
        kept = np.sort(
            np.concatenate(
                [order[self.train_labels[order] == i][: sizes[i]] for i in subclasses]
            )
        )
        is_rare = ranks > last_ranks / 2
        names = np.array(self.class_names)
        tail = self._of(kept)
        return dataclasses.replace(
            tail,
            class_names=tuple("+".join(names[merged == i]) for i in range(num_classes)),
            train_labels=merged[tail.train_labels].astype(self.train_labels.dtype),
            test_labels=merged[self.test_labels].astype(self.test_labels.dtype),
            note=self._note(
                f"{self.num_classes} subclasses, the largest {imbalance:g} times the "
                "smallest"
            ),
            marked={**tail.marked, "rare": is_rare[tail.train_labels]},
            test_is_rare=is_rare[self.test_labels],
        )

    def with_near_duplicates(self, share: float, seed: int) -> "LabelledImages":
        """Puts near copies of few training images in the place of others.

        A copy is moved by up to a pixel in each direction and has a little noise. An
        image that is copied has 20 copies.

        Args:
            share: Of the training images, in [0, 1): so many, rounded, are replaced.
            seed: Of the choice.

        Returns:
            The data set with as many training images as before.

        Raises:
            InvalidInputError: If fewer images are left than are to be copied.
        """
        generator = np.random.Generator(np.random.Philox(key=[seed, _COPIES]))
        order = generator.permutation(len(self.train_labels))
        count = round(share * len(order))
        num_originals = -(-count // _COPIES_OF_AN_IMAGE)
        if num_originals > len(order) - count:
            raise InvalidInputError(
                f"near_duplicates={share:g} leaves {len(order) - count} of "
                f"{len(order)} training images, and {num_originals} have to be copied."
            )
        copies, originals = order[:count], order[count : count + num_originals]
        sources = np.resize(originals, count)
        images, labels = self.train_images.copy(), self.train_labels.copy()
        labels[copies] = labels[sources]
        images[copies] = _near_copies(self.train_images[sources], generator)
        is_copied = np.zeros(len(order), bool)
        is_copied[copies] = True
        return dataclasses.replace(
            self,
            train_images=images,
            train_labels=labels,
            note=self._note(
                f"{share:.0%} of the training images are near copies of "
                f"{num_originals:,} others"
            ),
            marked={**self.marked, "copied": is_copied},
        )

    def with_label_noise(self, share: float, seed: int) -> "LabelledImages":
        """Makes training labels wrong: symmetric noise.

        Args:
            share: Of the training images, in [0, 1): so many, rounded, get another
                label, each of the n - 1 with the same probability.
            seed: Of the choice.

        Returns:
            The data set with these labels; those of the test stay right.
        """
        generator = np.random.Generator(np.random.Philox(key=[seed, _NOISE]))
        count = round(share * len(self.train_labels))
        is_wrong = np.zeros(len(self.train_labels), bool)
        is_wrong[generator.permutation(len(is_wrong))[:count]] = True
        labels = self.train_labels.copy()
        labels[is_wrong] += generator.integers(1, self.num_classes, count)
        return dataclasses.replace(
            self,
            train_labels=(labels % self.num_classes).astype(self.train_labels.dtype),
            note=self._note(f"{share:.0%} of the training labels are wrong"),
            marked={**self.marked, "mislabelled": is_wrong},
        )

    def _of(self, kept: np.ndarray) -> "LabelledImages":
        """Only these training images."""
        return dataclasses.replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
            marked={name: is_marked[kept] for name, is_marked in self.marked.items()},
        )

    def _note(self, text: str) -> str:
        return f"{self.note}; {text}" if self.note else text


def _near_copies(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """uint8[count, height, width, channels], each a little other than its image."""
    height, width = images.shape[1:3]
    margins = ((0, 0), (_COPY_SHIFT,) * 2, (_COPY_SHIFT,) * 2, (0, 0))
    padded = np.pad(images, margins, mode="edge")
    starts = generator.integers(0, 2 * _COPY_SHIFT + 1, (len(images), 2))
    moved = [
        image[y : y + height, x : x + width]
        for image, (y, x) in zip(padded, starts, strict=True)
    ]
    noise = generator.integers(-_COPY_NOISE, _COPY_NOISE + 1, images.shape)
    return (np.reshape(moved, images.shape) + noise).clip(0, 255).astype(np.uint8)


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
    """Checks that images fit into memory, before they are decoded.

    Args:
        num_train: Training images.
        num_test: Test images.
        shape: Of an image, (height, width, channels).

    Raises:
        InvalidInputError: If they do not; the message has the sum.
    """
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
    """Checks that there is something to tell apart.

    Args:
        num_classes: Of the training images.
        flag: What a message is to begin with.

    Raises:
        InvalidInputError: If there are fewer than two classes.
    """
    if num_classes < 2:
        raise InvalidInputError(
            f"{flag}: all training images are of one class; expected two or more."
        )
