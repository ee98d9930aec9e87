"""Wrong labels, to test LEAP's claims."""

import dataclasses

import numpy as np

from tff_fedss.datasets.central.labelled_images import LabelledImages


def with_label_noise(data: LabelledImages, share: float, seed: int) -> LabelledImages:
    """Makes training labels wrong: symmetric noise.

    Args:
        data: The images.
        share: Share of the training images that get another label, in [0, 1): each of
            the n - 1 with the same probability. The labels of the test stay right.
        seed: Seed of the choice.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, 2**32 + 1]))
    count = round(share * len(data.train_labels))
    is_wrong = np.zeros(len(data.train_labels), bool)
    is_wrong[generator.permutation(len(is_wrong))[:count]] = True
    labels = data.train_labels.copy()
    labels[is_wrong] += generator.integers(1, data.num_classes, count)
    return dataclasses.replace(
        data,
        train_labels=(labels % data.num_classes).astype(data.train_labels.dtype),
        note=f"{share:.0%} of the training labels are wrong",
        mislabelled=is_wrong,
    )
