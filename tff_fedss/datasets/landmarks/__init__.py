"""Landmarks-User-160k: photographs of landmarks, grouped by photographer.

`load` reads its files. `preparation` writes them from the published CSV files
(`splits`) and the images of Google Landmarks v2 (`image_sources`).
"""

from tff_fedss.datasets.landmarks.dataset import load
from tff_fedss.datasets.landmarks.splits import (
    SPLITS,
    TEST_FILE,
    TRAIN_FOLDER,
    Published,
)
