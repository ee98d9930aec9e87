"""Public images of one or several sources, for pretraining.

The paper starts phi from ImageNet-1k (FedSS, A.2): photographs of classes that are not
those of the task. Images of other classes and of other data sets can replace it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tff_fedss import seeds
from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.errors import InvalidInputError, check_range

# Separates the choice of classes from other draws with the same seed.
_STREAM = 4


@dataclasses.dataclass(frozen=True)
class Source:
    """Labelled images of one data set.

    Attributes:
        images: uint8[N, height, width, channels].
        labels: int32[N], from 0 on.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    num_classes: int


@dataclasses.dataclass(frozen=True)
class PublicImages:
    """Images to train on, and images to probe the features on.

    Attributes:
        train_images: uint8[N, height, width, channels].
        train_labels: int32[N]: the classes of all sources, one source after another.
        probe_images: uint8[M, height, width, channels], of classes that are not
            trained.
        probe_labels: int32[M], numbered from 0 on.
        sources: The sources' names, with the number of their classes and images.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    num_classes: int
    probe_images: np.ndarray
    probe_labels: np.ndarray
    sources: tuple[str, ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.train_images.shape[1:]

    def summary(self) -> str:
        """A description of the data in one line."""
        height, width, channels = self.image_shape
        text = (
            f"{' and '.join(self.sources)}: {len(self.train_labels):,} images of "
            f"{self.num_classes:,} classes, {height}x{width}x{channels}"
        )
        if len(self.probe_labels):
            count = len(np.unique(self.probe_labels))
            text += f"; the probe has {len(self.probe_labels):,} of {count:,} others"
        return text

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the data (see `fingerprint`)."""
        return fingerprint.of(
            {
                "sources": self.sources,
                "classes": self.num_classes,
                "image shape": self.image_shape,
                "labels of training images": self.train_labels,
                "contents of training images": self.train_images,
                "labels of the probe": self.probe_labels,
                "contents of the probe": self.probe_images,
            }
        )


def put_together(
    sources: Sequence[Source], *, num_probe_classes: int = 0, seed: int = 0
) -> PublicImages:
    """Combines data sets with images of the same shape, in their order.

    Classes of two sources are never the same class, whatever they show. Some
    classes of the first source, drawn at random, are kept for the probe.
    """
    first = sources[0]
    expected = first.images.shape[1:]
    for other in sources:
        if (found := other.images.shape[1:]) != expected:
            raise InvalidInputError(
                f"images of {other.name} are {found}, of {first.name} {expected}: "
                "height, width and channels must agree."
            )
    check_range("num_probe_classes", num_probe_classes, 0, first.num_classes - 2)
    if num_probe_classes == 1:
        raise InvalidInputError("num_probe_classes=1 must be 0, or at least 2.")
    generator = seeds.generator(seed + (_STREAM << 32), 0)
    is_probe = np.zeros(first.num_classes, bool)
    is_probe[generator.permutation(first.num_classes)[:num_probe_classes]] = True
    kept, of_probe = _numbered(first, ~is_probe), _numbered(first, is_probe)
    parts = [kept, *((source.images, source.labels) for source in sources[1:])]
    counts = [
        first.num_classes - num_probe_classes,
        *(source.num_classes for source in sources[1:]),
    ]
    offsets = np.cumsum([0, *counts[:-1]])
    return PublicImages(
        train_images=np.concatenate([images for images, _ in parts]),
        train_labels=np.concatenate(
            [
                labels + offset
                for (_, labels), offset in zip(parts, offsets, strict=True)
            ]
        ).astype(np.int32),
        num_classes=sum(counts),
        probe_images=of_probe[0],
        probe_labels=of_probe[1],
        sources=tuple(
            f"{source.name} ({source.num_classes:,} classes, "
            f"{len(source.labels):,} images)"
            for source in sources
        ),
    )


def _numbered(source: Source, is_wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images of some classes, numbered from 0 on."""
    rows = is_wanted[source.labels]
    numbers = np.cumsum(is_wanted, dtype=np.int32) - 1
    return source.images[rows], numbers[source.labels[rows]]
