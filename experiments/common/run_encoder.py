"""encoder.json in a results folder: the architecture of the run's feature extractor.

With it and the run's weights, `./run.sh export` needs neither the data nor the flags.
"""

import dataclasses
import json
import pathlib
from typing import Any

import tensorflow as tf

from tff_fedss import files, models, training
from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.errors import InvalidInputError
from tff_fedss.models import ImageInput
from tff_fedss.training import run_files

NAME = "encoder.json"
# Drawings are stored at their size, in grey, bright ink on dark. Omniglot's own files
# have dark ink on white, which its reader inverts.
_INVERTED = {"omniglot": True, "glyphs": False}


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A feature extractor without its weights.

    Attributes:
        model: One of `models.FEATURE_EXTRACTORS`, or of `models.BACKBONES`.
        embedding_dim: d; None for a backbone, whose features are the embedding.
        image_input: The preprocessing of its images.
    """

    model: str
    embedding_dim: int | None
    image_input: ImageInput

    def build(self) -> tf.keras.Model:
        """Builds it, with initial weights."""
        size = self.image_input.image_size
        shape = (size, size, self.image_input.channels)
        if self.embedding_dim is None:
            return models.BACKBONES[self.model](shape)
        return models.FEATURE_EXTRACTORS[self.model](shape, self.embedding_dim)


def federated_input(
    dataset: str, image_size: int, resize_size: int | None = None
) -> ImageInput:
    """Returns the preprocessing of a federated data set in an evaluation."""
    if dataset in _INVERTED:
        inverted = _INVERTED[dataset]
        return ImageInput(image_size, 1, resizing="box", inverted=inverted)
    sizes = Preprocessing(image_size, resize_size)
    return ImageInput(image_size, resize_size=sizes.resize_size)


def write(folder: training.ResultsFolder, encoder: Encoder) -> None:
    """Writes encoder.json."""
    folder.write_text(NAME, json.dumps(dataclasses.asdict(encoder), indent=2) + "\n")


def read(folder: pathlib.Path) -> tuple[str, tf.keras.Model, ImageInput]:
    """Returns the model's name, the model with initial weights, and the preprocessing.

    Raises:
        InvalidInputError: If it is missing or damaged.
    """
    path = folder / NAME
    found: dict[str, Any] | None = run_files.read_json(path)
    if found is None:
        raise InvalidInputError(
            f"{path} is missing: the run has no encoder. Expected a finished run of "
            "train, compare, partial_fc, rf_softmax (with images) or moco."
        )
    try:
        image_input = ImageInput(**found["image_input"])
        encoder = Encoder(found["model"], found["embedding_dim"], image_input)
        return encoder.model, encoder.build(), image_input
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{path} is damaged, or of another version: {files.error_text(error)}."
        ) from error
