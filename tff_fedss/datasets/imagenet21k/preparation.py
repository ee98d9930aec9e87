"""Writes ImageNet-21k's shards from its class tars, which takes hours.

So it is made to be interrupted: a class is one piece of work, and what has been written
of it is kept by `record_writer`. Nothing is shuffled or written twice, so that the disk
holds no more than the result, but for a few classes; and the bytes are a function of
the images and the seed alone, however often the work was interrupted and in whatever
order the classes came.

What is known of a class, beside its shards, is in a progress file of its own: the
lengths of its records, from which the index of all of them follows without reading the
shards again, and the images that were left out.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tff_fedss import files
from tff_fedss.datasets import formats
from tff_fedss.datasets.federated import record_index, record_writer
from tff_fedss.datasets.imagenet21k import class_tars, shards
from tff_fedss.errors import RunStoppedError

_FORMAT = 1
_PROGRESS = "progress"


class UndecodableImagesError(RunStoppedError):
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


def is_test(seed: int, names: Iterable[str]) -> set[str]:
    """Chooses a class's test images: every fifth, at random.

    Each name is hashed with the seed, and those with the smallest hashes are taken. So
    the choice depends on nothing else, not on the order in a tar; and an image that is
    left out or added changes the side of at most one other.

    Args:
        seed: Which split.
        names: The names of the class's images, which have the wnid in them.

    Returns:
        `shards.num_test` of the names.
    """
    hashed = sorted(
        (hashlib.sha256(f"{seed}/{name}".encode()).digest(), name) for name in names
    )
    return {name for _, name in hashed[: shards.num_test(len(hashed))]}


def write(
    archive: class_tars.Archive,
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
            are listed in shards.UNDECODABLE_FILE in either case.

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
    run = {"format": _FORMAT, "seed": seed, "wnids": archive.wnids}
    with record_writer.open_folder(
        folder,
        ledger=f"{_PROGRESS}/finished.csv",
        scratch=f"{_PROGRESS}/unfinished",
        run={shards.PREPARATION_FILE: json.dumps(run).encode()},
        refusal=lambda _: _difference(folder, run),
    ) as writer:
        for copy in progress_folder(folder).glob("*.tar"):
            copy.unlink()
        _write_classes(archive, folder, writer, seed, workers)
        summary = _describe(archive, folder)
    if summary.num_undecodable and not allow_undecodable:
        raise UndecodableImagesError(
            f"{summary.num_undecodable:,} of "
            f"{summary.num_undecodable + sum(map(sum, summary.sizes.values())):,} "
            "images cannot be decoded; they are listed in "
            f"{folder / shards.UNDECODABLE_FILE}. Everything else is written: run the "
            "same command with `allow_undecodable` to finish without them."
        )
    return summary


def progress_folder(folder: os.PathLike) -> pathlib.Path:
    """Returns where things are kept until everything is written."""
    return pathlib.Path(folder) / _PROGRESS


def delete_progress(folder: os.PathLike) -> None:
    """Deletes what was only needed to resume."""
    progress = progress_folder(folder)
    if progress.exists():
        with files.writing(progress):
            shutil.rmtree(progress)


@dataclasses.dataclass(frozen=True)
class _Class:
    """A class as it is written to its progress file.

    Attributes:
        lengths: For each split, the lengths of its records in bytes.
        undecodable: (name, reason) of each image that was left out.
    """

    lengths: dict[str, list[int]]
    undecodable: list[tuple[str, str]]


def _write_classes(
    archive: class_tars.Archive,
    folder: pathlib.Path,
    writer: record_writer.RecordWriter,
    seed: int,
    workers: int,
) -> None:
    num_classes = len(archive.wnids)
    shards_of = {
        wnid: {
            split: shards.shard_name(split, label, num_classes)
            for split in shards.SPLITS
        }
        for label, wnid in enumerate(archive.wnids)
    }
    label_of = {wnid: label for label, wnid in enumerate(archive.wnids)}

    def is_done(wnid: str, tar_size: int) -> bool:
        return _read_class(folder, wnid) is not None and all(
            writer.is_finished(shard, _digest(wnid, tar_size))
            for shard in shards_of[wnid].values()
        )

    def work(piece: tuple[class_tars.ClassTar, int]) -> int:
        tar, _ = piece
        names = shards_of[tar.wnid]
        written = _write_class(tar, writer, names, label_of[tar.wnid], seed)
        tar.delete_copy()
        content = json.dumps(dataclasses.asdict(written)).encode()
        files.write(_class_file(folder, tar.wnid), content)
        for split, lengths in written.lengths.items():
            writer.enter(names[split], len(lengths), _digest(tar.wnid, tar.size))
        return sum(map(len, written.lengths.values()))

    def to_do() -> Iterator[tuple[class_tars.ClassTar, int]]:
        for tar, step in archive.class_tars(progress_folder(folder), is_done):
            if tar is None:
                bar.skip(step)
            else:
                yield tar, step

    with record_writer.Progress(
        "Preparing ImageNet-21k", archive.num_bytes, "B", unit_scale=True
    ) as bar:
        for (_, step), num_images in writer.run(work, to_do(), workers):
            bar.add(step, num_images)


def _digest(wnid: str, tar_size: int) -> str:
    """Of what a class's shards are made from, apart from the seed."""
    return hashlib.md5(f"{wnid}.tar,{tar_size}".encode()).hexdigest()


def _write_class(
    tar: class_tars.ClassTar,
    writer: record_writer.RecordWriter,
    shard_names: Mapping[str, str],
    label: int,
    seed: int,
) -> _Class:
    """Checks a class's images in the order of its tar, then writes them by name."""
    places, undecodable = {}, []
    for image in tar.images():
        try:
            formats.check(image.content)
        except ValueError as e:
            undecodable.append((image.name, str(e)))
        else:
            places[image.name] = image.offset, len(image.content)
    test = is_test(seed, places)
    names = {"train": sorted(places.keys() - test), "test": sorted(test)}
    with tar.reader() as read:
        lengths = {
            split: writer.write(
                shard_names[split],
                (_example(read(*places[n]), label, n) for n in names[split]),
            )
            for split in shards.SPLITS
        }
    return _Class(lengths, sorted(undecodable))


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


def _describe(archive: class_tars.Archive, folder: pathlib.Path) -> Summary:
    """Writes the index, the sizes of the classes and the list of undecodable images."""
    sizes = {split: np.zeros(len(archive.wnids), np.int64) for split in shards.SPLITS}
    num_bytes = dict.fromkeys(shards.SPLITS, 0)
    undecodable = []
    for label, wnid in enumerate(archive.wnids):
        written = _read_class(folder, wnid)
        for split in shards.SPLITS:
            sizes[split][label] = len(written.lengths[split])
            num_bytes[split] += sum(written.lengths[split])
        undecodable += [(f"{wnid}.tar", *row) for row in written.undecodable]
    for split in shards.SPLITS:
        _write_index(archive.wnids, folder, split)
    rows = zip(archive.wnids, sizes["train"], sizes["test"], strict=True)
    _write_csv(folder / shards.CLASS_SIZES_FILE, ("wnid", *shards.SPLITS), rows)
    _write_csv(
        folder / shards.UNDECODABLE_FILE, ("tar", "member", "reason"), undecodable
    )
    return Summary(sizes, num_bytes, len(undecodable))


def _write_index(wnids: list[str], folder: pathlib.Path, split: str) -> None:
    with (
        files.replacing(folder / shards.index_name(split)) as temporary,
        open(temporary, "wb") as file,
    ):
        for label, wnid in enumerate(wnids):
            lengths = np.array(_read_class(folder, wnid).lengths[split], np.int64)
            rows = np.empty(len(lengths), record_index.DTYPE)
            framed = lengths + (record_index.HEADER_BYTES + record_index.FOOTER_BYTES)
            rows["file"] = rows["label"] = label
            rows["offset"] = np.cumsum(framed) - framed + record_index.HEADER_BYTES
            rows["length"] = lengths
            file.write(rows.tobytes())


def _write_csv(path: pathlib.Path, header: Sequence[str], rows: Iterable) -> None:
    files.write_text(path, record_writer.csv_text([header, *rows]))


def _class_file(folder: pathlib.Path, wnid: str) -> pathlib.Path:
    return progress_folder(folder) / f"{wnid}.json"


def _read_class(folder: pathlib.Path, wnid: str) -> _Class | None:
    try:
        return _Class(**json.loads(_class_file(folder, wnid).read_text()))
    except (OSError, ValueError, TypeError):
        # Not there yet; or cut off, as a power failure may leave it.
        return None


def _difference(folder: pathlib.Path, ours: Mapping[str, object]) -> str | None:
    """Says in what the shards of a folder differ from those to come."""
    theirs = shards.read_preparation(folder)
    for key, value in ours.items():
        if theirs.get(key) != value:
            found, wanted = theirs.get(key), value
            if key == "wnids":
                found, wanted = (f"{len(x):,} classes" for x in (found, wanted))
                key = "other classes"
            return (
                f"{folder} has unfinished shards of {key}: {found}, now {wanted}. Give "
                "the same `archive` and `seed`, or delete the folder."
            )
    return None
