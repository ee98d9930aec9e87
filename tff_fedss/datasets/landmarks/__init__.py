"""Landmarks-User-160k: photographs of landmarks, grouped by photographer.

`load` reads its files. `preparation` writes them from the published CSV files and the
images of Google Landmarks v2.
"""

from tff_fedss.datasets.landmarks.dataset import (
    SPLITS,
    TEST_FILE,
    TRAIN_FOLDER,
    Published,
    load,
)
