"""ImageNet-21k as TFRecord shards: for every class one of training, one of test images.

A terabyte takes hours to write, so this is made to be interrupted. A class is one piece
of work: its two shards are written under other names, renamed, and then entered in a
progress file of its own. What has such a file, and shards of the sizes it says, is not
written again. Nothing is shuffled or written twice, so that the disk holds no more than
the result, but for a few classes; and the bytes are a function of the images and the
seed alone, however often the work was interrupted and in whatever order the classes
came.

As shards never mix classes, the index of all records follows from the lengths in the
progress files, without reading the shards again.
"""

import concurrent.futures
import contextlib
import csv
import dataclasses
import fcntl
import hashlib
import io
import json
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf
import tqdm

from tff_fedss import errors, files
from tff_fedss.datasets import image_files, imagenet21k_archive, records

NAME = "imagenet21k"
VERSION = "1.0.0"
SPLITS = ("train", "test")
PREPARATION_FILE = "preparation.json"
CLASS_SIZES_FILE = "class_sizes.csv"
UNDECODABLE_FILE = "undecodable.csv"
_FORMAT = 1
_NUMBER = re.compile("[0-9]{1,9}")  # of images of a class

# A TFRecord is its payload's length, a checksum of that, the payload, and its checksum.
_HEADER_BYTES = 12
_FOOTER_BYTES = 4
_ROWS_AT_A_TIME = 1 << 20


class UndecodableImagesError(errors.RunStoppedError):
    """Some images cannot be decoded, and nobody has said that this is all right.

    The message is one line; everything else has been written.
    """


@dataclasses.dataclass(frozen=True)
class Summary:
    """What has been written.

    Attributes:
        sizes: For each split, how many images each class has, int64[n].
        num_bytes: For each split, the sum of the sizes of its records, without framing.
        num_undecodable: How many images were left out.
    """

    sizes: dict[str, np.ndarray]
    num_bytes: dict[str, int]
    num_undecodable: int


def shard_name(split: str, label: int, num_classes: int) -> str:
    """Returns the name of a shard's file, which is as TFDS expects it."""
    digits = max(5, len(str(num_classes)))
    return f"{NAME}-{split}.tfrecord-{label:0{digits}}-of-{num_classes:0{digits}}"


def index_name(split: str) -> str:
    """Returns the name of the file that says where each record of a split is.

    It is an array of `records.DTYPE`, in the order of the labels and, in a class, of
    the file names. `file` is the label too: the number of the shard.
    """
    return f"{split}.index"


def is_test(seed: int, names: Iterable[str]) -> set[str]:
    """Chooses a class's test images: every fifth, at random.

    Each name is hashed with the seed, and those with the smallest hashes are taken. So
    the choice depends on nothing else, not on the order in a tar; and an image that is
    left out or added changes the side of at most one other.

    Args:
        seed: Which split.
        names: The names of the class's images, which have the wnid in them.

    Returns:
        `num_test` of the names.
    """
    hashed = sorted(
        (hashlib.sha256(f"{seed}/{name}".encode()).digest(), name) for name in names
    )
    return {name for _, name in hashed[: num_test(len(hashed))]}


def num_test(num_images: int | np.ndarray) -> int | np.ndarray:
    """Says how many of a class's images are for the test.

    "For every class we do a random 80-20 split" (FedSS, Appendix A.4).

    Args:
        num_images: n_c, of one class or of many, int64[n].

    Returns:
        round(0.2 * n_c), in whole numbers; so a class of one or two has none.
    """
    return (2 * num_images + 5) // 10


def write(
    archive: imagenet21k_archive.Archive,
    folder: os.PathLike,
    *,
    seed: int,
    workers: int,
    allow_undecodable: bool,
) -> Summary:
    """Writes the shards, or those that are still missing, and what describes them.

    Every image is decoded once to check it.

    Args:
        archive: Where the images come from.
        folder: Where to write; made if it is not there.
        seed: Which split.
        workers: How many classes are worked on at once.
        allow_undecodable: Whether to go on without images that cannot be decoded. They
            are listed in UNDECODABLE_FILE in either case.

    Returns:
        What there is now.

    Raises:
        errors.InvalidInputError: If an image file is not where it should be, a tar is
            damaged, the folder has shards of another split or of other classes, or
            cannot be one.
        errors.RunStoppedError: If the disk is full or the system forbids to write.
        UndecodableImagesError: If there are such images, and they are not allowed.
    """
    folder = pathlib.Path(folder)
    progress = progress_folder(folder)
    files.make_folder(progress)
    with _locked(folder):
        _check_preparation(folder, seed, archive.wnids)
        _delete_leftovers(progress)
        _write_classes(archive, folder, seed, workers)
        summary = _describe(archive, folder)
    if summary.num_undecodable and not allow_undecodable:
        raise UndecodableImagesError(
            f"{summary.num_undecodable:,} of "
            f"{summary.num_undecodable + sum(map(sum, summary.sizes.values())):,} "
            "images cannot be decoded; they are listed in "
            f"{folder / UNDECODABLE_FILE}. Everything else is written: run the same "
            "command with `allow_undecodable` to finish without them."
        )
    return summary


def read_preparation(folder: os.PathLike) -> dict:
    """Returns what was prepared: `{"format", "seed", "wnids"}`.

    Args:
        folder: Where shards are, all or some.

    Raises:
        errors.InvalidInputError: If nothing was prepared there.
    """
    path = pathlib.Path(folder) / PREPARATION_FILE
    try:
        preparation = json.loads(files.read(path))
        if not isinstance(preparation.get("wnids"), list):
            raise ValueError("it has no list of wnids")
        return preparation
    except (OSError, ValueError, AttributeError) as e:
        reason = getattr(e, "strerror", None) or files.one_line(e)
        raise errors.InvalidInputError(
            f"{path}, which says what has been prepared, cannot be read: {reason}."
        ) from e


def progress_folder(folder: os.PathLike) -> pathlib.Path:
    """Returns where things are kept until everything is written."""
    return pathlib.Path(folder) / "progress"


def delete_progress(folder: os.PathLike) -> None:
    """Deletes what was only needed to resume."""
    progress = progress_folder(folder)
    if progress.exists():
        for path in progress.iterdir():
            path.unlink()
        progress.rmdir()


def verify(folder: os.PathLike) -> None:
    """Reads all shards again and compares their checksums, which takes hours.

    Args:
        folder: Where all shards are.

    Raises:
        errors.InvalidInputError: If a record is damaged or is not where it should be.
    """
    folder = pathlib.Path(folder)
    num_classes = len(read_preparation(folder)["wnids"])
    for split in SPLITS:
        expected = open_index(folder, split).records
        labels = np.unique(expected["label"])
        paths = [folder / shard_name(split, label, num_classes) for label in labels]
        with tempfile.TemporaryDirectory() as temporary:
            found = records.build_index(
                paths,
                records.example_parser("image", "label", num_classes),
                cache_dir=temporary,
                what=f"{NAME} {split}",
            ).records
            for field in ("offset", "length", "label"):
                if not np.array_equal(found[field], expected[field]):
                    raise errors.InvalidInputError(
                        f"{folder}: the {split} shards are not those of "
                        f"{index_name(split)}: prepare them again."
                    )


def open_index(folder: os.PathLike, split: str) -> records.RecordIndex:
    """Opens the index of a split, and checks that its shards are there, whole.

    Args:
        folder: Where all shards are.
        split: "train" or "test".

    Returns:
        The index: a view of a file, so nothing per image is in memory.

    Raises:
        errors.InvalidInputError: If a file is missing or has another size than it was
            written with.
    """
    folder = pathlib.Path(folder).absolute()
    sizes = read_class_sizes(folder)[split]
    path = folder / index_name(split)
    found = _size(path)
    wanted = int(sizes.sum()) * records.DTYPE.itemsize
    if found != wanted or not wanted:
        raise errors.InvalidInputError(
            f"{path} has {found} bytes; expected {wanted:,}, for {sizes.sum():,} "
            "images, at least one."
        )
    index = np.memmap(path, records.DTYPE, mode="r")
    _check_index(path, index, sizes)
    last = index[np.cumsum(sizes)[sizes > 0] - 1]
    file_sizes = np.zeros(len(sizes), np.int64)
    file_sizes[sizes > 0] = last["offset"] + last["length"] + _FOOTER_BYTES
    paths = [
        folder / shard_name(split, label, len(sizes)) for label in range(len(sizes))
    ]
    for shard, wanted in zip(paths, file_sizes, strict=True):
        if (found := _size(shard)) != wanted:
            raise errors.InvalidInputError(
                f"{shard} is missing."
                if found is None
                else f"{shard} has {found:,} bytes; expected {wanted:,}: it is cut off "
                "or was changed."
            )
    return records.RecordIndex(tuple(map(str, paths)), index)


def _check_index(path: pathlib.Path, index: np.ndarray, sizes: np.ndarray) -> None:
    """Checks what an index must be: shard after shard, record after record in each."""
    ends = np.cumsum(sizes)
    for start in range(0, len(index), _ROWS_AT_A_TIME):
        rows = np.arange(start, min(start + _ROWS_AT_A_TIME, len(index)))
        found = index[rows]
        label = np.searchsorted(ends, rows, "right")
        before = index[np.maximum(rows - 1, 0)]
        follows = before["offset"] + before["length"] + _FOOTER_BYTES + _HEADER_BYTES
        is_first = rows == ends[label] - sizes[label]
        is_good = (
            (found["label"] == label)
            & (found["file"] == label)
            & (found["length"] > 0)
            & (found["offset"] == np.where(is_first, _HEADER_BYTES, follows))
        )
        if not is_good.all():
            row = rows[np.argmin(is_good)]
            raise errors.InvalidInputError(
                f"{path} is damaged: record {row:,} is not where it should be. Prepare "
                "the data set again."
            )


def read_class_sizes(folder: os.PathLike) -> dict[str, np.ndarray]:
    """Reads how many images each class has, without touching an image.

    Args:
        folder: Where all shards are, or just CLASS_SIZES_FILE.

    Returns:
        For each split int64[n], in the order of the labels.

    Raises:
        errors.InvalidInputError: If the file is missing or not as it was written.
    """
    path = pathlib.Path(folder) / CLASS_SIZES_FILE
    header = ("wnid", *SPLITS)
    try:
        text = files.read(path).decode()
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (OSError, ValueError, csv.Error) as e:
        reason = getattr(e, "strerror", None) or files.one_line(e)
        raise errors.InvalidInputError(f"{path} cannot be read: {reason}.") from e
    if not rows or tuple(rows[0]) != header or len(rows) < 2:
        raise errors.InvalidInputError(
            f"{path}, line 1: expected the columns {','.join(header)}, and classes "
            "below."
        )
    sizes, lines = np.empty((len(rows) - 1, len(SPLITS)), np.int64), {}
    for number, row in enumerate(rows[1:]):
        if len(row) != len(header) or not all(map(_NUMBER.fullmatch, row[1:])):
            raise errors.InvalidInputError(
                f"{path}, line {number + 2}: found {','.join(row)!r}; expected a wnid "
                "and two numbers of images."
            )
        if row[0] in lines:
            raise errors.InvalidInputError(
                f"{path}, line {number + 2}: the class {row[0]!r} is already in line "
                f"{lines[row[0]]}."
            )
        lines[row[0]] = number + 2
        sizes[number] = train, test = int(row[1]), int(row[2])
        if test != num_test(train + test):
            raise errors.InvalidInputError(
                f"{path}, line {number + 2}: {test} of {train + test} images are for "
                f"the test; expected {num_test(train + test)}."
            )
    return dict(zip(SPLITS, sizes.T.copy(), strict=True))


@dataclasses.dataclass(frozen=True)
class _Class:
    """A class as it is written to its progress file.

    Attributes:
        tar_size: The size of its tar in bytes.
        lengths: For each split, the lengths of its records in bytes.
        undecodable: (name, reason) of each image that was left out.
    """

    tar_size: int
    lengths: dict[str, list[int]]
    undecodable: list[tuple[str, str]]

    def file_size(self, split: str) -> int:
        lengths = self.lengths[split]
        return sum(lengths) + len(lengths) * (_HEADER_BYTES + _FOOTER_BYTES)

    @property
    def num_images(self) -> int:
        return sum(map(len, self.lengths.values()))


def _write_classes(
    archive: imagenet21k_archive.Archive, folder: pathlib.Path, seed: int, workers: int
) -> None:
    num_classes = len(archive.wnids)
    label_of = {wnid: label for label, wnid in enumerate(archive.wnids)}

    def is_done(wnid: str, tar_size: int) -> bool:
        done = _read_class(folder, wnid)
        return (
            done is not None
            and done.tar_size == tar_size
            and all(
                _size(folder / shard_name(split, label_of[wnid], num_classes))
                == done.file_size(split)
                for split in SPLITS
            )
        )

    def work(tar: imagenet21k_archive.ClassTar, step: int) -> tuple[int, int]:
        written = _write_class(tar, folder, label_of[tar.wnid], num_classes, seed)
        return step, written.num_images

    bar = _Bar(archive.num_bytes)
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    pending = set()
    try:
        with bar:
            for tar, step in archive.class_tars(progress_folder(folder), is_done):
                if tar is None:
                    bar.skip(step)
                    continue
                pending.add(pool.submit(work, tar, step))
                # So that copies of class tars do not pile up.
                while len(pending) > workers:
                    pending = _collect(pending, bar)
            while pending:
                pending = _collect(pending, bar)
    finally:
        pool.shutdown(cancel_futures=True)


def _collect(pending: set, bar: "_Bar") -> set:
    done, pending = concurrent.futures.wait(
        pending, return_when=concurrent.futures.FIRST_COMPLETED
    )
    for future in done:
        bar.add(*future.result())
    return pending


class _Bar:
    """Progress in bytes of the archive, for the time left, and images a second."""

    def __init__(self, num_bytes: int):
        self._bar = tqdm.tqdm(
            desc="Preparing ImageNet-21k",
            total=num_bytes,
            unit="B",
            unit_scale=True,
            delay=2,
            smoothing=0.01,
            disable=None,
        )
        self._num_images = 0
        self._start = time.monotonic()

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def skip(self, step: int) -> None:
        # What was done before says nothing about the speed.
        if not self._bar.disable:
            self._bar.initial += step
            self._bar.n += step

    def add(self, step: int, num_images: int) -> None:
        self._num_images += num_images
        rate = self._num_images / max(time.monotonic() - self._start, 1e-9)
        self._bar.set_postfix_str(
            f"{self._num_images:,} images, {rate:,.0f} images/s", refresh=False
        )
        self._bar.update(step)


def _write_class(
    tar: imagenet21k_archive.ClassTar,
    folder: pathlib.Path,
    label: int,
    num_classes: int,
    seed: int,
) -> _Class:
    """Checks a class's images in the order of its tar, then writes them by name."""
    places, undecodable = {}, []
    for image in tar.images():
        try:
            image_files.check(image.content)
        except ValueError as e:
            undecodable.append((image.name, str(e)))
        else:
            places[image.name] = image.offset, len(image.content)
    test = is_test(seed, places)
    names = {
        "train": sorted(places.keys() - test),
        "test": sorted(test),
    }
    lengths = {}
    progress = progress_folder(folder)
    with tar.reader() as read:
        for split in SPLITS:
            temporary = progress / f"{tar.wnid}.{split}"
            with _tensorflow_writable(temporary):
                lengths[split] = _write_records(
                    temporary,
                    (_example(read(*places[n]), label, n) for n in names[split]),
                )
            shard = folder / shard_name(split, label, num_classes)
            with files.writing(shard):
                os.replace(temporary, shard)
    tar.delete_copy()
    written = _Class(tar.size, lengths, sorted(undecodable))
    files.write(
        _class_file(folder, tar.wnid),
        json.dumps(dataclasses.asdict(written)).encode(),
    )
    return written


def _write_records(path: pathlib.Path, payloads: Iterable[bytes]) -> list[int]:
    lengths = []
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
            lengths.append(len(payload))
    return lengths


def _example(encoded: bytes, label: int, name: str) -> bytes:
    """Serializes an image as TFDS reads it back."""

    def feature(value: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                "file_name": feature(name.encode()),
                "image": feature(encoded),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
        )
    )
    # Or the three would come in another order from run to run.
    return example.SerializeToString(deterministic=True)


def _describe(archive: imagenet21k_archive.Archive, folder: pathlib.Path) -> Summary:
    """Writes the index, the sizes of the classes and the list of undecodable images."""
    sizes = {split: np.zeros(len(archive.wnids), np.int64) for split in SPLITS}
    num_bytes = dict.fromkeys(SPLITS, 0)
    undecodable = []
    for label, wnid in enumerate(archive.wnids):
        written = _read_class(folder, wnid)
        for split in SPLITS:
            sizes[split][label] = len(written.lengths[split])
            num_bytes[split] += sum(written.lengths[split])
        undecodable += [(f"{wnid}.tar", *row) for row in written.undecodable]
    for split in SPLITS:
        _write_index(archive.wnids, folder, split)
    rows = zip(archive.wnids, sizes["train"], sizes["test"], strict=True)
    _write_csv(folder / CLASS_SIZES_FILE, ("wnid", *SPLITS), rows)
    _write_csv(folder / UNDECODABLE_FILE, ("tar", "member", "reason"), undecodable)
    return Summary(sizes, num_bytes, len(undecodable))


def _write_index(wnids: list[str], folder: pathlib.Path, split: str) -> None:
    path = folder / index_name(split)
    temporary = path.with_name(f"{path.name}.tmp")
    with files.writing(path):
        with open(temporary, "wb") as file:
            for label, wnid in enumerate(wnids):
                lengths = np.array(_read_class(folder, wnid).lengths[split], np.int64)
                rows = np.empty(len(lengths), records.DTYPE)
                framed = lengths + (_HEADER_BYTES + _FOOTER_BYTES)
                rows["file"] = rows["label"] = label
                rows["offset"] = np.cumsum(framed) - framed + _HEADER_BYTES
                rows["length"] = lengths
                file.write(rows.tobytes())
        os.replace(temporary, path)


def _write_csv(path: pathlib.Path, header: Iterable[str], rows: Iterable) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    files.write(path, text.getvalue().encode())


def _class_file(folder: pathlib.Path, wnid: str) -> pathlib.Path:
    return progress_folder(folder) / f"{wnid}.json"


def _read_class(folder: pathlib.Path, wnid: str) -> _Class | None:
    try:
        return _Class(**json.loads(_class_file(folder, wnid).read_text()))
    except (OSError, ValueError, TypeError):
        # Not there yet; or cut off, as a power failure may leave it.
        return None


def _size(path: pathlib.Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _check_preparation(folder: pathlib.Path, seed: int, wnids: list[str]) -> None:
    """Checks that the shards of a folder are of the same kind as those to come."""
    path = folder / PREPARATION_FILE
    ours = {"format": _FORMAT, "seed": seed, "wnids": wnids}
    if not path.exists():
        files.write(path, json.dumps(ours).encode())
        return
    theirs = read_preparation(folder)
    for key, value in ours.items():
        if theirs.get(key) != value:
            found, wanted = theirs.get(key), value
            if key == "wnids":
                found, wanted = (f"{len(x):,} classes" for x in (found, wanted))
                key = "other classes"
            raise errors.InvalidInputError(
                f"{folder} has unfinished shards of {key}: {found}, now {wanted}. Give "
                "the same `archive` and `seed`, or delete the folder."
            )


def _delete_leftovers(progress: pathlib.Path) -> None:
    for path in progress.iterdir():
        if path.suffix != ".json" and not path.name.startswith("."):
            path.unlink()


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Keeps a second program out; the lock ends with this one, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise errors.InvalidInputError(
                f"Another program is writing to {folder}."
            ) from e
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _tensorflow_writable(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as e:
        raise files.refusal(e, path, "cannot be written") from e
