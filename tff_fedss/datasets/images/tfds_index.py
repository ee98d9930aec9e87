"""Index of an image data set of TensorFlow Datasets (TFDS), read from its own files.

TFDS prepares the data as usual. Its TFRecord files are read in place.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from tff_fedss import files
from tff_fedss.datasets import formats, sources
from tff_fedss.datasets.federated import records
from tff_fedss.datasets.images import layout
from tff_fedss.datasets.images.index import ImageIndex
from tff_fedss.errors import InvalidInputError

_SPLITS = {
    "train": layout.TRAIN,
    "test": layout.TEST,
    "validation": layout.VALIDATION,
}


_MAX_REASON = 300  # characters


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    client: str | None = None,
    splits: Mapping[str, int] | None = None,
    hint: str = "",
) -> ImageIndex:
    """Indexes a data set of TFDS, which prepares it first if necessary.

    Args:
        name: NAME, NAME/CONFIG, NAME:VERSION or NAME/CONFIG:VERSION.
        data_dir: TFDS's folder; None: TFDS's default.
        image: The feature with the image; None: the only one that is an image.
        label: The feature with the class, a number or a text; None: the only one
            that is a class label.
        client: The feature with the client, a number or a text; None: no clients.
        splits: Maps splits to `layout.TRAIN`, `TEST` and `VALIDATION`; others are left
            out. None: train, test and validation are used by their names.
        hint: An addition to the message if TFDS cannot prepare the data set.

    Returns:
        The index, one split after another.
    """
    where = f"name={name}"
    splits = splits or _SPLITS
    with preparing(where, hint):
        builder = tfds.builder(name, data_dir=data_dir and os.fspath(data_dir))
        builder.download_and_prepare()
    info = builder.info
    if info.file_format.value != "tfrecord":
        found = f"{builder.data_path} has the format {info.file_format.value}"
        raise InvalidInputError(f"{where}: {found}; expected tfrecord.")
    keys = _keys(info, image, label, client)
    used = [split for split in splits if split in info.splits]
    if not used:
        found = f"found the splits {', '.join(info.splits)}"
        raise InvalidInputError(f"{where}: {found}; expected {', '.join(splits)}.")
    index = _records(info, used, keys)
    class_names, labels = _classes(info.features[keys["label"]], index.records["label"])
    client_names, clients = (
        _numbered(index.records["client"]) if client else (None, None)
    )
    sizes = [info.splits[split].num_examples for split in used]
    split_of = np.repeat(np.array([splits[split] for split in used], np.int8), sizes)
    others = sorted(set(info.splits) - set(used))
    what = layout.Layout(
        np.arange(len(index)),
        class_names,
        labels,
        client_names,
        clients,
        split_of if split_of.any() else None,
        f"left out: the splits {', '.join(others)}" if others else "",
    )
    source = _Records(where, builder.data_path, name, index, keys["image"])
    return ImageIndex(source, what, name)


class _Records(sources.Source):
    """The images in records of TFDS."""

    def __init__(
        self,
        label: str,
        path: os.PathLike,
        name: str,
        index: records.RecordIndex,
        image_key: str,
    ):
        self.label, self.path = label, pathlib.Path(path)
        self.names = [f"{name}:{row}" for row in range(len(index))]
        self.sizes = index.records["length"].astype(np.int64)
        changed = sources.file_states(index.paths)[:, 1]
        self.stamps = changed[index.records["file"]]
        self._index, self.part = index, image_key

    def read(self, number: int) -> bytes:
        features = records.parsed(self._index.read(number))
        return records.value(features, self.part, "bytes_list")


@contextlib.contextmanager
def preparing(label: str, hint: str = "") -> Iterator[None]:
    """Converts an error of TFDS's downloads; the message is from label to hint."""
    try:
        yield
    # Downloads and parsers raise many kinds of errors.
    except Exception as error:
        reason = f"{type(error).__name__}: {files.error_text(error)}"[:_MAX_REASON]
        raise InvalidInputError(
            f"{label} cannot be prepared by TFDS ({reason}). {hint}".rstrip()
        ) from error


def _keys(
    info: tfds.core.DatasetInfo,
    image_key: str | None,
    label_key: str | None,
    client_key: str | None,
) -> dict[str, str]:
    """Returns the names of the features, each of them checked."""
    features = info.features.items()
    numbers_and_texts = [k for k, feature in features if _kind(feature)]
    # For each: those that can be chosen, and the kind that is chosen by itself.
    wanted = {
        "image": (
            image_key,
            [k for k, feature in features if isinstance(feature, tfds.features.Image)],
            tfds.features.Image,
        ),
        "label": (label_key, numbers_and_texts, tfds.features.ClassLabel),
        "client": (client_key, numbers_and_texts, None),
    }
    keys = {}
    for name, (key, possible, kind) in wanted.items():
        if key is None and kind is None:
            continue
        if key is None:
            of_kind = [k for k, feature in features if type(feature) is kind]
            key = of_kind[0] if len(of_kind) == 1 else None
        if key not in possible:
            found = f"of {', '.join(info.features)}, {', '.join(possible) or 'none'}"
            raise InvalidInputError(f"{name}={key}: {found} can be the {name}.")
        keys[name] = key
    return keys


def _kind(feature) -> str | None:
    """Returns a `tf.train.Feature`'s field of a number or a text; None: neither."""
    if not isinstance(feature, tfds.features.Tensor) or feature.shape:
        return None
    if feature.tf_dtype == tf.string:
        return "bytes_list"
    return "int64_list" if feature.tf_dtype.is_integer else None


def _records(
    info: tfds.core.DatasetInfo, used: list[str], keys: dict[str, str]
) -> records.RecordIndex:
    """Returns the records of some splits in TFDS's own order."""
    image_key, *others = keys.values()
    kinds = [(key, _kind(info.features[key])) for key in others]

    def parse(serialized: bytes) -> tuple:
        features = records.parsed(serialized)
        encoded = records.value(features, image_key, "bytes_list")
        records.check_image(encoded, formats.ALL)
        return tuple(records.value(features, *each) for each in kinds)

    splits = [info.splits[name] for name in used]
    paths = [path for split in splits for path in split.filepaths]
    lengths = [length for split in splits for length in split.shard_lengths]
    index = records.build_index(
        paths,
        parse,
        what=f"{info.full_name} {' '.join(keys.values())}",
        columns=list(keys)[1:],
    )
    # A file that ends between two records looks complete.
    found = np.bincount(index.records["file"], minlength=len(paths))
    for path, expected, count in zip(paths, lengths, found, strict=True):
        if count != expected:
            raise InvalidInputError(f"{path}: {count:,} records, not {expected:,}.")
    return index


def _classes(feature, values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Returns the names of the classes that occur, and the labels, int32[N]."""
    if not isinstance(feature, tfds.features.ClassLabel):
        return _numbered(values)
    numbers, labels = np.unique(values, return_inverse=True)
    if numbers[0] < 0:
        raise InvalidInputError("the data have examples without a class (-1).")
    names = [feature.int2str(int(number)) for number in numbers]
    return names, labels.astype(np.int32)


def _numbered(values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Returns the distinct values as texts, in order, and each value's position."""
    different, places = np.unique(values, return_inverse=True)
    names = [
        # Texts that are not UTF-8 stay distinct.
        value.decode(errors="backslashreplace")
        if isinstance(value, bytes)
        else str(value)
        for value in different.tolist()
    ]
    return names, places.astype(np.int32)
