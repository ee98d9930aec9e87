"""Splits: images for training, test and warm start, and validation clients.

`hold_out` splits an index of images. Validation clients do not train; their images are
used to make choices, such as of a learning rate, which must not use the test.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss.datasets.federated import clients, partitions
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.errors import InvalidInputError, check_choice, check_range

# Separates the draws of validation clients from others with the same seed.
_PHILOX_STREAM = int.from_bytes(b"validate", "big")

TRAIN, TEST, VALIDATION = 0, 1, 2  # The data's own splits.
TESTS = ("given", "images", "classes", "clients")


class NoValidationError(InvalidInputError):
    """The data have too few clients for validation."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of an index by their use; no row has two.

    Attributes:
        train: Rows of training, ascending, int64.
        test: Rows of the test, ascending, int64.
        public: The training images of the public classes, which no client gets (for a
            warm start), ascending, int64.
        note: The decisions, for the summary.
    """

    train: np.ndarray
    test: np.ndarray
    public: np.ndarray
    note: str


def hold_out(
    index: Any,
    *,
    is_unseen: bool,
    test: str | None,
    share: float,
    num_public_classes: int,
    rng: np.random.Generator,
) -> Rows:
    """Chooses the test images and the public classes.

    Args:
        index: All images, an `images.ImageIndex`, a module that imports this one.
        is_unseen: Whether the test must be of classes that no client has (retrieval),
            or of the clients' (classification).
        test: One of `TESTS`. "given": the data's own test (or val, without a test).
            "images": a share of every class. "classes": all images of a share of the
            classes. "clients": all images of a share of the clients. None: "given" if
            there is one, else "images", or "classes" for unseen ones.
        share: The share to hold out, in (0, 1).
    """
    if test is None:
        test = (
            "given"
            if index.splits is not None
            else "classes"
            if is_unseen
            else "images"
        )
    check_choice("test", test, TESTS)
    check_test_share(share)
    if test in (("images", "clients") if is_unseen else ("classes",)):
        other = "classification" if is_unseen else "retrieval"
        instead = "classes or given" if is_unseen else "images, clients or given"
        raise InvalidInputError(f"test={test} is for {other}: use test={instead}.")
    rows = np.arange(len(index.labels))
    if test == "given":
        train, tests, note = given(index, rows)
    else:
        # The data's own test and val are never trained on.
        train = rows if index.splits is None else rows[index.splits == TRAIN]
        if test == "clients":
            check_clients("test=clients", index.clients)
        if test == "images":
            chosen = _images(index, train, share, rng)
        else:
            values = index.labels if test == "classes" else index.clients
            chosen = _some_of(values[train], test, share, rng)
        train, tests = train[~chosen], train[chosen]
        note = f"test: {share:.0%} of the {test}"
    if len(np.unique(index.labels[train])) < 2:
        raise InvalidInputError(f"test={test} leaves fewer than two classes to train.")
    if left_out := len(rows) - len(train) - len(tests):
        note += f"; left out: {left_out:,} images of the data's own val or test"
    known = np.isin(index.labels[tests], index.labels[train])
    if is_unseen and known.any():  # Also if it is public: a warm start trains it.
        name = index.class_names[index.labels[tests[known][0]]]
        raise InvalidInputError(
            f"the class {name!r} of the test is also trained, and retrieval needs "
            "classes that no client has: use test=classes."
        )
    public = _public(index, train, num_public_classes, rng)
    train = np.setdiff1d(train, public, assume_unique=True)
    known = np.isin(index.labels[tests], index.labels[train])
    if not is_unseen and not known.all():
        left_out = len(tests) - int(known.sum())
        classes = len(np.unique(index.labels[tests[~known]]))
        tests = tests[known]
        note += (
            f"; left out of the test: {left_out:,} images of {classes:,} classes "
            "without a training image"
        )
    if not len(tests):
        raise InvalidInputError(f"test={test} leaves no test image ({note}).")
    return Rows(train, tests, public, note)


def check_test_share(share: float) -> None:
    """Raises InvalidInputError unless a share is above 0 and below 1."""
    if not 0 < share < 1:
        raise InvalidInputError(f"test_share={share!r} must be above 0 and below 1.")


def check_clients(option: str, clients: np.ndarray | None) -> None:
    """Raises InvalidInputError unless the data that an option needs have clients."""
    if clients is None:
        raise InvalidInputError(
            f"{option} needs clients: folders=client/class, a column `client` in "
            "images.csv, or, of TFDS, client=FEATURE."
        )


def numbered(labels: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the classes of some rows from 0 on.

    Returns the new labels of all rows, int32[N], -1 for classes that none of these
    rows has; and the old labels in the order of the new ones.
    """
    present = np.unique(labels[rows])
    number = np.full(int(labels.max()) + 1, -1, np.int32)
    number[present] = np.arange(len(present))
    return number[labels], present


def given(index: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the data's own training and test rows, and a note.

    The test is that of val if the data have no other.
    """
    if index.splits is None:
        raise InvalidInputError("test=given needs a folder test or val, or a `split`.")
    which, name = TEST, "test"
    if not (index.splits == TEST).any():
        which, name = VALIDATION, "val"
    return (
        rows[index.splits == TRAIN],
        rows[index.splits == which],
        f"test: as given ({name})",
    )


def _images(
    index: Any, rows: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Chooses a rounded share of each class, but never all of it: bool[rows]."""
    labels = index.labels[rows]
    order = partitions.random_order_by(labels, rng)
    sizes = np.bincount(labels)
    position = partitions.ranges(sizes)
    wanted = np.minimum(
        np.round(sizes * share).astype(np.int64), np.maximum(sizes - 1, 0)
    )
    chosen = np.zeros(len(rows), bool)
    chosen[order] = position < np.repeat(wanted, sizes)
    return chosen


def _some_of(
    values: np.ndarray, what: str, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Returns whether each value is in a random, non-empty share of the values."""
    different = np.unique(values)
    count = max(1, round(len(different) * share))
    if count >= len(different):
        left = f"leaves none of the {len(different):,} {what} to train"
        raise InvalidInputError(f"test_share={share:g} {left}.")
    return np.isin(values, rng.choice(different, count, replace=False))


def _public(
    index: Any, train: np.ndarray, number: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the training images of a number of random classes."""
    labels = np.unique(index.labels[train])
    if not number:
        return train[:0]
    if not 0 < number <= len(labels) - 2:
        raise InvalidInputError(
            f"num_public_classes={number} must be at least 0 and leave two of "
            f"{len(labels):,} classes."
        )
    chosen = rng.choice(labels, number, replace=False)
    return train[np.isin(index.labels[train], chosen)]


def choose_validation(
    num_clients: int, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Returns which of K clients are validation clients, bool[K].

    The share, in [0, 1), is rounded to a number of clients; above 0, to one or
    more. Nothing is drawn for a share of 0.
    """
    chosen = np.zeros(num_clients, bool)
    if share:
        count = max(1, round(num_clients * share))
        if count >= num_clients:
            what = f"no client to train, of {num_clients}"
            raise NoValidationError(f"validation_share={share:g} leaves {what}.")
        chosen[rng.choice(num_clients, count, replace=False)] = True
    return chosen


def note_validation(num_clients: int, num_left_out: int, num_measured: int) -> str:
    """Describes the validation clients and the number of images left out."""
    if not num_measured:
        why = "no validation client has a class that is trained"
        cure = "use a larger validation_share, or a partition that shares classes"
        raise NoValidationError(f"{why}: {cure}.")
    note = f"{num_clients:,} clients held out for validation"
    if num_left_out:
        note += (
            f"; left out: {num_left_out:,} of their images, of classes that no other "
            "client has"
        )
    return note


def hold_out_clients(
    dataset: FederatedDataset,
    validation_share: float = 0.0,
    on_validation: bool = False,
    seed: int = 0,
) -> FederatedDataset:
    """Removes a share of the clients of a data set from its training.

    Args:
        validation_share: Share of the clients; 0: the data set is unchanged.
        on_validation: Whether the images of these clients replace the test, which is
            then not used. Images of classes that no other client has are left out,
            since they cannot be learned. For a test of unseen classes (retrieval,
            Section 4.3 of the FedSS paper) they also count, and MAP@10 is over all
            images of these clients. Most of their classes may be trained, so it is a
            substitute for the MAP@10 of unseen classes, and mostly higher. `unseen`
            images are also not used.
        seed: Seed of the choice; 0 <= seed < 2^63.

    Returns:
        The data set without these clients. n and the labels are the same: a class that
        only they have keeps its row of W.
    """
    check_range("validation_share", validation_share, 0, 1, above=on_validation)
    if not validation_share:
        return dataset
    everyone = dataset.train.client_ids
    rng = partitions.generator(seed, _PHILOX_STREAM)
    is_apart = choose_validation(len(everyone), validation_share, rng)
    apart = [everyone[k] for k in np.flatnonzero(is_apart)]
    kept = [everyone[k] for k in np.flatnonzero(~is_apart)]
    note, test = note_validation(len(apart), 0, 1), {}
    if on_validation:
        # Retrieval does not need known classes.
        is_known = np.full(dataset.num_classes, dataset.test_is_unseen)
        for client_id in kept:
            is_known[dataset.positives(client_id)] = True
        images, num_known, num_images = _images_of(dataset, apart, is_known)
        note = note_validation(len(apart), num_images - num_known, num_known)
        note += "; measured on their images"
        theirs = np.unique(np.concatenate([dataset.positives(k) for k in apart]))
        test = dict(
            test=HeldOut(images, num_known, int(is_known[theirs].sum())),
            test_is_unseen=False,
            unseen=None,
        )
    else:
        test = dict(
            on_validation=lambda: hold_out_clients(
                dataset, validation_share, on_validation=True, seed=seed
            )
        )
    return dataclasses.replace(
        dataset,
        train=clients.Counted(
            dataset.train, kept, dataset.num_examples, dataset.positives
        ),
        # It would have the images of all clients.
        pooled=None,
        note="; ".join(filter(None, [dataset.note, note])),
        contents=lambda: {
            **{f"{key} (all)": value for key, value in dataset.fingerprint().items()},
            "names of validation clients": apart,
            "measured on": "validation clients" if on_validation else "the test",
        },
        **test,
    )


def _images_of(
    dataset: FederatedDataset, client_ids: list[str], is_known: np.ndarray
) -> tuple[tf.data.Dataset, int, int]:
    """Returns the clients' stored examples of known classes, client after client.

    Known classes are bool[n]. Also returns the number of these examples, and the number
    of all the clients' examples.
    """
    num_known = num_images = 0
    for client_id in client_ids:
        size = dataset.num_examples(client_id)
        num_images += size
        # Labels are read only if some classes are not known.
        if not is_known[dataset.positives(client_id)].all():
            data = dataset.train.create_tf_dataset_for_client(client_id)
            labels = [int(x) for x in data.map(_label).as_numpy_iterator()]
            size = int(is_known[labels].sum())
        num_known += size
    images = tf.data.Dataset.from_tensor_slices(client_ids).flat_map(
        dataset.train.serializable_dataset_fn
    )
    if num_known < num_images:
        known = tf.constant(is_known)
        images = images.filter(lambda example: tf.gather(known, _label(example)))
    images = images.apply(tf.data.experimental.assert_cardinality(num_known))
    return images, num_known, num_images


def _label(example) -> tf.Tensor:
    return example["label"]
