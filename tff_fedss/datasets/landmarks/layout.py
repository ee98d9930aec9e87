"""Layout of a landmarks data set: the names of its files, and what a record is."""

import pathlib

from tff_fedss import files
from tff_fedss.datasets.federated import record_writer

TRAIN_FOLDER = "train"
TEST_FILE = "test.tfRecord"
REJECTED_FILE = "rejected.csv"
REJECTED_COLUMNS = ("image_id", "user_id", "reason", "path")
TEST_OWNER = "test"  # stands for a user_id of a rejected test image

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
    return record_writer.example({IMAGE_FEATURE: encoded, CLASS_FEATURE: label})


def read_rejected(path: pathlib.Path) -> set[str]:
    """Reads whose images were left out when the data was prepared.

    Args:
        path: The file; it need not be there.

    Returns:
        Clients' ids, and `TEST_OWNER` for the test.
    """
    content = files.read_if_there(path)
    if content is None:
        return set()
    return {row["user_id"] for _, row in files.csv_table(content, path, ["user_id"])}
