"""Any image data set of TensorFlow Datasets (TFDS) as an index of labelled images.

TFDS prepares the data in its normal way. It reads them in order only, so that the
encoded images are copied once into a file of the cache, where each has a place.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tqdm

from tff_fedss import files
from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.datasets.images import formats, layout, sources
from tff_fedss.datasets.images.index import ImageIndex
from tff_fedss.errors import InvalidInputError, RunStoppedError

_SPLITS = {
    "train": layout.TRAIN,
    "test": layout.TEST,
    "validation": layout.VALIDATION,
}
_CACHE_VERSION = 1
_SAMPLED = 256  # images whose contents a fingerprint digests


class TfdsIndex(ImageIndex):
    """Images of a TFDS data set, copied into a file of the cache."""

    def __init__(self, name: str, path: pathlib.Path, arrays: dict, note: str):
        """Takes what `load` has copied.

        Args:
            name: What to call the data.
            path: The file with the encoded images, one after another.
            arrays: Of the copy.
            note: For a person.
        """
        self.name, self.label, self.note = name, f"tfds_name={name}", note
        self.class_names = [str(text) for text in arrays["class_names"]]
        self.labels = arrays["labels"]
        self.splits = arrays["splits"] if arrays["splits"].any() else None
        has_clients = bool(len(arrays["client_names"]))
        self.client_names = (
            [str(text) for text in arrays["client_names"]] if has_clients else None
        )
        self.clients = arrays["clients"] if has_clients else None
        self._starts = arrays["starts"]
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)  # Until the process ends.

    def image_name(self, row: int) -> str:
        """See the base class."""
        return f"{self.name}:{row}"

    def encoded(self, row: int) -> bytes:
        """See the base class."""
        start, end = int(self._starts[row]), int(self._starts[row + 1])
        content = os.pread(self._descriptor, end - start, start)
        if len(content) != end - start:
            raise RunStoppedError(
                f"{self._path} is cut off: delete it, then give the same command again."
            )
        return content

    def fingerprint(self, rows: np.ndarray) -> Fingerprint:
        """See the base class."""
        sample = rows[fingerprint.evenly_spaced(len(rows), _SAMPLED)]
        return {
            "images": len(rows),
            "sizes of images": fingerprint.of_arrays([np.diff(self._starts)[rows]]),
            "labels of images": fingerprint.of_arrays([self.labels[rows]]),
            "contents of images": fingerprint.of_text(
                hashlib.blake2b(self.encoded(int(row)), digest_size=8).hexdigest()
                for row in sample
            ),
        }


def load(
    tfds_name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    image_key: str | None = None,
    label_key: str | None = None,
    client_key: str | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> TfdsIndex:
    """Indexes a data set of TFDS, which prepares it first where that is needed.

    Args:
        tfds_name: NAME, NAME/CONFIG, NAME:VERSION or NAME/CONFIG:VERSION.
        data_dir: TFDS's folder; None: TFDS's own default.
        image_key: The feature with the image; None: the only one that is an image.
        label_key: The feature with the class, a number or a text; None: the only one
            that is a class label.
        client_key: The feature with the client, a number or a text; None: no clients.
        cache_dir: Where the copy goes; by default `sources.default_cache_dir()`.

    Returns:
        The index. The splits train, test and validation count; others are left out.

    Raises:
        InvalidInputError: If there is no such data set or feature, TFDS cannot prepare
            it, or an image is damaged.
    """
    builder = _prepared(tfds_name, data_dir)
    keys = _keys(builder, image_key, label_key, client_key)
    used = [name for name in _SPLITS if name in builder.info.splits]
    if "train" not in used:
        raise InvalidInputError(
            f"tfds_name={tfds_name} has the splits "
            f"{', '.join(sorted(builder.info.splits))}; expected train."
        )
    others = sorted(set(builder.info.splits) - set(used))
    note = f"left out: the splits {', '.join(others)}" if others else ""
    cache_dir = pathlib.Path(cache_dir or sources.default_cache_dir())
    key = json.dumps(
        [
            _CACHE_VERSION,
            str(builder.info.full_name),
            str(builder.data_path),
            keys,
            {name: builder.info.splits[name].num_examples for name in used},
        ]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = cache_dir / f"tfds_{digest}.images"
    arrays_path = path.with_suffix(".npz")
    if not (path.exists() and arrays_path.exists()):
        files.make_folder(cache_dir, "the cache")
        arrays = _copy(builder, used, keys, path, tfds_name)
        files.write_npz(arrays_path, arrays)
    with np.load(arrays_path) as found:
        return TfdsIndex(tfds_name, path, dict(found), note)


def _prepared(tfds_name: str, data_dir) -> tfds.core.DatasetBuilder:
    try:
        builder = tfds.builder(tfds_name, data_dir=data_dir and os.fspath(data_dir))
    except (tfds.core.registered.DatasetNotFoundError, ValueError, AssertionError) as e:
        raise InvalidInputError(
            f"tfds_name={tfds_name} is no data set of TFDS: {_first_line(e)}."
        ) from e
    try:
        builder.download_and_prepare()
    # By what downloads and parsers raise, which is anything.
    except Exception as e:
        raise InvalidInputError(
            f"tfds_name={tfds_name} cannot be prepared: {_first_line(e)}."
        ) from e
    return builder


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return files.error_text(lines[0] if lines else type(error).__name__)


def _keys(builder, image_key, label_key, client_key) -> dict[str, str | None]:
    """The names of the features, each of them checked."""
    features = builder.info.features
    if not isinstance(features, tfds.features.FeaturesDict):
        raise InvalidInputError(
            f"tfds_name={builder.info.full_name} has no features with names."
        )

    def one(argument: str, key: str | None, kind: type, what: str) -> str:
        if key is not None:
            if key not in features:
                raise InvalidInputError(
                    f"{argument}={key} is no feature of {builder.info.full_name}, "
                    f"which has {', '.join(features)}."
                )
            return key
        found = [name for name, feature in features.items() if type(feature) is kind]
        if len(found) != 1:
            raise InvalidInputError(
                f"{builder.info.full_name} has {len(found)} features that are {what}; "
                f"name one by {argument}. There are {', '.join(features)}."
            )
        return found[0]

    keys = {
        "image": one("image_key", image_key, tfds.features.Image, "images"),
        "label": one("label_key", label_key, tfds.features.ClassLabel, "class labels"),
        "client": client_key and one("client_key", client_key, object, ""),
    }
    if not isinstance(features[keys["image"]], tfds.features.Image):
        raise InvalidInputError(f"image_key={keys['image']} is not an image.")
    for name in ("label", "client"):
        key = keys[name]
        if key and not _is_scalar(features[key]):
            raise InvalidInputError(
                f"{name}_key={key} is neither a whole number nor a text."
            )
    return keys


def _is_scalar(feature) -> bool:
    """Whether a feature is a whole number or a text."""
    if not isinstance(feature, tfds.features.Tensor) or feature.shape:
        return False
    return feature.tf_dtype.is_integer or feature.tf_dtype == tf.string


def _copy(builder, used, keys, path, tfds_name) -> dict[str, np.ndarray]:
    """Copies the encoded images into one file; returns what is known of them."""
    starts, splits = [0], []
    values = {"label": [], "client": []}
    total = sum(builder.info.splits[name].num_examples for name in used)
    with (
        files.replacing(path, unique=True) as temporary,
        open(temporary, "wb") as copy,
        tqdm.tqdm(
            desc=f"Reading {tfds_name}",
            total=total,
            unit=" images",
            delay=2,
            disable=None,
        ) as bar,
    ):
        for name in used:
            for example in _examples(builder, name, keys):
                try:
                    content = example["image"]
                    formats.check(content)
                    content = formats.normalized(content)
                except ValueError as error:
                    raise InvalidInputError(
                        f"tfds_name={tfds_name}: image {len(splits)} of the split "
                        f"{name} {error}."
                    ) from error
                copy.write(content)
                starts.append(starts[-1] + len(content))
                splits.append(_SPLITS[name])
                for key, column in values.items():
                    if keys[key]:
                        column.append(example[key])
                bar.update()
    feature = builder.info.features[keys["label"]]
    class_names, labels = _classes(feature, values["label"])
    client_names, clients = _numbered(values["client"])
    return {
        "class_names": class_names,
        "labels": labels,
        "client_names": client_names,
        "clients": clients,
        "splits": np.array(splits, np.int8),
        "starts": np.array(starts, np.int64),
    }


def _examples(builder, split: str, keys: dict) -> Iterator[dict[str, Any]]:
    """Yields the examples of a split in TFDS's own order, the image encoded."""
    data = builder.as_dataset(
        split=split,
        shuffle_files=False,
        decoders={keys["image"]: tfds.decode.SkipDecoding()},
        read_config=tfds.ReadConfig(
            interleave_cycle_length=1, skip_prefetch=True, try_autocache=False
        ),
    )
    data = data.map(
        lambda example: {name: example[key] for name, key in keys.items() if key}
    )
    yield from data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def _classes(feature, values: list) -> tuple[np.ndarray, np.ndarray]:
    """The names of the classes that occur, and the labels, int32[N]."""
    if not isinstance(feature, tfds.features.ClassLabel):
        return _numbered(values)
    numbers, labels = np.unique(values, return_inverse=True)
    if len(numbers) and numbers[0] < 0:
        raise InvalidInputError("the data have examples without a class (-1).")
    names = [feature.int2str(int(number)) for number in numbers]
    return np.array(names, str), labels.astype(np.int32)


def _numbered(values: list) -> tuple[np.ndarray, np.ndarray]:
    """The different values as texts, in order, and for each value its place there."""
    if values and isinstance(values[0], bytes):
        values = [value.decode(errors="replace") for value in values]
    different, places = np.unique(values, return_inverse=True)
    return different.astype(str), places.astype(np.int32)
