"""Labelled images of any origin as a federated data set."""

import dataclasses

import numpy as np

from tff_fedss.datasets import splits
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.datasets.federated.partitions import Partition
from tff_fedss.datasets.images import clients, image_clients, index

# Keep these draws apart from others of the same seed.
_PHILOX_STREAM = int.from_bytes(b"images..", "big")


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """What becomes of labelled images.

    Attributes:
        image_size: Height and width in pixels of what the model sees: a crop.
        resize_size: Height and width that images are brought to first; None: the
            paper's ratio (Appendix A.2).
        retrieval: Whether the test is of classes that no client has.
        test: See `splits.hold_out`; None: by what the data have.
        test_share: The share to hold out, see `splits.hold_out`.
        num_public_classes: How many classes are kept for a warm start.
        split: How the training images are split over clients.
        validation_share: The share of clients that are kept apart as validation
            clients, in [0, 1).
        on_validation: Whether the held-out images are those of the validation clients
            instead of the test's: for choices that must not know the test.
        seed: Of all draws; 0 <= seed < 2^63.
    """

    image_size: int = 64
    resize_size: int | None = None
    retrieval: bool = False
    test: str | None = None
    test_share: float = 0.2
    num_public_classes: int = 0
    split: clients.ClientOptions = dataclasses.field(
        default_factory=clients.ClientOptions
    )
    validation_share: float = 0.0
    on_validation: bool = False
    seed: int = 0


def load(images: index.ImageIndex, options: ImageOptions) -> FederatedDataset:
    """Makes a federated data set of labelled images.

    No image is read here. Clients read and check theirs when they are asked for;
    memory is that of the index.

    Args:
        images: Which there are.
        options: What becomes of them.

    Returns:
        The data set. Classes are numbered in the order of their names among those that
        clients may have. Stored images are string[], the bytes of a JPEG or PNG;
        pooled and test images int64[], rows of `images`.
    """
    splits.check_validation(options.validation_share, options.on_validation)
    rng = partitions.generator(options.seed, _PHILOX_STREAM)
    chosen = splits.hold_out(
        images,
        is_unseen=options.retrieval,
        test=options.test,
        share=options.test_share,
        num_public_classes=options.num_public_classes,
        rng=rng,
    )
    labels, present = splits.numbered(images.labels, chosen.train)
    partition = clients.split(
        labels[chosen.train],
        None if images.clients is None else images.clients[chosen.train],
        images.client_names,
        options.split,
        rng,
    )
    test, notes = chosen.test, [images.note, chosen.note]
    is_validation = splits.choose_validation(
        partition.num_clients, options.validation_share, rng
    )
    # From positions among the training images to rows.
    rows = [chosen.train[partition.examples(k)] for k in range(partition.num_clients)]
    apart = np.flatnonzero(is_validation)
    kept = np.flatnonzero(~is_validation)
    partition = Partition(
        [partition.client_ids[k] for k in kept],
        np.concatenate([rows[k] for k in kept]),
        np.append(0, np.cumsum(partition.sizes[kept])),
    )
    unseen, num_left_out = chosen.test_is_unseen, 0
    if options.on_validation:
        test = np.sort(np.concatenate([rows[k] for k in apart]))
        # Of the classes that are trained, unless it is for retrieval.
        seen = np.full(len(present), unseen)
        unseen = False
        seen[labels[partition.order]] = True
        known = seen[labels[test]]
        num_left_out, test = int(np.sum(~known)), test[known]
    elif unseen:
        labels[test] = splits.numbered(images.labels, test)[0][test]
    if options.validation_share:
        notes.append(splits.note_validation(len(apart), num_left_out, len(test)))
    public = chosen.public
    if len(public):
        labels[public] = splits.numbered(images.labels, public)[0][public]
    return image_clients.federated_dataset(
        images,
        labels,
        partition,
        test=test,
        public=public,
        num_classes=len(present),
        image_size=options.image_size,
        resize_size=options.resize_size,
        test_is_unseen=unseen,
        class_names=[images.class_names[c] for c in present],
        note="; ".join(filter(None, notes)),
    )
