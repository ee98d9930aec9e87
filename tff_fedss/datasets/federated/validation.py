"""Validation clients: apart from those that train, and from the test.

Choices that are made by looking at a metric, such as that of a learning rate, must not
look at the test. So some clients train nothing, and their images are what a run
measures on while choices are made.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.federated import clients, partitions
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.errors import InvalidInputError

# Keeps the draws of validation clients apart from others of the same seed.
_PHILOX_STREAM = int.from_bytes(b"validate", "big")

NO_KNOWN_CLASS = (
    "no validation client has a class that a training client has: take more validation "
    "clients."
)


def check(share: float, on_validation: bool) -> None:
    """Checks what is asked for.

    Args:
        share: Of the clients, for validation.
        on_validation: Whether to measure on them.

    Raises:
        InvalidInputError: If there can be no such share, or it is none and is to be
            measured on.
    """
    if not 0 <= share < 1:
        raise InvalidInputError(
            f"validation_share={share} must be at least 0 and below 1."
        )
    if on_validation and not share:
        raise InvalidInputError("on_validation needs a validation_share above 0.")


def choose(num_clients: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draws validation clients.

    Args:
        num_clients: K.
        share: Of the clients, in [0, 1), rounded to a number of clients; above 0, to
            one or more.
        rng: Where they are drawn from; nothing is drawn for a share of 0.

    Returns:
        Whether a client is one of them, bool[K].

    Raises:
        InvalidInputError: If no client is left for training.
    """
    chosen = np.zeros(num_clients, bool)
    if share:
        count = max(1, round(num_clients * share))
        if count >= num_clients:
            raise InvalidInputError(
                f"validation_share={share:g} leaves none of the {num_clients:,} "
                "clients for training."
            )
        chosen[rng.choice(num_clients, count, replace=False)] = True
    return chosen


def note_chosen(count: int) -> str:
    """Says for a person how many validation clients there are."""
    return f"{count:,} validation clients apart"


def note_left_out(count: int) -> str:
    """Says for a person how many of their images cannot be measured on."""
    return f"left out: {count:,} of their images, of classes that no other client has"


def hold_out(
    dataset: FederatedDataset,
    validation_share: float = 0.0,
    on_validation: bool = False,
    seed: int = 0,
) -> FederatedDataset:
    """Takes a share of the clients of a data set out of its training.

    Args:
        dataset: With all clients.
        validation_share: Of the clients; 0: the data set stays what it is.
        on_validation: Whether the images of these clients take the place of the test,
            which nothing looks at then. Images of classes that no other client has are
            left out, since nobody can learn to classify them. Where the test is of
            unseen classes (retrieval, Section 4.3 of the FedSS paper) they count, too:
            each image of these clients looks for its like among the others, MAP@10.
            Most of their classes may be ones that are trained, so that it is a stand-in
            for the MAP@10 of unseen classes, and mostly higher. Images of classes that
            nobody has are not measured on either.
        seed: Which clients; 0 <= seed < 2^63.

    Returns:
        The data set without them. n and the labels are the same: a class that only
        they have keeps its row of W.

    Raises:
        InvalidInputError: If an argument is out of range, no client is left for
            training, or, with on_validation, there is no image to measure on.
    """
    check(validation_share, on_validation)
    if not validation_share:
        return dataset
    everyone = dataset.train.client_ids
    rng = partitions.generator(seed, _PHILOX_STREAM)
    is_apart = choose(len(everyone), validation_share, rng)
    apart = [everyone[k] for k in np.flatnonzero(is_apart)]
    kept = [everyone[k] for k in np.flatnonzero(~is_apart)]
    # Retrieval need not know a class.
    is_known = np.full(dataset.num_classes, dataset.test_is_unseen)
    for client_id in kept:
        is_known[dataset.positives(client_id)] = True
    notes = [dataset.note, note_chosen(len(apart))]
    test = {}
    if on_validation:
        images, num_known, num_images = _images_of(dataset, apart, is_known)
        if not num_known:
            raise InvalidInputError(NO_KNOWN_CLASS)
        if num_known < num_images:
            notes.append(note_left_out(num_images - num_known))
        notes.append("measured on their images")
        test = dict(
            test=HeldOut(images, num_known, int(is_known.sum())),
            test_is_unseen=False,
            unseen=None,
        )
    return dataclasses.replace(
        dataset,
        train=clients.Counted(
            dataset.train, kept, dataset.num_examples, dataset.positives
        ),
        # The images of all clients would be in it.
        pooled=None,
        note="; ".join(filter(None, notes)),
        contents=lambda: {
            **{f"{key} (all)": value for key, value in dataset.fingerprint().items()},
            "names of validation clients": fingerprint.of_text(apart),
            "measured on": "validation clients" if on_validation else "the test",
        },
        **test,
    )


def _images_of(
    dataset: FederatedDataset, client_ids: list[str], is_known: np.ndarray
) -> tuple[tf.data.Dataset, int, int]:
    """The stored examples of some clients that are of known classes.

    Args:
        dataset: Of the clients.
        client_ids: Whose.
        is_known: Of each class, whether its images count, bool[n].

    Returns:
        The examples, client after client; how many they are; how many the clients have.
    """
    num_known = num_images = 0
    for client_id in client_ids:
        size = dataset.num_examples(client_id)
        num_images += size
        # Labels are read only where some are not known.
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
