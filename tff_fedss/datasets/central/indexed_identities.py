"""Photographs of identities, such as faces: the classes of an index of images.

The layout of LFW, CASIA-WebFace, VGGFace2 and others, once unpacked, is a folder for
each identity. Faces should be aligned and cropped already; images are resized to
squares.
"""

import concurrent.futures
import os
from typing import Any

import numpy as np
from PIL import Image

from tff_fedss.datasets import splits
from tff_fedss.datasets.central import identities
from tff_fedss.datasets.images import index, layout
from tff_fedss.errors import InvalidInputError

# Decides what is held out.
_PHILOX_STREAM = int.from_bytes(b"facesplt", "big")


def load(
    images: index.ImageIndex,
    *,
    image_size: int = 112,
    test: str | None = None,
    test_share: float = 0.1,
) -> identities.Identities:
    """Makes identities of the classes of an index; images are read when asked for.

    Args:
        images: Which there are.
        image_size: Height and width that images are brought to, in pixels.
        test: What is for the test, one of `splits.TESTS`. "classes": identities with
            two images or more, so that it is one of unseen identities. Which ones
            follows from their names and numbers of images alone. None: "given" if the
            data have a test, else "classes".
        test_share: The share to hold out; of the identities at least two.

    Returns:
        The data: uint8[image_size, image_size, 3]. The identities of the training are
        0..n-1, those of a test of unseen ones n and on, each in the order of their
        names.

    Raises:
        InvalidInputError: If there are too few identities, or the data do not allow
            such a test.
    """
    rng = np.random.Generator(np.random.Philox(_PHILOX_STREAM))
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
    train, tests = (rows[_by_class(images.labels[rows])] for rows in (train, tests))
    labels, names = splits.numbered(images.labels, train)
    test_labels = labels[tests]
    if len(names) < 2:
        raise InvalidInputError(
            f"{images.label}: all training images are of one identity; expected two or "
            "more."
        )
    sizes = np.unique(images.labels[tests], return_counts=True)[1]
    if len(sizes) < 2 or sizes.max() < 2:
        raise InvalidInputError(
            f"{images.label}: the test has {len(tests):,} images of {len(sizes):,} "
            "identities; expected two images of one and another identity, to make "
            "pairs: take a larger test_share."
        )
    if (test_labels < 0).any():  # Then all are: see `hold_out`.
        others, _ = splits.numbered(images.labels, tests)
        test_labels = len(names) + others[tests]
    return _IndexedIdentities(
        images, (train, labels[train]), (tests, test_labels), image_size, note
    )


def _unseen(
    images: index.ImageIndex, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, str]:
    """Holds out identities of two images or more: rows, rows, and a note."""
    rows = np.arange(len(images))
    if images.splits is not None:
        rows = rows[images.splits == layout.TRAIN]
    present, sizes = np.unique(images.labels[rows], return_counts=True)
    several = present[sizes > 1]
    num_test = max(2, round(share * len(present)))
    if len(several) < num_test or len(present) < num_test + 2:
        raise InvalidInputError(
            f"{images.label} has {len(present):,} identities with images, "
            f"{len(several):,} of them with two or more; expected at least "
            f"{num_test:,} identities of two images for the test and two more for the "
            "training."
        )
    chosen = several[rng.permutation(len(several))[:num_test]]
    is_test = np.isin(images.labels[rows], chosen)
    return rows[~is_test], rows[is_test], ""


def _given_is_unseen(images: index.ImageIndex) -> bool:
    """Whether the data's own test is of other identities than their training."""
    if images.splits is None:
        return False
    is_train = images.splits == layout.TRAIN
    return not np.isin(images.labels[~is_train], images.labels[is_train]).any()


def _by_class(labels: np.ndarray) -> np.ndarray:
    """The order of rows by their class. That of paths has "a-b/" before "a/"."""
    return np.argsort(labels, kind="stable")


class _IndexedIdentities(identities.Identities):
    """Images that are decoded when asked for."""

    name = "identities"

    def __init__(
        self,
        images: index.ImageIndex,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        image_size: int,
        note: str,
    ):
        self._images = images
        self._rows, self._labels = train
        self._test_rows, test_labels = test
        self.num_classes = int(self._labels.max()) + 1
        self.example_shape = (image_size, image_size, 3)
        self.test_labels = test_labels.astype(np.int64)
        self.test_is_unseen = bool((test_labels >= self.num_classes).all())
        whose = (
            f"{len(np.unique(test_labels)):,} others with "
            if self.test_is_unseen
            else "others of theirs: "
        )
        notes = "".join(f"; {text}" for text in (images.note, note) if text)
        self.summary = (
            f"{images.name}: n={self.num_classes:,} identities with "
            f"{len(self._rows):,} images for training, {whose}{len(self._test_rows):,} "
            f"for the test{notes}"
        )
        self._pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())

    def batch(self, number: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """See the base class."""
        chosen = identities.epoch_positions(number, size, len(self._rows), seed)
        return self._read(self._rows[chosen]), self._labels[chosen]

    def test_examples(self, first: int, end: int) -> np.ndarray:
        """See the base class."""
        return self._read(self._test_rows[first:end])

    def _contents(self) -> dict[str, Any]:
        names = self._images.class_names
        rows = np.concatenate([self._rows, self._test_rows])
        return {
            "names of identities": [names[k] for k in self._images.labels[rows]],
            "images per identity": np.bincount(self._labels),
            **self._images.fingerprint(rows),
        }

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return np.stack(list(self._pool.map(self._resized, rows.tolist())))

    def _resized(self, row: int) -> np.ndarray:
        image = Image.fromarray(self._images.pixels(row))
        return np.asarray(
            image.resize(self.example_shape[:2], Image.Resampling.BILINEAR)
        )
