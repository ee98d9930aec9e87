"""Landmarks-User-160k: photographs of landmarks, grouped by who took them.

`preparation` makes its files, of the published CSV files and the images of Google
Landmarks v2; `load` reads them.
"""

from tff_fedss.datasets.landmarks.dataset import load
from tff_fedss.datasets.landmarks.layout import (
    TEST_FILE,
    TRAIN_FOLDER,
    read_rejected,
    to_record,
)
from tff_fedss.datasets.landmarks.splits import SPLITS, Published

__all__ = [
    "SPLITS",
    "TEST_FILE",
    "TRAIN_FOLDER",
    "Published",
    "load",
    "read_rejected",
    "to_record",
]
