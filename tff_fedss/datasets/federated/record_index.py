"""Record index: where every record of some TFRecord files is, and its label.

It is found once, with a check of every record, and kept in the cache.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss import files, progress
from tff_fedss.datasets import fingerprint, formats, sources
from tff_fedss.datasets.federated import record_writer
from tff_fedss.errors import InvalidInputError

# A record of a TFRecord file: its length in 8 bytes, a checksum of these in 4, the
# payload, a checksum of the payload in 4.
HEADER_BYTES, FOOTER_BYTES = 12, 4

# `file` is a position in `RecordIndex.paths`; offset and length, in bytes, are those of
# the payload.
_PLACE = [("file", "<i4"), ("offset", "<i8"), ("length", "<i8")]
DTYPE = np.dtype([*_PLACE, ("label", "<i4")])

_READ_BUFFER = 8 << 20  # bytes

Parse = Callable[[bytes], tuple]


@dataclasses.dataclass(frozen=True, eq=False)
class RecordIndex:
    """Where every record of some TFRecord files is, and its label.

    Attributes:
        paths: The files, absolute, in the order in which they were named.
        records: [N] with the fields of `DTYPE`, or others in the place of `label`; file
            by file and in each file in its order.
    """

    paths: tuple[str, ...]
    records: np.ndarray

    def __len__(self) -> int:
        """N, the number of records."""
        return len(self.records)

    def read(self, row: int) -> bytes:
        """Returns the payload of a record, whose checksum is not compared.

        Raises:
            OSError: If it cannot be read.
        """
        with open(self.paths[self.records["file"][row]], "rb") as file:
            file.seek(self.records["offset"][row])
            return file.read(self.records["length"][row])

    def contents(self) -> dict[str, Any]:
        """Returns what a fingerprint says of the records, see `fingerprint.of`."""
        lengths = self.records["length"]
        sample = fingerprint.sample(lengths)
        records = np.empty(len(sample), object)
        records[:] = [self.read(row) for row in sample]
        return {
            "records": len(self),
            "labels of records": self.records["label"],
            "lengths of records": lengths,
            "contents of records": records,
        }


def example_parser(image_feature: str, label_feature: str, num_classes: int) -> Parse:
    """Makes a `parse` for `build_index` from the names of the features.

    Args:
        image_feature: The feature that holds the encoded image.
        label_feature: The feature that holds the class.
        num_classes: Classes must be in 0..num_classes-1.

    Returns:
        A function from a serialized `tf.train.Example` to its label, which checks both.
        It raises ValueError with the reason.
    """

    def parse(serialized: bytes) -> tuple[np.int32]:
        example = parsed(serialized)
        label = value(example, label_feature, "int64_list")
        if not 0 <= label < num_classes:
            raise ValueError(
                f"has {label_feature}={label}, not in 0..{num_classes - 1}"
            )
        check_image(value(example, image_feature, "bytes_list"))
        return (np.int32(label),)

    return parse


def parsed(serialized: bytes) -> Mapping[str, Any]:
    """Returns the features of a serialized `tf.train.Example`.

    Raises:
        ValueError: If it is none.
    """
    try:
        return tf.train.Example.FromString(serialized).features.feature
    # protobuf's own exception, whose module depends on its version.
    except Exception as e:
        raise ValueError("is not a tf.train.Example") from e


def value(features: Mapping[str, Any], name: str, kind: str) -> Any:
    """Returns the only value of a feature.

    Raises:
        ValueError: If it has none or several.
    """
    # `in` first: protobuf would add the feature that is asked for.
    values = getattr(features[name], kind).value if name in features else ()
    if len(values) != 1:
        raise ValueError(f"has {len(values)} values of {name!r} ({kind}); expected 1")
    return values[0]


def check_image(encoded: bytes, kinds: Sequence[str] = formats.OF_TENSORFLOW) -> None:
    """Checks the image of a record, see `formats.check`."""
    try:
        formats.check(encoded, kinds)
    except ValueError as e:
        raise ValueError(f"its image {e}") from e


def build_index(
    paths: Sequence[os.PathLike],
    parse: Parse,
    *,
    what: str,
    columns: Sequence[str] = ("label",),
    cache_dir: str | os.PathLike | None = None,
) -> RecordIndex:
    """Finds all records of TFRecord files, and checks every one of them.

    Every file is read once from its start to its end, several files at a time. The
    checksums of all records are compared. The cache keeps the outcome until the size or
    time of change of one of the files is another.

    Args:
        paths: The files.
        parse: Checks a record and takes it apart into the values of the columns:
            numbers or bytes. It raises ValueError with a reason that is to follow the
            name of the record. Called from several threads.
        what: What the records are, in a word or two: for the progress bar, and to tell
            indices of the same files by different `parse` apart.
        columns: What the values that `parse` returns are called.
        cache_dir: The cache's folder; by default `sources.default_cache_dir()`.

    Returns:
        The index.
    """
    absolute = tuple(os.path.abspath(path) for path in paths)
    with sources.reading(what):
        states = sources.file_states(absolute)

    def make() -> dict[str, np.ndarray]:
        num_bytes = int(states[:, 0].sum())
        return {"records": _scan(absolute, num_bytes, parse, what, columns)}

    kind = f"records of {what}"
    arrays = sources.kept(kind, absolute, states, make, cache_dir)
    return RecordIndex(absolute, arrays["records"])


def _scan(
    paths: Sequence[str],
    num_bytes: int,
    parse: Parse,
    what: str,
    columns: Sequence[str],
) -> np.ndarray:
    """Returns the records of all files, in the order of the files."""
    found = {}
    with progress.bar(f"Checking {what}", num_bytes, "B") as bar:
        for number, records in record_writer.in_threads(
            lambda number: _scan_file(number, paths[number], parse, columns),
            range(len(paths)),
        ):
            found[number] = records
            bar.update(os.path.getsize(paths[number]))
    return np.concatenate([found[number] for number in range(len(paths))])


def _scan_file(
    number: int, path: str, parse: Parse, columns: Sequence[str]
) -> np.ndarray:
    """Finds and checks the records of one file, the number-th: [n]."""
    places, values = [], []
    position = 0

    def fail(problem: str) -> InvalidInputError:
        return InvalidInputError(
            f"{path}, record {len(places):,} (from byte {position:,}): {problem}."
        )

    serialized_records = iter(tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER))
    while True:
        try:
            serialized = next(serialized_records).numpy()
            values.append(parse(serialized))
        except StopIteration:
            break
        except tf.errors.DataLossError as e:
            raise fail("the file is cut off or damaged here") from e
        except tf.errors.OpError as e:
            raise fail(f"the file cannot be read: {files.error_text(e)}") from e
        except ValueError as e:
            raise fail(str(e)) from e
        places.append((number, position + HEADER_BYTES, len(serialized)))
        position += HEADER_BYTES + len(serialized) + FOOTER_BYTES
    # TensorFlow takes a file that ends within the header of a record for whole.
    if position != os.path.getsize(path):
        raise fail("the file is cut off here")
    if not places:
        raise InvalidInputError(f"{path}: found no record; expected at least one.")
    arrays = dict(zip(columns, map(np.array, zip(*values, strict=True)), strict=False))
    records = np.empty(
        len(places), [*_PLACE, *((name, a.dtype) for name, a in arrays.items())]
    )
    records[["file", "offset", "length"]] = np.array(places, _PLACE)
    for name, array in arrays.items():
        records[name] = array
    return records
