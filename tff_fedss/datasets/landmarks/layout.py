"""How the files of a landmarks data set are called, and what a record of them is."""

import csv
import os
import pathlib

import tensorflow as tf

from tff_fedss import files
from tff_fedss.errors import InvalidInputError

TRAIN_FOLDER = "train"
TEST_FILE = "test.tfRecord"
REJECTED_FILE = "rejected.csv"
REJECTED_COLUMNS = ("image_id", "user_id", "reason", "path")
TEST_OWNER = "test"  # in the place of a user_id, for a rejected test image

IMAGE_FEATURE = "image/encoded_jpeg"
CLASS_FEATURE = "class"


def to_record(encoded: bytes, label: int) -> bytes:
    """Makes the record of one image, always the same bytes.

    Args:
        encoded: The content of a JPEG file.
        label: Its class.

    Returns:
        A serialized `tf.train.Example`.
    """
    image = tf.train.BytesList(value=[encoded])
    labels = tf.train.Int64List(value=[label])
    features = {
        IMAGE_FEATURE: tf.train.Feature(bytes_list=image),
        CLASS_FEATURE: tf.train.Feature(int64_list=labels),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)


def read_rejected(path: pathlib.Path) -> set[tuple[str, str]]:
    """Reads which images were left out when the data was prepared.

    Args:
        path: The file; it need not be there.

    Returns:
        Pairs of a client's id, or `TEST_OWNER`, and an image's id.

    Raises:
        InvalidInputError: If it is not such a file.
    """
    if not os.path.lexists(path):
        return set()
    try:
        files.check_regular(path)
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.reader(lines, strict=True))
    except (OSError, ValueError, csv.Error) as e:
        reason = files.error_text(e)
        raise InvalidInputError(f"{path}: cannot be read: {reason}.") from e
    header = ",".join(REJECTED_COLUMNS)
    if not rows or ",".join(rows[0]) != header:
        raise InvalidInputError(f"{path}, line 1: expected the header {header}.")
    for row in rows:
        if len(row) != len(REJECTED_COLUMNS):
            raise InvalidInputError(
                f"{path}: found the row {','.join(row)!r}; expected the "
                f"{len(REJECTED_COLUMNS)} fields {header}."
            )
    return {(owner, image_id) for image_id, owner, *_ in rows[1:]}
