"""Labelled images through TensorFlow Datasets (TFDS).

Apart from `loading`, because importing TFDS takes seconds.
"""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from tff_fedss.datasets import tfds_download
from tff_fedss.datasets.central.labelled_images.images import (
    LabelledImages,
    Source,
    as_array,
    check_memory,
    fitted,
)


def load(name: str, source: Source, image_size: int | None) -> LabelledImages:
    """Loads a data set, which TFDS downloads if it is not on the disk.

    Args:
        name: What to call it.
        source: Its name and splits at TFDS.
        image_size: See `loading.load`.
    """
    builder = tfds_download.prepared(
        lambda: tfds.builder(source.tfds_name),
        lambda reason: (
            f"dataset={name} is not on this disk where TFDS keeps its data "
            f"(TFDS_DATA_DIR or ~/tensorflow_datasets), and could not be downloaded "
            f"({reason}). Name a folder or an archive that has it with `data_dir`."
        ),
    )
    parts = [builder.as_dataset(split=part) for part in (source.train, source.test)]
    height, width = builder.info.features["image"].shape[:2]
    check_memory(
        *(max(0, int(part.cardinality())) for part in parts),  # Negative: unknown.
        (image_size or height, image_size or width, source.channels),
    )
    train, test = (_arrays(part, source.channels, image_size) for part in parts)
    class_names = tuple(builder.info.features["label"].names)
    return LabelledImages(name, class_names, *train, *test)


def _arrays(
    examples: tf.data.Dataset, channels: int, image_size: int | None
) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    for example in examples.as_numpy_iterator():
        image = example["image"]
        if image_size is not None and image.shape[:2] != (image_size, image_size):
            whole = Image.fromarray(image.squeeze(2) if channels == 1 else image)
            image = as_array(fitted(whole, image_size), channels)
        images.append(image)
        labels.append(example["label"])
    return np.stack(images), np.array(labels, np.int32)
