"""Which images are for training, for the test, for validation, and public."""

import dataclasses

import numpy as np

from tff_fedss.datasets.images import layout
from tff_fedss.datasets.images.index import ImageIndex
from tff_fedss.errors import InvalidInputError

TESTS = ("given", "images", "classes", "clients")


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Rows of an index by their use; no row has two.

    Attributes:
        train: Ascending, int64.
        test: Likewise.
        public: Likewise; all images of the public classes.
        test_is_unseen: Whether no class of the test is one of the training.
        note: What was decided, for a person.
    """

    train: np.ndarray
    test: np.ndarray
    public: np.ndarray
    test_is_unseen: bool
    note: str


def hold_out(
    index: ImageIndex,
    *,
    is_unseen: bool,
    test: str | None,
    share: float,
    num_public_classes: int,
    rng: np.random.Generator,
) -> HeldOut:
    """Chooses the test images and the public classes.

    Args:
        index: All images.
        is_unseen: Whether the test is to be of classes that no client has (retrieval),
            or of those that they have (classification).
        test: One of `TESTS`. "given": what the data call test (or val, without a
            test). "images": a share of every class. "classes": all images of a share of
            the classes. "clients": all images of a share of the clients. None: "given"
            if there is one, else "images", or "classes" for unseen ones.
        share: Of what is held out, in (0, 1).
        num_public_classes: How many other classes are public.
        rng: Where the draws come from.

    Returns:
        The choice.

    Raises:
        InvalidInputError: If the data or the arguments do not allow it.
    """
    if test is None:
        test = (
            "given"
            if index.splits is not None
            else "classes"
            if is_unseen
            else "images"
        )
    if test not in TESTS:
        raise InvalidInputError(f"test={test!r} must be one of {', '.join(TESTS)}.")
    if not 0 < share < 1:
        raise InvalidInputError(f"test_share={share} must be above 0 and below 1.")
    if is_unseen and test in ("images", "clients"):
        raise InvalidInputError(
            f"test={test} holds out images of classes that clients have; retrieval of "
            "unseen classes needs test=classes, or a given test of other classes."
        )
    if not is_unseen and test == "classes":
        raise InvalidInputError(
            "test=classes holds out classes that no client has; that is for retrieval, "
            "classification needs test=images, clients or given."
        )
    rows = np.arange(len(index))
    if test == "given":
        train, tests, note = _given(index, rows)
    else:
        # What the data call test or val stays out of the training in any case.
        train = rows if index.splits is None else rows[index.splits == layout.TRAIN]
        chosen = _CHOOSERS[test](index, train, share, rng)
        train, tests = train[~chosen], train[chosen]
        note = f"test: {share:.0%} of the {test}"
    public = _public(index, train, num_public_classes, rng)
    train = np.setdiff1d(train, public, assume_unique=True)
    if not len(train):
        raise InvalidInputError("no image is left for training.")
    known = np.isin(index.labels[tests], index.labels[train])
    if is_unseen:
        if known.any():
            row = tests[known][0]
            raise InvalidInputError(
                f"the class {index.class_names[index.labels[row]]!r} of the test is "
                "one of the training too, and task=retrieval is of unseen ones: use "
                "test=classes, or task=classification."
            )
    elif not known.all():
        left_out = len(tests) - int(known.sum())
        classes = len(np.unique(index.labels[tests[~known]]))
        tests = tests[known]
        note += (
            f"; left out of the test: {left_out:,} images of {classes:,} classes "
            "without a training image"
        )
    if not len(tests):
        raise InvalidInputError(
            f"test={test} leaves no test image: there are "
            f"{len(np.unique(index.labels)):,} classes and {len(index):,} images."
        )
    return HeldOut(train, tests, public, is_unseen, note)


def numbered(labels: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the classes of some rows anew, from 0 on.

    Args:
        labels: Of all rows, int[N].
        rows: Some of them.

    Returns:
        The new labels of all rows, int32[N], -1 for classes that none of these rows
        has; and the labels of before in the order of the new ones.
    """
    present = np.unique(labels[rows])
    number = np.full(int(labels.max()) + 1, -1, np.int32)
    number[present] = np.arange(len(present))
    return number[labels], present


def _given(index: ImageIndex, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    if index.splits is None:
        raise InvalidInputError(
            "test=given, but the data have no test: no folder train/ with test/ or "
            "val/ beside it, and no column `split`. Use test=images or test=classes."
        )
    which, name = layout.TEST, "test"
    if not (index.splits == layout.TEST).any():
        which, name = layout.VALIDATION, "val"
    return (
        rows[index.splits == layout.TRAIN],
        rows[index.splits == which],
        f"test: as given ({name})",
    )


def _images(
    index: ImageIndex, rows: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """A share of each class, rounded, that leaves an image to every class."""
    labels = index.labels[rows]
    shuffled = rng.permutation(len(rows))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sizes = np.bincount(labels)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.minimum(
        np.round(sizes * share).astype(np.int64), np.maximum(sizes - 1, 0)
    )
    chosen = np.zeros(len(rows), bool)
    chosen[order] = place < np.repeat(wanted, sizes)
    return chosen


def _some_of(
    values: np.ndarray, what: str, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Whether a value is one of a share of the different values, at least one."""
    different = np.unique(values)
    count = max(1, round(len(different) * share))
    if count >= len(different):
        raise InvalidInputError(
            f"test={what} with test_share={share:g} holds out all of the "
            f"{len(different):,} {what}."
        )
    return np.isin(values, rng.choice(different, count, replace=False))


def _classes(index, rows, share, rng) -> np.ndarray:
    return _some_of(index.labels[rows], "classes", share, rng)


def _clients(index, rows, share, rng) -> np.ndarray:
    if index.clients is None:
        raise InvalidInputError(
            "test=clients needs clients in the data: CLIENT/CLASS/image with "
            "folders=client/class, or a column `client` in images.csv."
        )
    return _some_of(index.clients[rows], "clients", share, rng)


_CHOOSERS = {"images": _images, "classes": _classes, "clients": _clients}


def _public(
    index: ImageIndex, train: np.ndarray, number: int, rng: np.random.Generator
) -> np.ndarray:
    """The training images of so many classes, drawn at random."""
    labels = np.unique(index.labels[train])
    if not 0 <= number <= len(labels) - 2:
        raise InvalidInputError(
            f"num_public_classes={number} must leave two or more of the "
            f"{len(labels):,} training classes to the clients."
        )
    if not number:
        return train[:0]
    chosen = rng.choice(labels, number, replace=False)
    return train[np.isin(index.labels[train], chosen)]
