"""Corruptions of labelled images, by which LEAP's claims are tried.

Labels that are wrong, subclasses that are rare, images that are there many times.
"""

import dataclasses

import numpy as np

from tff_fedss.datasets.central.labelled_images import LabelledImages
from tff_fedss.errors import InvalidInputError

# Keep the draws of what is changed apart from each other, and from those of `subset`.
_NOISE, _TAIL, _COPIES = (2**32 + i for i in (1, 2, 3))
# How often an image is copied, how far a copy is moved, in pixels, and the most that is
# added to or taken from a value.
_COPIES_OF_AN_IMAGE, _COPY_SHIFT, _COPY_NOISE = 20, 1, 8


def with_subclasses(
    data: LabelledImages, num_classes: int, imbalance: float, seed: int
) -> LabelledImages:
    """Merges classes and subsamples their subclasses to a long-tailed distribution.

    Class i becomes a subclass of class i mod num_classes. Of a class with R
    subclasses, the r-th (from 0) keeps its share imbalance^(-r / (R - 1)) of the
    training images, an exponential tail (Cui et al., 2019), of as many as the
    smallest subclass has. Those with r > (R - 1) / 2 are the rare ones. The test is
    whole, and as balanced as it was.

    Args:
        data: The images.
        num_classes: The number of classes to make; each must get two subclasses.
        imbalance: The images of the largest subclass of a class over those of its
            smallest, at least 1.
        seed: Of the choice of images.

    Raises:
        InvalidInputError: If there are too few classes.
    """
    if not 2 <= num_classes <= data.num_classes // 2:
        raise InvalidInputError(
            f"merge_classes={num_classes} must be in 2..{data.num_classes // 2}: "
            f"each of them gets two or more of the {data.num_classes} classes of "
            f"{data.name}."
        )
    subclasses = np.arange(data.num_classes)
    ranks, merged = np.divmod(subclasses, num_classes)
    last_ranks = (data.num_classes - 1 - merged) // num_classes
    sizes = np.bincount(data.train_labels, minlength=data.num_classes).min()
    sizes = sizes * float(imbalance) ** (-ranks / last_ranks)
    sizes = np.maximum(1, np.rint(sizes)).astype(int)
    generator = np.random.Generator(np.random.Philox(key=[seed, _TAIL]))
    order = generator.permutation(len(data.train_labels))
    kept = np.sort(
        np.concatenate(
            [order[data.train_labels[order] == i][: sizes[i]] for i in subclasses]
        )
    )
    is_rare = ranks > last_ranks / 2
    names = np.array(data.class_names)
    tail = data.of(kept)
    return dataclasses.replace(
        tail,
        class_names=tuple("+".join(names[merged == i]) for i in range(num_classes)),
        train_labels=merged[tail.train_labels].astype(data.train_labels.dtype),
        test_labels=merged[data.test_labels].astype(data.test_labels.dtype),
        note=_note(
            data,
            f"{data.num_classes} subclasses, the largest {imbalance:g} times the "
            "smallest",
        ),
        marked={**tail.marked, "rare": is_rare[tail.train_labels]},
        test_is_rare=is_rare[data.test_labels],
    )


def with_near_duplicates(
    data: LabelledImages, share: float, seed: int
) -> LabelledImages:
    """Puts near copies of few training images instead of others.

    A copy is moved by up to a pixel in each direction and has a little noise. An
    image that is copied has 20 copies.

    Args:
        data: The images.
        share: Of the training images that are replaced, in [0, 1).
        seed: Of the choice.

    Raises:
        InvalidInputError: If fewer images are left than are to be copied.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, _COPIES]))
    order = generator.permutation(len(data.train_labels))
    count = round(share * len(order))
    num_originals = -(-count // _COPIES_OF_AN_IMAGE)
    if num_originals > len(order) - count:
        raise InvalidInputError(
            f"near_duplicates={share:g} leaves {len(order) - count} of "
            f"{len(order)} training images, and {num_originals} have to be copied."
        )
    copies, originals = order[:count], order[count : count + num_originals]
    sources = np.resize(originals, count)
    images, labels = data.train_images.copy(), data.train_labels.copy()
    labels[copies] = labels[sources]
    images[copies] = _near_copies(data.train_images[sources], generator)
    is_copied = np.zeros(len(order), bool)
    is_copied[copies] = True
    return dataclasses.replace(
        data,
        train_images=images,
        train_labels=labels,
        note=_note(
            data,
            f"{share:.0%} of the training images are near copies of "
            f"{num_originals:,} others",
        ),
        marked={**data.marked, "copied": is_copied},
    )


def with_label_noise(data: LabelledImages, share: float, seed: int) -> LabelledImages:
    """Makes training labels wrong: symmetric noise.

    Args:
        data: The images.
        share: Of the training images that get another label, in [0, 1): each of the
            n - 1 with the same probability. The labels of the test stay right.
        seed: Of the choice.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, _NOISE]))
    count = round(share * len(data.train_labels))
    is_wrong = np.zeros(len(data.train_labels), bool)
    is_wrong[generator.permutation(len(is_wrong))[:count]] = True
    labels = data.train_labels.copy()
    labels[is_wrong] += generator.integers(1, data.num_classes, count)
    return dataclasses.replace(
        data,
        train_labels=(labels % data.num_classes).astype(data.train_labels.dtype),
        note=_note(data, f"{share:.0%} of the training labels are wrong"),
        marked={**data.marked, "mislabelled": is_wrong},
    )


def _note(data: LabelledImages, text: str) -> str:
    return "; ".join(filter(None, [data.note, text]))


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
