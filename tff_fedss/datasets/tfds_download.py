"""Data that TensorFlow Datasets (TFDS) downloads. Importing this takes seconds."""

from collections.abc import Callable

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import download_manager

from tff_fedss import files
from tff_fedss.errors import InvalidInputError

_MAX_REASON = 300  # characters


def prepared(
    make: Callable[[], tfds.core.DatasetBuilder],
    message: Callable[[str], str],
    config: tfds.download.DownloadConfig | None = None,
) -> tfds.core.DatasetBuilder:
    """Has TFDS download and prepare a data set, if it is not on the disk.

    Args:
        make: Makes its builder.
        message: From the reason for which it cannot be had to the error message.
        config: See TFDS.

    Returns:
        The builder, ready to be read from.
    """
    try:
        builder = make()
        builder.download_and_prepare(download_config=config)
    # A failed connection is one of requests' exceptions, which are OSErrors.
    except (
        OSError,
        tfds.download.DownloadError,
        download_manager.NonMatchingChecksumError,
    ) as error:
        reason = f"{type(error).__name__}: {files.error_text(error)}"[:_MAX_REASON]
        raise InvalidInputError(message(reason)) from error
    return builder
