"""Vectors of images, and their file; the flags for an encoder, images and vectors.

A file of vectors, .parquet or .npz, has fingerprints of its images and its encoder,
which a later program compares with its own.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from experiments.common import config, runtime_config
from tff_fedss import files, metrics, models, progress
from tff_fedss.datasets import images as own_images
from tff_fedss.datasets.federated.preprocessing import decode_image
from tff_fedss.datasets.images import ImageIndex
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import read_arrays

SUFFIXES = (".parquet", ".npz")
# Number of images that are embedded together, while the next ones are decoded.
_BATCH = 32
_ROW_GROUP = 1 << 14
_COLLAPSED_COSINE = 0.97
_ORIGIN = "tff_fedss"


@dataclasses.dataclass(frozen=True)
class Vectors:
    """The content of a file of `embed`.

    Attributes:
        paths: Paths of the images, below their folder or archive.
        labels: The names of their classes; None if the images have none.
        vectors: float32[N, d], of length 1.
        origin: The fingerprints, see `origin`.
    """

    paths: Sequence[str]
    labels: Sequence[str] | None
    vectors: np.ndarray
    origin: dict[str, Any]


def check_output(path: pathlib.Path) -> None:
    """Checks in advance that --output names a file in a folder that exists."""
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"has no folder {path.parent}"
        raise InvalidInputError(f"--output={path} {what}; expected a file's name.")


def origin(encoder: models.ExportedEncoder, images: ImageIndex) -> dict[str, Any]:
    """Returns fingerprints of the encoder and of the images."""
    return {
        "encoder": encoder.digest,
        "method": encoder.metadata.get("method"),
        "embedding_dim": encoder.embedding_dim,
        "images": images.fingerprint(np.arange(len(images))),
    }


def compute(encoder: models.ExportedEncoder, images: ImageIndex) -> Vectors:
    """Embeds all images, decoded as in training, with a progress bar.

    Raises:
        RunStoppedError: If an image can no longer be read.
    """
    result = np.empty([len(images), encoder.embedding_dim], np.float32)
    with (
        progress.bar("Embedding", total=len(images)) as bar,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    ):

        def decoded(start: int) -> list[concurrent.futures.Future]:
            rows = range(start, min(start + _BATCH, len(images)))
            return [
                pool.submit(lambda k: decode_image(images.encoded(k)).numpy(), k)
                for k in rows
            ]

        following = decoded(0)
        for start in range(0, len(images), _BATCH):
            pixels = [future.result() for future in following]
            following = decoded(start + _BATCH)
            result[start : start + len(pixels)] = encoder.embed(pixels)
            bar.update(len(pixels))
    labels = images.labels
    return Vectors(
        [_as_text(images.image_name(k)) for k in range(len(images))],
        None if labels is None else [_as_text(images.class_names[k]) for k in labels],
        result,
        origin(encoder, images),
    )


def collapse_warning(vectors: np.ndarray) -> str:
    """Returns a warning if the encoder has collapsed, else an empty text.

    Args:
        vectors: float32[N, d], of length 1.
    """
    cosine = metrics.MeanCosine()
    cosine.add(vectors)
    if len(vectors) < 2 or cosine.value <= _COLLAPSED_COSINE:
        return ""
    return (
        "WARNING: the encoder has collapsed to one vector for all images: mean "
        f"cosine {cosine.value:.3f} of 1, effective rank "
        f"{metrics.effective_rank(vectors):.1f} of {vectors.shape[1]}. Neighbours "
        "and scores mean little."
    )


def write(path: pathlib.Path, vectors: Vectors) -> None:
    """Writes vectors, whole or not at all; the same vectors give the same bytes.

    A .parquet file has the columns path, label (null without classes) and vector, a
    list of d floats. An .npz file has arrays of these names, label only with classes.

    Raises:
        RunStoppedError: If it cannot be written.
    """
    origin_text = json.dumps(vectors.origin)
    with files.replacing(path) as temporary:
        if path.suffix == ".npz":
            arrays = {
                "path": np.array(vectors.paths),
                "vector": vectors.vectors,
                _ORIGIN: np.array(origin_text),
            }
            if vectors.labels is not None:
                arrays["label"] = np.array(vectors.labels)
            files.write_npz(temporary, arrays)
            return
        labels = vectors.labels or [None] * len(vectors.paths)
        flat, dim = vectors.vectors.reshape(-1), vectors.vectors.shape[1]
        table = pa.table(
            {
                "path": pa.array(vectors.paths, pa.string()),
                "label": pa.array(labels, pa.string()),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(flat), dim),
            }
        ).replace_schema_metadata({_ORIGIN: origin_text})
        pyarrow.parquet.write_table(table, temporary, row_group_size=_ROW_GROUP)


def read(path: pathlib.Path) -> Vectors:
    """Reads a file of `write`.

    Raises:
        InvalidInputError: If it is missing, damaged or another kind of file.
    """
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file; expected vectors of embed.")
    try:
        if path.suffix == ".npz":
            arrays = read_arrays(path)
            labels = arrays["label"].tolist() if "label" in arrays else None
            paths, vectors = arrays["path"].tolist(), arrays["vector"]
            origin_text = str(arrays[_ORIGIN])
        else:
            table = pyarrow.parquet.read_table(path)
            origin_text = table.schema.metadata[_ORIGIN.encode()].decode()
            paths, labels = (table[name].to_pylist() for name in ("path", "label"))
            labels = None if None in labels else labels
            flat = table["vector"].combine_chunks().flatten().to_numpy()
            vectors = flat.reshape(len(paths), -1)
        return Vectors(paths, labels, vectors, json.loads(origin_text))
    # pyarrow's errors for damaged files are OSError and its own.
    except Exception as error:
        raise InvalidInputError(
            f"{path} is damaged, or not a file of embed: {files.error_text(error)}."
        ) from error


# --- The flags of an encoder, images and their vectors ----------------------------


@dataclasses.dataclass(frozen=True)
class SourcesConfig(runtime_config.DeviceConfig):
    """Flags of an encoder and images."""

    model: str | None = config.flag(
        None,
        "The encoder from `./run.sh export`: .keras, .tflite, .onnx or the folder of a "
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
            InvalidInputError: If it is missing or damaged, or bfloat16 is asked for.
        """
        if self.precision == "mixed":
            raise InvalidInputError(
                "--precision=mixed is for training; exported encoders are float32."
            )
        with config.naming("--model"):
            return models.ExportedEncoder(self.model)

    def load_images(self, needs_labels: bool = True) -> ImageIndex:
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
        self, encoder: models.ExportedEncoder, images: ImageIndex
    ) -> np.ndarray:
        """Returns the vectors of all images, float32[N, d]: of the file, or new ones.

        Raises:
            InvalidInputError: If the file is of other images or another encoder.
            RunStoppedError: If an image can no longer be read.
        """
        if self.vectors is None:
            return compute(encoder, images).vectors
        kept = read(pathlib.Path(self.vectors))
        ours = origin(encoder, images)
        if kept.origin != ours:
            same_encoder = kept.origin.get("encoder") == ours["encoder"]
            what = "other images" if same_encoder else "another encoder"
            raise InvalidInputError(
                f"--vectors={self.vectors} is of {what} than --model, --images "
                "and --folders."
            )
        return kept.vectors


def _as_text(name: str) -> str:
    """Returns a name in valid UTF-8, whatever bytes the file system allows."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
