"""Identities: data of many classes with some examples each, such as faces.

`ArrayIdentities` holds examples in memory, `of_images` makes identities of the classes
of an index, and `GeneratedIdentities` draws examples on request, for any number of
identities. LFW, CASIA-WebFace, VGGFace2 and others, once unpacked, have a folder for
each identity. Faces should already be aligned and cropped.
"""

import abc
import concurrent.futures
import hashlib
import os
from typing import Any

import numpy as np
from PIL import Image

from tff_fedss.datasets import bijection, fingerprint, splits
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.datasets.images import index, layout
from tff_fedss.errors import InvalidInputError

# Decides which identities are held out.
_HELD_OUT = int.from_bytes(b"facesplt", "big")
# Separates these draws from others with the same seed.
_ORDER = int.from_bytes(b"id_order", "big")
_EXAMPLE = int.from_bytes(b"id_noise", "big")


class Identities(abc.ABC):
    """Training examples of n identities, and test examples.

    Attributes:
        num_classes: n.
        test_labels: int64[tests], the identities of the test examples.
        test_is_unseen: Whether these are other identities than those of the training
            examples.
        summary: A description of the data in one line.
    """

    name: str
    num_classes: int
    example_shape: tuple[int, ...]
    test_labels: np.ndarray
    test_is_unseen: bool
    summary: str

    @abc.abstractmethod
    def batch(self, number: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns mini-batch `number` (from 0, without end), decided by the arguments.

        It is the examples [size, *example_shape], uint8 or float32, and their
        identities, int32[size] in [0, n).
        """

    @abc.abstractmethod
    def test_examples(self, first: int, end: int) -> np.ndarray:
        """Returns test examples first..end-1, as `batch` returns examples."""

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the data (see `fingerprint`)."""
        counts = {
            "data set": self.name,
            "classes": self.num_classes,
            "example shape": self.example_shape,
            "test examples": len(self.test_labels),
            "identities of test examples": self.test_labels,
        }
        return fingerprint.of({**counts, **self._contents()})

    @abc.abstractmethod
    def _contents(self) -> dict[str, Any]:
        """Returns the examples' part of the fingerprint."""


def epoch_positions(number: int, size: int, total: int, seed: int) -> np.ndarray:
    """Returns which of `total` examples make a mini-batch of a shuffled stream.

    Each epoch is another permutation. A mini-batch, counted from 0, may have the
    end of one epoch and the beginning of the next, so that all have the same size.
    Returns int64[size], in [0, total), in O(size) memory.
    """
    places = number * size + np.arange(size, dtype=np.int64)
    epochs, places = np.divmod(places, total)
    result = np.empty(size, np.int64)
    for epoch in np.unique(epochs):
        key = np.array([seed, _ORDER], np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, epoch]))
        inside = epochs == epoch
        result[inside] = bijection.Bijection(total, rng)(places[inside])
    return result


class ArrayIdentities(Identities):
    """Examples in memory."""

    def __init__(
        self,
        name: str,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        note: str = "",
    ):
        """Takes the examples.

        Args:
            train: Examples [N, ...] and their identities int[N], 0..n-1.
            test: Examples and identities; identities of n or more are unseen.
            note: An addition to the summary.
        """
        self.name = name
        self._examples, labels = train
        self._labels = labels.astype(np.int32)
        self._test_examples, test_labels = test
        self.test_labels = test_labels.astype(np.int64)
        self.num_classes = int(labels.max()) + 1
        self.example_shape = self._examples.shape[1:]
        self.test_is_unseen = bool((self.test_labels >= self.num_classes).all())
        self.summary = (
            f"{name}: n={self.num_classes:,} identities, {len(labels):,} training and "
            f"{len(test_labels):,} test images{note and ', '}{note}"
        )

    def batch(self, number: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """See the base class."""
        chosen = epoch_positions(number, size, len(self._labels), seed)
        return self._examples[chosen], self._labels[chosen]

    def test_examples(self, first: int, end: int) -> np.ndarray:
        """See the base class."""
        return self._test_examples[first:end]

    def _contents(self) -> dict[str, Any]:
        return {
            "training examples": len(self._labels),
            "examples per class": np.bincount(self._labels),
            "labels of training examples": self._labels,
            "contents of training examples": self._examples,
            "contents of test examples": self._test_examples,
        }


def of_images(
    images: index.ImageIndex,
    *,
    image_size: int = 112,
    test: str | None = None,
    test_share: float = 0.1,
) -> Identities:
    """Makes identities of the classes of an index; images are read on request.

    Args:
        image_size: Height and width to which images are resized, in pixels.
        test: The images that are held out. "given": the data's own test (or val).
            "images": a share of each identity's. "clients": those of a share of the
            clients. "classes": those of a share of the identities (with two images or
            more), which are then unseen; only names and numbers of images decide which.
            By default "given" if there is one, else "classes".
        test_share: The share to hold out; at least two identities.

    Returns:
        The data: uint8[image_size, image_size, 3]. Training identities are 0..n-1,
        unseen test identities from n on, both in the order of `images.class_names`.
    """
    rng = np.random.Generator(np.random.Philox(_HELD_OUT))
    if test is None:
        test = "classes" if images.splits is None else "given"
    if test == "classes":
        train, tests, note = _unseen(images, test_share, rng)
    else:
        chosen = splits.hold_out(
            images,
            is_unseen=test == "given" and _given_is_unseen(images),
            test=test,
            share=test_share,
            num_public_classes=0,
            rng=rng,
        )
        train, tests, note = chosen.train, chosen.test, chosen.note
    # By class: the order of paths has "a-b/" before "a/".
    train, tests = (
        rows[np.argsort(images.labels[rows], kind="stable")] for rows in (train, tests)
    )
    labels, names = splits.numbered(images.labels, train)
    test_labels = labels[tests]
    sizes = np.unique(images.labels[tests], return_counts=True)[1]
    if len(sizes) < 2 or sizes.max() < 2:
        cure = "test=classes" if test == "given" else "a larger test_share"
        raise InvalidInputError(
            f"{images.label}: {len(tests):,} test images of {len(sizes):,} "
            f"identities do not make pairs of both kinds: use {cure}."
        )
    if (test_labels < 0).any():  # Then all test identities are unseen.
        others, _ = splits.numbered(images.labels, tests)
        test_labels = len(names) + others[tests]
    return _IndexedIdentities(
        images, (train, labels[train]), (tests, test_labels), image_size, note
    )


def _unseen(
    images: index.ImageIndex, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, str]:
    """Holds out identities of two images or more: rows, rows, and a note."""
    splits.check_test_share(share)
    rows = np.arange(len(images))
    if images.splits is not None:
        rows = rows[images.splits == layout.TRAIN]
    present, sizes = np.unique(images.labels[rows], return_counts=True)
    several = present[sizes > 1]
    num_test = max(2, round(share * len(present)))
    if len(several) < num_test or len(present) < num_test + 2:
        raise InvalidInputError(
            f"{images.label} has {len(present):,} identities, {len(several):,} of two "
            f"images or more; expected {num_test:,} of these for the test and 2 others."
        )
    chosen = several[rng.permutation(len(several))[:num_test]]
    is_test = np.isin(images.labels[rows], chosen)
    left_out = len(images) - len(rows)
    note = f"left out: {left_out:,} images of the data's own val or test"
    return rows[~is_test], rows[is_test], note if left_out else ""


def _given_is_unseen(images: index.ImageIndex) -> bool:
    """Returns whether the data's own test has other identities than their training."""
    if images.splits is None:
        return False
    train, tests, _ = splits.given(images, np.arange(len(images)))
    return not np.isin(images.labels[tests], images.labels[train]).any()


class _IndexedIdentities(ArrayIdentities):
    """Images that are decoded on request."""

    def __init__(
        self,
        images: index.ImageIndex,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        image_size: int,
        note: str,
    ):
        (rows, labels), (test_rows, test_labels) = train, test
        super().__init__(
            "identities",
            (_Resized(images, rows, image_size), labels),
            (_Resized(images, test_rows, image_size), test_labels),
        )
        self._images, self._rows = images, np.concatenate([rows, test_rows])
        whose = (
            f"{len(np.unique(test_labels)):,} others with "
            if self.test_is_unseen
            else "others of theirs: "
        )
        notes = "".join(f"; {text}" for text in (images.note, note) if text)
        self.summary = (
            f"{images.name}: n={self.num_classes:,} identities with {len(rows):,} "
            f"images for training, {whose}{len(test_rows):,} for the test{notes}"
        )

    def _contents(self) -> dict[str, Any]:
        names = self._images.class_names
        return {
            "names of identities": [names[k] for k in self._images.labels[self._rows]],
            "images per identity": np.bincount(self._labels),
            **self._images.fingerprint(self._rows),
        }


class _Resized:
    """Images of an index as an array of squares, uint8[N, size, size, 3]."""

    def __init__(self, images: index.ImageIndex, rows: np.ndarray, size: int):
        self._images, self._rows = images, rows
        self.shape = (len(rows), size, size, 3)
        self._pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())

    def __getitem__(self, chosen: np.ndarray | slice) -> np.ndarray:
        return np.stack(
            list(self._pool.map(self._resized, self._rows[chosen].tolist()))
        )

    def _resized(self, row: int) -> np.ndarray:
        image = Image.fromarray(self._images.pixels(row))
        return np.asarray(image.resize(self.shape[1:3], Image.Resampling.BILINEAR))


class GeneratedIdentities(Identities):
    """Vectors that are drawn on request, for any number of identities.

    An identity is a point of R^k, a function of its number. An example is that point
    with a little noise, and k much larger coordinates that do not depend on the
    identity, all rotated by one rotation of R^2k: the model must find the relevant
    half. Test examples are of identities n, n + 1, ..., which are not trained. Time and
    memory depend on the requested examples only, not on n.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        num_dimensions: int = 32,
        noise: float = 0.3,
        distraction: float = 3.0,
        num_test_identities: int = 500,
        examples_per_test_identity: int = 4,
        seed: int = 0,
    ):
        """Draws the rotation.

        Args:
            num_classes: n.
            num_dimensions: k; an example has 2 k numbers.
            noise: The standard deviation of an example around its identity; that of
                identities is 1.
            distraction: The standard deviation of the irrelevant half.
            seed: Seed of the rotation, the identities and the test examples.
        """
        self.name = "generated"
        self.num_classes = num_classes
        self.example_shape = (2 * num_dimensions,)
        self.test_is_unseen = True
        self.test_labels = num_classes + np.repeat(
            np.arange(num_test_identities, dtype=np.int64), examples_per_test_identity
        )
        self.summary = (
            f"generated: n={num_classes:,} identities, {2 * num_dimensions} numbers an "
            f"example, {len(self.test_labels):,} test examples of "
            f"{num_test_identities:,} other identities"
        )
        self._noise, self._distraction, self._seed = noise, distraction, seed
        rng = self._rng(2**63, 0)
        rotation, _ = np.linalg.qr(rng.standard_normal([2 * num_dimensions] * 2))
        self._rotation = rotation.astype(np.float32)

    def batch(self, number: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """See the base class. Identities are independent and uniform."""
        rng = self._rng(number, seed + 1)
        labels = rng.integers(0, self.num_classes, size)
        return self._draw(labels, rng), labels.astype(np.int32)

    def test_examples(self, first: int, end: int) -> np.ndarray:
        """See the base class."""
        rows = [
            self._draw(self.test_labels[i : i + 1], self._rng(2**62 + i, 0))
            for i in range(first, min(end, len(self.test_labels)))
        ]
        return np.concatenate(rows)

    def _contents(self) -> dict[str, Any]:
        # The fingerprint has no examples, whose last bits differ between processors.
        labels = self._rng(0, 1).integers(0, self.num_classes, 1000)
        return {
            "seed of identities": self._seed,
            "noise": repr(float(self._noise)),
            "distraction": repr(float(self._distraction)),
            "some random labels": labels,
        }

    def centres(self, labels: np.ndarray) -> np.ndarray:
        """Returns the points of identities, float32[N, k]: standard normal, fixed."""
        k = self.example_shape[0] // 2
        counters = labels.astype(np.uint64)[:, np.newaxis] * np.uint64(k) + np.arange(
            k, dtype=np.uint64
        )
        salt = hashlib.blake2b(f"centres {self._seed}".encode(), digest_size=8)
        bits = bijection.mix(
            bijection.mix(counters) ^ np.frombuffer(salt.digest(), np.uint64)
        )
        # Box and Muller: two uniform numbers of 32 bits make a normal one.
        halves = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
        u, v = ((half.astype(np.float64) + 0.5) * 2.0**-32 for half in halves)
        normal = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
        return normal.astype(np.float32)

    def _draw(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        centres = self.centres(labels)
        own = centres + self._noise * rng.standard_normal(centres.shape, np.float32)
        other = self._distraction * rng.standard_normal(centres.shape, np.float32)
        return np.concatenate([own, other], 1).astype(np.float32) @ self._rotation

    def _rng(self, number: int, stream: int) -> np.random.Generator:
        key = np.array([self._seed, _EXAMPLE], np.uint64)
        return np.random.Generator(
            np.random.Philox(key=key, counter=[0, 0, stream, number])
        )
