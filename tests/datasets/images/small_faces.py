"""A small data set of TFDS."""

import numpy as np
import tensorflow_datasets as tfds

from tests.datasets.images import own_images


class SmallFaces(tfds.core.GeneratorBasedBuilder):
    """12 training, 6 test and 3 other images of two classes, by three people."""

    VERSION = tfds.core.Version("1.2.0")
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="plain"),)

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(None, None, 3)),
                    "label": tfds.features.ClassLabel(names=["sad", "glad"]),
                    "person": tfds.features.Scalar(np.int64),
                    "place": tfds.features.Text(),
                    "box": tfds.features.Tensor(shape=(4,), dtype=np.float32),
                }
            )
        )

    def _split_generators(self, dl_manager):
        parts = {"train": range(12), "test": range(12, 18), "extra": range(18, 21)}
        return {name: self._generate_examples(part) for name, part in parts.items()}

    def _generate_examples(self, numbers):
        for k in numbers:
            yield (
                k,
                {
                    "image": own_images.picture(k),
                    "label": k % 2,
                    "person": 9 + k % 3,
                    "place": f"place {k % 4}",
                    "box": np.zeros(4, np.float32),
                },
            )
