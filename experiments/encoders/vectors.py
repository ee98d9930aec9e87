"""Vectors of images: made in parts that a killed program goes on from, kept as a file.

A file of vectors (.parquet or .npz) says of which images and which encoder they are, so
that a later program can tell whether they are those that it needs.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import tqdm

from tff_fedss import files, models
from tff_fedss.datasets.federated.preprocessing import decode_image
from tff_fedss.datasets.images import ImageIndex
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import read_arrays, run_files

SUFFIXES = (".parquet", ".npz")
# Images that are decoded while as many are embedded, and those of a part, which is kept
# when it is done. Both decide which images go through the encoder together.
_AT_ONCE = 32
_PER_PART = 16 * _AT_ONCE
_ROW_GROUP = 1 << 14
_ORIGIN = "tff_fedss"
_HEADER = "origin.json"


@dataclasses.dataclass(frozen=True)
class Vectors:
    """What `embed` writes.

    Attributes:
        paths: Of the images, below their folder or archive.
        labels: The names of their classes; None if nothing says them.
        vectors: float32[N, d], of length 1.
        origin: What they are of, see `origin`.
    """

    paths: Sequence[str]
    labels: Sequence[str] | None
    vectors: np.ndarray
    origin: dict[str, Any]


def origin(encoder: models.ExportedEncoder, images: ImageIndex) -> dict[str, Any]:
    """By what vectors are known again: the encoder, and the images."""
    return {
        "encoder": encoder.digest,
        "method": encoder.metadata.get("method"),
        "embedding_dim": encoder.embedding_dim,
        "images": images.fingerprint(np.arange(len(images))),
    }


def compute(
    encoder: models.ExportedEncoder,
    images: ImageIndex,
    parts: pathlib.Path | None = None,
) -> Vectors:
    """Embeds all images, and tells of its progress.

    Args:
        encoder: The encoder.
        images: The images. They are decoded as a training decodes them.
        parts: A folder that keeps what is done, and that is gone on from if it holds
            something. None: nothing is kept.

    Returns:
        The vectors: the same bytes, whether or not the work was interrupted.

    Raises:
        InvalidInputError: If the folder is of other images or another encoder.
        RunStoppedError: If an image cannot be read any more, or a file not be written.
    """
    whole = origin(encoder, images)
    if parts is not None:
        _begin(parts, whole)
    result = np.empty([len(images), encoder.embedding_dim], np.float32)
    with (
        tqdm.tqdm(
            desc="Embedding", total=len(images), unit=" images", disable=None
        ) as bar,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for start in range(0, len(images), _PER_PART):
            end = min(start + _PER_PART, len(images))
            path = None if parts is None else parts / f"{start:09d}.npz"
            if path is not None and path.exists():
                result[start:end] = _read_part(path, result[start:end].shape)
            else:
                _embed(encoder, images, range(start, end), pool, result)
                if path is not None:
                    with files.replacing(path) as temporary:
                        files.write_npz(temporary, {"vectors": result[start:end]})
            bar.update(end - start)
    labels = images.labels
    return Vectors(
        [_as_text(images.image_name(k)) for k in range(len(images))],
        None if labels is None else [_as_text(images.class_names[k]) for k in labels],
        result,
        whole,
    )


def _embed(
    encoder: models.ExportedEncoder,
    images: ImageIndex,
    rows: range,
    pool: concurrent.futures.ThreadPoolExecutor,
    result: np.ndarray,
) -> None:
    """Fills in the vectors of some images; decodes the next while it embeds some."""

    def decoded(row: int) -> np.ndarray:
        return decode_image(images.encoded(row)).numpy()

    def begin(batch: range) -> list[concurrent.futures.Future]:
        return [pool.submit(decoded, row) for row in batch]

    batches = [rows[k : k + _AT_ONCE] for k in range(0, len(rows), _AT_ONCE)]
    following = begin(batches[0])
    for number, batch in enumerate(batches):
        pixels = [future.result() for future in following]
        following = begin(batches[number + 1]) if number + 1 < len(batches) else []
        result[batch.start : batch.stop] = encoder.embed(pixels)


def _begin(parts: pathlib.Path, whole: dict[str, Any]) -> None:
    """Makes the folder, or checks that what it holds is of the same."""
    files.make_folder(parts)
    header = parts / _HEADER
    theirs = run_files.read_json(header)
    if theirs is None:
        files.write_text(header, json.dumps(whole, indent=2) + "\n")
    elif theirs != whole:
        raise InvalidInputError(
            f"{parts} was begun with {_difference(theirs, whole)}. Remove it, or name "
            "another --output."
        )


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    if theirs.get("encoder") != ours["encoder"]:
        return "another encoder"
    return "other images"


def _read_part(path: pathlib.Path, shape: tuple[int, int]) -> np.ndarray:
    vectors = read_arrays(path).get("vectors")
    if vectors is None or vectors.shape != shape or vectors.dtype != np.float32:
        raise InvalidInputError(f"{path} is damaged: remove it, it is made again.")
    return vectors


def parts_folder(path: pathlib.Path) -> pathlib.Path:
    """Where `compute` is to keep what is done for a file."""
    return path.with_name(f".{path.name}.parts")


def remove_parts(path: pathlib.Path) -> None:
    """Removes what `compute` has kept for a file."""
    shutil.rmtree(parts_folder(path), ignore_errors=True)


def check_output(path: pathlib.Path) -> None:
    """Checks that vectors can be written to a file, before anything is done.

    Raises:
        InvalidInputError: If they cannot.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidInputError(
            f"--output={path} must end in {' or '.join(SUFFIXES)}: it says the format."
        )
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"has no folder {path.parent}"
        raise InvalidInputError(f"--output={path} {what}; expected a file's name.")


def write(path: pathlib.Path, vectors: Vectors) -> None:
    """Writes vectors, whole or not at all; always the same bytes for the same.

    A .parquet file has the columns path, label (null if nothing says it) and vector, a
    list of d floats. An .npz file has arrays of these names; label may be missing.

    Args:
        path: The file; its suffix says the format.
        vectors: The vectors.

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
        dim = vectors.vectors.shape[1]
        schema = pa.schema(
            [
                ("path", pa.string()),
                ("label", pa.string()),
                ("vector", pa.list_(pa.float32(), dim)),
            ],
            {_ORIGIN: origin_text},
        )
        count = len(vectors.paths)
        table = pa.table(
            {
                "path": pa.array(vectors.paths, pa.string()),
                "label": (
                    pa.nulls(count, pa.string())
                    if vectors.labels is None
                    else pa.array(vectors.labels, pa.string())
                ),
                "vector": pa.FixedSizeListArray.from_arrays(
                    pa.array(vectors.vectors.reshape(-1)), dim
                ),
            },
            schema,
        )
        pyarrow.parquet.write_table(table, temporary, row_group_size=_ROW_GROUP)


def read(path: pathlib.Path) -> Vectors:
    """Reads what `write` wrote.

    Raises:
        InvalidInputError: If there is no such file, or it is damaged or another.
    """
    if not path.is_file():
        raise InvalidInputError(f"{path} is no file; expected vectors of embed.")
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
            f"{path} is damaged, or no file of embed: {files.error_text(error)}."
        ) from error


def of(
    encoder: models.ExportedEncoder, images: ImageIndex, path: str | None
) -> np.ndarray:
    """Returns the vectors of all images: those of a file, or new ones.

    Args:
        encoder: The encoder.
        images: The images.
        path: A file that `embed` has written; None: they are computed.

    Raises:
        InvalidInputError: If the file is of other images or another encoder.
        RunStoppedError: See `compute`.
    """
    if path is None:
        return compute(encoder, images).vectors
    kept, ours = read(pathlib.Path(path)), origin(encoder, images)
    if kept.origin != ours:
        raise InvalidInputError(
            f"--vectors={path} is of {_difference(kept.origin, ours)} than --model and "
            "--images."
        )
    return kept.vectors


def _as_text(name: str) -> str:
    """A name that UTF-8 has, whatever bytes the file system allows."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
