"""Landmarks-User-160k: photographs of landmarks, grouped by who took them."""

from tff_fedss.datasets.landmarks.dataset import (
    REJECTED_COLUMNS,
    REJECTED_FILE,
    SPLITS,
    TEST_FILE,
    TEST_OWNER,
    TRAIN_FOLDER,
    Published,
    load,
    read_rejected,
    to_record,
)

__all__ = [
    "REJECTED_COLUMNS",
    "REJECTED_FILE",
    "SPLITS",
    "TEST_FILE",
    "TEST_OWNER",
    "TRAIN_FOLDER",
    "Published",
    "load",
    "read_rejected",
    "to_record",
]
