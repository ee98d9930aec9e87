"""The flags that say which encoder and which images, and what they stand for."""

import dataclasses

from experiments.common import config, device_config
from tff_fedss import models
from tff_fedss.datasets import images as images_of_people
from tff_fedss.datasets.images import FOLDERS, ImageIndex
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class SourcesConfig(device_config.GpuConfig):
    """An encoder and images."""

    model: str | None = config.flag(
        None,
        "The encoder that `./run.sh export` wrote: .keras, .tflite or the folder of a "
        "SavedModel.",
        group="Encoder and images",
        needed="FILE is needed: an encoder that `./run.sh export` wrote.",
    )
    images: str | None = config.flag(
        None,
        "A folder, zip or tar of images, or a table images.csv (path,label): see "
        "docs/own_images.md.",
        needed="DIR is needed: a folder or archive of images, or a table images.csv.",
    )
    folders: str = config.flag(
        "auto",
        "What the folders above an image are: its `class`, `client/class`, or `none` "
        "of these.",
        choices=FOLDERS,
    )

    def load_encoder(self) -> models.ExportedEncoder:
        """Loads the encoder.

        Raises:
            InvalidInputError: If there is none, or it is damaged.
        """
        try:
            return models.ExportedEncoder(self.model)
        except InvalidInputError as error:
            raise InvalidInputError(f"--model: {error}") from error

    def load_images(self, needs_labels: bool = True) -> ImageIndex:
        """Lists the images and checks that they can be decoded.

        Args:
            needs_labels: Whether images without classes are refused.

        Raises:
            InvalidInputError: If there are none, or one is damaged.
        """
        try:
            return images_of_people.load_index(
                self.images, folders=self.folders, needs_labels=needs_labels
            )
        except InvalidInputError as error:
            # The library knows no flags.
            text = str(error).removeprefix(f"data_dir={self.images}")
            raise InvalidInputError(f"--images={self.images}{text}") from error


@dataclasses.dataclass(frozen=True)
class VectorsConfig(SourcesConfig):
    """An encoder, images, and perhaps their vectors."""

    vectors: str | None = config.flag(
        None,
        "What `./run.sh embed` wrote for this encoder and these images. Default: they "
        "are embedded anew.",
        group="Encoder and images",
    )
