"""Where every record of some TFRecord files is, and its label: found once, and kept.

The index is a file that is mapped into memory, so that nothing per image is held there.
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from tff_fedss import errors, files
from tff_fedss.datasets import fingerprint, image_files
from tff_fedss.datasets.fingerprint import Fingerprint

# A record of a TFRecord file: its length in 8 bytes, a checksum of these in 4, the
# payload, a checksum of the payload in 4.
HEADER_BYTES, FOOTER_BYTES = 12, 4

# `file` is a position in `RecordIndex.paths`; offset and length, in bytes, are those of
# the payload.
DTYPE = np.dtype(
    [("file", "<i4"), ("offset", "<i8"), ("length", "<i8"), ("label", "<i4")]
)
_FORMAT_VERSION = 2
_DIGEST_BYTES = 16  # at the end of an index

_READ_BUFFER = 8 << 20  # bytes
_RECORDS_PER_STEP = 64  # of the progress bar

Parse = Callable[[bytes], tuple[int, bytes]]


@dataclasses.dataclass(frozen=True, eq=False)
class RecordIndex:
    """Where every record of some TFRecord files is, and its label.

    Attributes:
        paths: The files, absolute, in the order in which they were named.
        records: `DTYPE`[N], file by file and in each file in its order; a read-only
            view of a file on disk.
    """

    paths: tuple[str, ...]
    records: np.ndarray

    def __len__(self) -> int:
        """N, the number of records."""
        return len(self.records)

    def fingerprint(self) -> Fingerprint:
        """By what a run knows these files again; see `fingerprint`."""
        labels, lengths = self.records["label"], self.records["length"]
        return {
            **fingerprint.of_files(self.paths, "record files"),
            "records": len(self),
            "labels of records": fingerprint.of_arrays([labels]),
            "lengths of records": fingerprint.of_arrays([lengths]),
        }


def example_parser(image_feature: str, label_feature: str, num_classes: int) -> Parse:
    """Makes a `parse` for `build_index` from the names of the features.

    Args:
        image_feature: The feature that holds the encoded image.
        label_feature: The feature that holds the class.
        num_classes: Classes must be in 0..num_classes-1.

    Returns:
        A function that takes a serialized `tf.train.Example` apart. It raises
        ValueError, with the reason, if that is not possible.
    """

    def parse(serialized: bytes) -> tuple[int, bytes]:
        example = tf.train.Example()
        try:
            example.ParseFromString(serialized)
        # protobuf's own exception, whose module depends on its version.
        except Exception as e:
            raise ValueError("is not a tf.train.Example") from e
        features = example.features.feature
        label = _single(features, label_feature, "int64_list")
        if not 0 <= label < num_classes:
            raise ValueError(
                f"has {label_feature}={label}, which is not in 0..{num_classes - 1}"
            )
        return label, _single(features, image_feature, "bytes_list")

    return parse


def _single(features: Mapping[str, Any], name: str, kind: str) -> Any:
    # `in` first: protobuf would add the feature that is asked for.
    values = getattr(features[name], kind).value if name in features else ()
    if len(values) != 1:
        raise ValueError(
            f"has {len(values)} values of the feature {name!r} ({kind}); expected 1"
        )
    return values[0]


def build_index(
    paths: Sequence[os.PathLike], parse: Parse, *, cache_dir: os.PathLike, what: str
) -> RecordIndex:
    """Finds all records of TFRecord files, and checks every one of them.

    Every file is read once from its start to its end, several files at a time. The
    checksums of all records are compared and all images are decoded, see
    `image_files.check`. The outcome is kept in a file, which serves until one of the
    paths, sizes or times of modification changes.

    Args:
        paths: The files.
        parse: Takes a record apart into its label, int32, and its encoded image. It
            raises ValueError if it cannot, with a reason that is to follow the name of
            the record. Called from several threads.
        cache_dir: Where to keep the index, a folder. If nothing can be written there,
            it is kept in `$XDG_CACHE_HOME/tff_fedss`, and a line on stderr says so.
        what: What the records are, in a word or two: for the progress bar, and to tell
            indices of the same files by different `parse` apart.

    Returns:
        The index.

    Raises:
        errors.InvalidInputError: If a file cannot be read, holds no record, or holds a
            record that is damaged, cannot be parsed or has no whole image. The message
            names the file and the record; the first record of a file is number 0.
    """
    absolute = tuple(os.path.abspath(path) for path in paths)
    stats = [_stat(path) for path in absolute]
    sizes = [stat.st_size for stat in stats]
    # A changed file changes the second half of the name only, so that the index which
    # it makes useless can be found and removed.
    first_half = f"records-{_digest([what, absolute])}"
    times = [stat.st_mtime_ns for stat in stats]
    name = f"{first_half}-{_digest([_FORMAT_VERSION, sizes, times])}.index"

    folders = (pathlib.Path(cache_dir), user_cache())
    for folder in folders:
        if (records := _map(folder / name)) is not None:
            return RecordIndex(absolute, records)
    unfinished = _create_in_one_of(folders, f".{name}.{os.getpid()}.unfinished")
    finished = unfinished.with_name(name)
    try:
        digest = _new_digest()
        with unfinished.open("wb") as file:
            for records in _scan(absolute, sizes, parse, what):
                content = records.tobytes()
                digest.update(content)
                file.write(content)
            file.write(digest.digest())
        os.replace(unfinished, finished)
    except OSError as e:
        what = ", the index of the records, cannot be written"
        raise files.io_error(e, finished, what) from e
    finally:
        unfinished.unlink(missing_ok=True)
    for outdated in finished.parent.glob(f"{first_half}-*.index"):
        if outdated != finished:
            outdated.unlink(missing_ok=True)
    if (records := _map(finished)) is None:
        raise errors.RunStoppedError(
            f"{finished}: the index of the records is not what was written; is the "
            "disk damaged?"
        )
    return RecordIndex(absolute, records)


def _new_digest():
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def _stat(path: str) -> os.stat_result:
    try:
        return files.check_regular(path)
    except OSError as e:
        raise errors.InvalidInputError(
            f"{path}: cannot be read: {e.strerror or e}."
        ) from e


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def user_cache() -> pathlib.Path:
    """Returns where to keep what cannot be written beside the data."""
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "tff_fedss"


def _map(path: pathlib.Path) -> np.ndarray | None:
    """Maps an index that is there already; None if it is not, or is damaged."""
    try:
        num_records, rest = divmod(
            files.check_regular(path).st_size - _DIGEST_BYTES, DTYPE.itemsize
        )
        if num_records < 1 or rest:
            return None
        content = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError):
        return None
    digest = _new_digest()
    digest.update(content[:-_DIGEST_BYTES])
    if digest.digest() != content[-_DIGEST_BYTES:].tobytes():
        return None
    return content[:-_DIGEST_BYTES].view(DTYPE)


def _create_in_one_of(folders: Sequence[pathlib.Path], name: str) -> pathlib.Path:
    """Creates a file in the first folder that lets us, before any work is done."""
    problems = []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        except OSError as e:
            problems.append(f"{folder} ({e.strerror or e})")
            continue
        if problems:
            print(
                f"The index is kept in {folder}, as it cannot be written to "
                f"{problems[0]}.",
                file=sys.stderr,
            )
        return folder / name
    raise errors.InvalidInputError(
        f"An index of the records cannot be written to {' nor to '.join(problems)}."
    )


def _scan(
    paths: Sequence[str], sizes: Sequence[int], parse: Parse, what: str
) -> Iterator[np.ndarray]:
    """Yields the records of each file, `DTYPE`[n], in the order of the files."""
    stop = threading.Event()
    num_threads = min(len(paths), os.cpu_count() or 1)
    bar = tqdm.tqdm(
        desc=f"Checking {what}",
        total=sum(sizes),
        unit="B",
        unit_scale=True,
        delay=2,
        disable=None,
    )
    bar_lock = threading.Lock()

    def advance(num_bytes: int) -> None:
        with bar_lock:
            bar.update(num_bytes)

    with bar, concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        waiting = collections.deque()
        try:
            # Few at a time, so that what was found does not pile up in memory.
            for number, path in enumerate(paths):
                waiting.append(
                    pool.submit(_scan_file, number, path, parse, advance, stop)
                )
                if len(waiting) >= 2 * num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _scan_file(
    number: int,
    path: str,
    parse: Parse,
    advance: Callable[[int], None],
    stop: threading.Event,
) -> np.ndarray:
    """Finds and checks the records of one file.

    Args:
        number: Its position among the files.
        path: The file.
        parse: As for `build_index`.
        advance: Called with the number of bytes that are done, now and then.
        stop: Set when the outcome is of no use any more.

    Returns:
        `DTYPE`[n].

    Raises:
        errors.InvalidInputError: As `build_index` does.
    """
    found = []
    position = reported = 0

    def fail(problem: str) -> errors.InvalidInputError:
        return errors.InvalidInputError(
            f"{path}, record {len(found):,} (from byte {position:,}): {problem}."
        )

    serialized_records = iter(tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER))
    while not stop.is_set():
        try:
            serialized = next(serialized_records).numpy()
        except StopIteration:
            break
        except tf.errors.DataLossError as e:
            raise fail("the file is cut off or damaged here") from e
        except tf.errors.OpError as e:
            raise fail(f"the file cannot be read: {' '.join(e.message.split())}") from e
        try:
            label, encoded = parse(serialized)
        except ValueError as e:
            raise fail(str(e)) from e
        try:
            image_files.check(encoded)
        except ValueError as e:
            raise fail(f"its image {e}") from e
        found.append((number, position + HEADER_BYTES, len(serialized), label))
        position += HEADER_BYTES + len(serialized) + FOOTER_BYTES
        if len(found) % _RECORDS_PER_STEP == 0:
            advance(position - reported)
            reported = position
    advance(position - reported)
    if not stop.is_set():
        # TensorFlow takes a file that ends within the header of a record for whole.
        if position != os.path.getsize(path):
            raise fail("the file is cut off here")
        if not found:
            raise errors.InvalidInputError(
                f"{path}: found no record; expected at least one."
            )
    return np.array(found, DTYPE)
