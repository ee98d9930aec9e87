"""Images in TFRecord files: an index of records, and data sets of references to them.

The index has the place and label of every record. It is made once, with a check of
every record, and kept in the cache. No image is held in memory: a client's data set
has references to its records, which are read on request.
"""

import collections
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss import files, progress
from tff_fedss.datasets import fingerprint, formats, sources
from tff_fedss.datasets.federated import (
    clients,
    partitions,
    preprocessing,
    record_writer,
)
from tff_fedss.errors import InvalidInputError

# A record of a TFRecord file: its length in 8 bytes, their checksum in 4, the payload,
# its checksum in 4.
HEADER_BYTES, FOOTER_BYTES = 12, 4

# `file` is a position in `RecordIndex.paths`; offset and length, in bytes, are those of
# the payload.
_PLACE = [("file", "<i4"), ("offset", "<i8"), ("length", "<i8")]
DTYPE = np.dtype([*_PLACE, ("label", "<i4")])

_READ_BUFFER = 8 << 20  # bytes

Parse = Callable[[bytes], tuple]


@dataclasses.dataclass(frozen=True, eq=False)
class RecordIndex:
    """The places and labels of the records of TFRecord files.

    Attributes:
        paths: The absolute paths of the files, in the given order.
        records: [N] with the fields of `DTYPE`, or others instead of `label`; file by
            file, each in its order.
    """

    paths: tuple[str, ...]
    records: np.ndarray

    def __len__(self) -> int:
        """N, the number of records."""
        return len(self.records)

    def read(self, row: int) -> bytes:
        """Returns the payload of a record without comparing its checksum.

        Raises:
            See `sources.read_part`.
        """
        file, offset, length = self.records[["file", "offset", "length"]][row]
        return sources.read_part(self.paths[file], offset, length)

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

    It checks image and label of a `tf.train.Example` and raises ValueError with the
    reason.
    """
    largest = num_classes - 1

    def parse(serialized: bytes) -> tuple[np.int32]:
        example = parsed(serialized)
        label = value(example, label_feature, "int64_list")
        if not 0 <= label <= largest:
            raise ValueError(f"has {label_feature}={label}, not in 0..{largest}")
        check_image(value(example, image_feature, "bytes_list"))
        return (np.int32(label),)

    return parse


def parsed(serialized: bytes) -> Mapping[str, Any]:
    """Returns the features of a `tf.train.Example`; raises ValueError if it is none."""
    try:
        return tf.train.Example.FromString(serialized).features.feature
    # protobuf's own exception, whose module depends on its version.
    except Exception as e:
        raise ValueError("is not a tf.train.Example") from e


def value(features: Mapping[str, Any], name: str, kind: str) -> Any:
    """Returns the only value of a feature; ValueError if it has none or several."""
    # `in` first: protobuf would add a missing feature.
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
) -> RecordIndex:
    """Finds all records of TFRecord files, and checks every one of them.

    Every file is read once from start to end, several files at a time, and the
    checksums of all records are compared. The cache keeps the result until the size or
    modification time of a file changes.

    Args:
        parse: Checks a record and returns the values of the columns: numbers or bytes.
            It raises ValueError with a reason that follows the record's name in the
            message. Called from several threads.
        what: The kind of records, in a word or two: for the progress bar, and to
            distinguish indices of the same files by different `parse`.
        columns: Names of the values that `parse` returns.
    """
    absolute = tuple(os.path.abspath(path) for path in paths)
    with sources.reading(what):
        states = sources.file_states(absolute)

    def make() -> dict[str, np.ndarray]:
        num_bytes = int(states[:, 0].sum())
        return {"records": _scan(absolute, num_bytes, parse, what, columns)}

    kind = f"records of {what}"
    arrays = sources.kept(kind, absolute, states, make)
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
    # TensorFlow accepts a file that ends within the header of a record.
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


_REFERENCES_AT_A_TIME = 1 << 16
_SPEC = collections.OrderedDict(
    path=tf.TensorSpec([], tf.string),
    offset=tf.TensorSpec([], tf.int64),
    length=tf.TensorSpec([], tf.int64),
)


def client_data(
    index: RecordIndex, partition: partitions.Partition
) -> clients.IndexedClientData:
    """Makes client data of references, of a partition of the index's records."""
    return clients.IndexedClientData(
        partition,
        index.records["label"],
        lambda rows: _references(index, rows),
        _SPEC,
    )


def references(index: RecordIndex, rows: np.ndarray) -> tf.data.Dataset:
    """Makes a dataset of references to records, for this process; it reads no image.

    Rows are positions in `index.records`, int64[N]. Its elements are
    `OrderedDict(image=OrderedDict(path=string[], offset=int64[], length=int64[]),
    label=int32[])`, in the order of the rows.
    """

    def chunk(number: int) -> clients.Arrays:
        start = number * _REFERENCES_AT_A_TIME
        part = rows[start : start + _REFERENCES_AT_A_TIME]
        return _references(index, part), index.records["label"][part]

    num_chunks = -(-len(rows) // _REFERENCES_AT_A_TIME)
    return clients.dataset_from_chunks(chunk, num_chunks, len(rows), _SPEC)


def _references(index: RecordIndex, rows: np.ndarray) -> collections.OrderedDict:
    chosen = index.records[rows]
    return collections.OrderedDict(
        path=np.array([index.paths[file].encode() for file in chosen["file"]], object),
        offset=chosen["offset"],
        length=chosen["length"],
    )


def read_image(feature: str) -> Callable[[Mapping[str, tf.Tensor]], tf.Tensor]:
    """Makes the function that reads and decodes the image of a reference.

    Args:
        feature: The feature of the record, a `tf.train.Example`, that has the image.

    Returns:
        A function for `Preprocessing(read=...)`: it takes `{path: string[], offset:
        int64[], length: int64[]}` and returns uint8[height, width, 3]. It is a graph of
        plain TensorFlow ops, so that another process with the same files can also run
        it.
    """
    features = {feature: tf.io.FixedLenFeature([], tf.string)}

    def read(reference: Mapping[str, tf.Tensor]) -> tf.Tensor:
        # Seeks to the record and compares its checksums. (A FixedLengthRecordDataset
        # with header_bytes reads all bytes before it.)
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[reference["path"]],
            compression_type="",
            buffer_size=HEADER_BYTES + reference["length"] + FOOTER_BYTES,
            byte_offsets=[reference["offset"] - HEADER_BYTES],
        )
        data = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        record = data.take(1).get_single_element()
        example = tf.io.parse_single_example(record, features)
        return preprocessing.decode_image(example[feature])

    return read
