"""The flags of an encoder, images and their vectors, and how they are loaded."""

import dataclasses
import pathlib

import numpy as np

from experiments.common import config, runtime_config
from experiments.encoders import vectors
from tff_fedss import models
from tff_fedss.datasets import images as own_images
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class SourcesConfig(runtime_config.GpuConfig):
    """Flags of an encoder and images."""

    model: str | None = config.flag(
        None,
        "The encoder from `./run.sh export`: .keras, .tflite or the folder of a "
        "SavedModel.",
        group="Encoder and images",
        needed="FILE is needed: an encoder from `./run.sh export`.",
    )
    images: str | None = config.flag(
        None,
        "A folder, zip or tar of images, or a table images.csv (path,label): see "
        "docs/own_images.md.",
        needed="DIR is needed: a folder or archive of images, or a table images.csv.",
    )
    folders: str = config.flag(
        "auto",
        "The meaning of the folders above an image: its `class`, `client/class`, or "
        "`none` of these.",
        choices=own_images.FOLDERS,
    )

    def load_encoder(self) -> models.ExportedEncoder:
        """Loads the encoder.

        Raises:
            InvalidInputError: If it is missing or damaged.
        """
        try:
            return models.ExportedEncoder(self.model)
        except InvalidInputError as error:
            raise InvalidInputError(f"--model: {error}") from error

    def load_images(self, needs_labels: bool = True) -> own_images.ImageIndex:
        """Lists the images and checks that they can be decoded.

        Raises:
            InvalidInputError: If there are none, one is damaged, or required classes
                are missing.
        """
        try:
            return own_images.load_index(
                self.images, folders=self.folders, needs_labels=needs_labels
            )
        except InvalidInputError as error:
            # The library does not use flags.
            text = str(error).removeprefix(f"data_dir={self.images}")
            raise InvalidInputError(f"--images={self.images}{text}") from error


@dataclasses.dataclass(frozen=True)
class VectorsConfig(SourcesConfig):
    """Flags of an encoder, images, and optionally their vectors."""

    vectors: str | None = config.flag(
        None,
        "The file of `./run.sh embed` for this encoder and these images. Default: "
        "they are embedded again.",
        group="Encoder and images",
    )

    def load_vectors(
        self, encoder: models.ExportedEncoder, images: own_images.ImageIndex
    ) -> np.ndarray:
        """Returns the vectors of all images, float32[N, d]: of the file, or new ones.

        Raises:
            InvalidInputError: If the file is of other images or another encoder.
            RunStoppedError: If an image can no longer be read.
        """
        if self.vectors is None:
            return vectors.compute(encoder, images).vectors
        kept = vectors.read(pathlib.Path(self.vectors))
        ours = vectors.origin(encoder, images)
        if kept.origin != ours:
            same_encoder = kept.origin.get("encoder") == ours["encoder"]
            what = "other images" if same_encoder else "another encoder"
            raise InvalidInputError(
                f"--vectors={self.vectors} is of {what} than --model and --images."
            )
        return kept.vectors
