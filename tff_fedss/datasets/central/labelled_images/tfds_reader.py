"""Labelled images through TensorFlow Datasets (TFDS).

Apart from `loading`, because importing TFDS takes seconds.
"""

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.download import download_manager

from tff_fedss.datasets.central.labelled_images.images import (
    LabelledImages,
    Source,
    as_array,
    fitted,
)
from tff_fedss.errors import InvalidInputError


def load(name: str, source: Source, image_size: int | None) -> LabelledImages:
    """Loads a data set, which TFDS downloads if it is not on the disk.

    Args:
        name: What to call it.
        source: Its name and splits at TFDS.
        image_size: See `loading.load`.

    Raises:
        InvalidInputError: If it is not on the disk and cannot be downloaded.
    """
    try:
        builder = tfds.builder(source.tfds_name)
        builder.download_and_prepare()
    # A failed connection is one of requests' exceptions, which are OSErrors.
    except (
        OSError,
        tfds.download.DownloadError,
        download_manager.NonMatchingChecksumError,
    ) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InvalidInputError(
            f"dataset={name} is not on this disk where TFDS keeps its data "
            f"(TFDS_DATA_DIR or ~/tensorflow_datasets), and could not be downloaded "
            f"({reason[:300]}). Name a folder or an archive that has it with "
            "`data_dir`."
        ) from error
    train, test = (
        _arrays(builder, split, source.channels, image_size)
        for split in (source.train, source.test)
    )
    class_names = tuple(builder.info.features["label"].names)
    return LabelledImages(name, class_names, *train, *test)


def _arrays(
    builder: tfds.core.DatasetBuilder,
    split: str,
    channels: int,
    image_size: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    for example in builder.as_dataset(split=split).as_numpy_iterator():
        image = example["image"]
        if image_size is not None and image.shape[:2] != (image_size, image_size):
            whole = Image.fromarray(image.squeeze(2) if channels == 1 else image)
            image = as_array(fitted(whole, image_size), channels)
        images.append(image)
        labels.append(example["label"])
    return np.stack(images), np.array(labels, np.int32)
