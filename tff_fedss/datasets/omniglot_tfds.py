"""Omniglot as downloaded and verified by TensorFlow Datasets (TFDS).

A separate module, because importing TFDS takes seconds.
"""

from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from tff_fedss.datasets.images import tfds_index


class OmniglotDrawers(tfds.image_classification.Omniglot):
    """TFDS's `omniglot` with the drawer, which TFDS drops.

    The files, their checksums and the splits are those of `omniglot`. TFDS names this
    data set `omniglot_drawers`, so that it does not collide with a prepared `omniglot`.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "omniglot 3.0.0 and the drawer."}  # noqa: RUF012
    url_infos = tfds.image_classification.Omniglot.url_infos

    def _info(self) -> tfds.core.DatasetInfo:
        parent = super()._info()
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"{parent.description} With the number of the drawer, 1 to 20.",
            features=tfds.features.FeaturesDict(
                {**parent.features, "drawer": np.int64}
            ),
            supervised_keys=parent.supervised_keys,
            homepage=parent.homepage,
            citation=parent.citation,
        )

    def _generate_examples(self, directory) -> Iterator[tuple[str, dict]]:
        for image_id, example in super()._generate_examples(directory):
            drawer = image_id.rpartition("_")[2].partition(".")[0]
            yield image_id, {**example, "drawer": int(drawer)}


def drawings(
    tfds_dir: str | None = None,
    download_config: tfds.download.DownloadConfig | None = None,
) -> Iterator[tuple[str, str, int, int, Image.Image]]:
    """Downloads Omniglot if it is not on the disk, and yields every drawing.

    Args:
        tfds_dir: TFDS's folder. If None, its default (`TFDS_DATA_DIR`,
            `~/tensorflow_datasets`).
        download_config: For tests. If None, every file is checked against TFDS's
            checksums, also one that was not downloaded but placed by hand.

    Yields:
        See `omniglot.Drawing`.
    """
    builder = tfds_index.prepared(
        lambda: OmniglotDrawers(data_dir=tfds_dir),
        "Omniglot",
        "Give a folder or an archive that has it as `data_dir`.",
        download_config
        or tfds.download.DownloadConfig(force_checksums_validation=True),
    )
    alphabet_names = builder.info.features["alphabet"].int2str
    for split in builder.as_dataset(["train", "test"]):
        for example in split.as_numpy_iterator():
            character, drawer = int(example["label"]) + 1, int(example["drawer"])
            yield (
                f"{character:04}_{drawer:02}.png",
                alphabet_names(example["alphabet"]),
                character,
                drawer,
                Image.fromarray(example["image"]),
            )
