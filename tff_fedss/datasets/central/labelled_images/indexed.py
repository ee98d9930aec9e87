"""Labelled images of an index: folders, archives, tables and TFDS, decoded."""

import numpy as np
from PIL import Image

from tff_fedss import progress
from tff_fedss.datasets import splits
from tff_fedss.datasets.central.labelled_images.images import (
    LabelledImages,
    as_array,
    check_memory,
    check_num_classes,
    fitted,
)
from tff_fedss.datasets.federated import record_writer
from tff_fedss.datasets.images import index
from tff_fedss.errors import InvalidInputError

# Keep these draws apart from others of the same seed.
_PHILOX_STREAM = int.from_bytes(b"labelled", "big")
_DECODED_AT_A_TIME = 64


def load(
    images: index.ImageIndex,
    *,
    image_size: int | None = None,
    channels: int = 3,
    test: str | None = None,
    test_share: float = 0.2,
    seed: int = 0,
) -> LabelledImages:
    """Decodes all images of an index.

    Args:
        images: Which there are.
        image_size: See `loading.load`.
        channels: 1 or 3.
        test: What is for the test, see `splits.hold_out`; not "classes". None: by
            what the data have.
        test_share: The share to hold out, see `splits.hold_out`.
        seed: Of the choice of the test images.

    Returns:
        The data set, in the order of the index. Its classes are those of the training
        images, in the order of their names.
    """
    chosen = splits.hold_out(
        images,
        is_unseen=False,
        test=test,
        share=test_share,
        num_public_classes=0,
        rng=np.random.Generator(np.random.Philox(key=[seed, _PHILOX_STREAM])),
    )
    labels, classes = splits.numbered(images.labels, chosen.train)
    check_num_classes(len(classes), images.label)
    first = int(chosen.train[0])

    def decoded(row: int) -> np.ndarray:
        return as_array(
            fitted(Image.fromarray(images.pixels(row)), image_size), channels
        )

    shape = decoded(first).shape
    check_memory(len(chosen.train), len(chosen.test), shape)

    def checked(row: int) -> np.ndarray:
        array = decoded(row)
        if array.shape != shape:
            raise InvalidInputError(
                f"{images.label}: {images.image_name(row)} is "
                f"{array.shape[0]}x{array.shape[1]} pixels, {images.image_name(first)} "
                f"{shape[0]}x{shape[1]}; expected images of one size, or an "
                "`image_size` to bring them to."
            )
        return array

    with progress.bar(
        f"Reading {images.name}", len(chosen.train) + len(chosen.test)
    ) as bar:

        def stacked(rows: np.ndarray) -> np.ndarray:
            # Straight to their places: nothing is in memory twice.
            result = np.empty((len(rows), *shape), np.uint8)

            def put(places: range) -> None:
                for place in places:
                    result[place] = checked(int(rows[place]))

            every = range(len(rows))
            parts = (
                every[k : k + _DECODED_AT_A_TIME]
                for k in range(0, len(rows), _DECODED_AT_A_TIME)
            )
            for part, _ in record_writer.in_threads(put, parts):
                bar.update(len(part))
            return result

        train, tests = stacked(chosen.train), stacked(chosen.test)
    return LabelledImages(
        images.name,
        tuple(images.class_names[k] for k in classes),
        train,
        labels[chosen.train],
        tests,
        labels[chosen.test],
        note="; ".join(filter(None, [images.note, chosen.note])),
    )
