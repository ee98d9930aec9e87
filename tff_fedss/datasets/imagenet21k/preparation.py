"""Preparation of ImageNet-21k: TFRecord shards from its class tars, which takes hours.

A class is finished when its progress file exists, with the lengths of its records and
the images that were left out. The bytes of the shards are a function of the images and
the seed alone, whatever the interruptions and the order of the classes.
`class_sizes.csv` is written last.
"""

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tff_fedss import files, progress
from tff_fedss.datasets import formats, sources
from tff_fedss.datasets.federated import record_writer
from tff_fedss.datasets.imagenet21k import class_tars, dataset
from tff_fedss.errors import InvalidInputError, RunStoppedError

_PROGRESS = "progress"


class UndecodableImagesError(RunStoppedError):
    """Some images cannot be decoded, and this is not allowed."""


class _Class(NamedTuple):
    """The content of a class's progress file.

    Attributes:
        lengths: For each split, the lengths of its records in bytes.
        undecodable: (name, reason) of each image that was left out.
    """

    lengths: dict[str, list[int]]
    undecodable: list[tuple[str, str]]


def choose_test(seed: int, names: Iterable[str]) -> set[str]:
    """Chooses a class's test images: round(0.2 n_c) of its n_c names, at random.

    "For every class we do a random 80-20 split" (FedSS, Appendix A.4). Each name,
    with the wnid in it, is hashed with the seed, and the smallest hashes are
    chosen. So the choice does not depend on the order in a tar, and one image more
    or less changes the split of at most one other.
    """
    hashed = sorted(
        (hashlib.sha256(f"{seed}/{name}".encode()).digest(), name) for name in names
    )
    return {name for _, name in hashed[: (2 * len(hashed) + 5) // 10]}


def prepare(
    archive: os.PathLike,
    output_dir: os.PathLike,
    *,
    seed: int = 0,
    workers: int | None = None,
    wnids: os.PathLike | None = None,
    allow_undecodable: bool = False,
) -> pathlib.Path:
    """Writes the missing shards and their metadata.

    Every image is decoded once to check it.

    Args:
        archive: A folder of class tars, a tar of them, or such a tar gzipped.
        output_dir: The folder for `imagenet21k/1.0.0`.
        seed: Seed of the split into training and test images.
        workers: Number of classes processed at once; None: one per core.
        wnids: A file with the wnid of every class; see `class_tars.open_archive`.
        allow_undecodable: Whether to leave out images that cannot be decoded. They are
            listed in dataset.UNDECODABLE_FILE in either case.

    Returns:
        The folder of the dataset.

    Raises:
        RunStoppedError: If the disk is full or the system forbids to write.
        UndecodableImagesError: If there are such images, and they are not allowed.
    """
    folder = pathlib.Path(output_dir) / dataset.NAME / dataset.VERSION
    before = files.read_if_there(folder / dataset.PREPARATION_FILE)
    before = {"seed": seed, "wnids": None} if before is None else json.loads(before)
    if before["seed"] != seed:
        what = f"another seed than {seed}: give another `output_dir`"
        raise InvalidInputError(f"{folder} has been prepared with {what}.")
    if (folder / dataset.CLASS_SIZES_FILE).exists():
        return folder
    known = class_tars.read_wnids(wnids) if wnids is not None else before["wnids"]
    tars = class_tars.open_archive(archive, known)
    run = json.dumps({"seed": seed, "wnids": tars.wnids}).encode()
    with record_writer.open_folder(folder, {dataset.PREPARATION_FILE: run}):
        os.makedirs(folder / _PROGRESS, exist_ok=True)
        workers = workers or len(os.sched_getaffinity(0))
        _write_classes(tars, folder, seed, workers, allow_undecodable)
        _describe(tars.wnids, folder, allow_undecodable)
        shutil.rmtree(folder / _PROGRESS)
    return folder


def _write_classes(
    archive: class_tars.Archive,
    folder: pathlib.Path,
    seed: int,
    workers: int,
    allow_undecodable: bool,
) -> None:
    label_of = {wnid: label for label, wnid in enumerate(archive.wnids)}

    def work(tar: class_tars.ClassTar) -> None:
        written = _write_class(tar, folder, label_of[tar.wnid], len(label_of), seed)
        if tar.is_copy:
            tar.path.unlink()
        content = json.dumps(written._asdict()).encode()
        files.write(_class_file(folder, tar.wnid), content)

    def is_done(wnid: str) -> bool:
        content = files.read_if_there(_class_file(folder, wnid))
        if content is None:
            return False
        # Its tar may have been replaced by a whole one.
        return allow_undecodable or not json.loads(content)["undecodable"]

    done = set(filter(is_done, archive.wnids))
    tars = archive.read(folder / _PROGRESS, done)
    num_left = len(archive.wnids) - len(done)
    with progress.bar("Preparing ImageNet-21k", num_left, "classes") as bar:
        for _ in record_writer.in_threads(work, tars, workers):
            bar.update()


def _write_class(
    tar: class_tars.ClassTar,
    folder: pathlib.Path,
    label: int,
    num_classes: int,
    seed: int,
) -> _Class:
    """Checks a class's images in the order of its tar, then writes them by name."""
    places, undecodable = tar.images(), []

    def read(name: str) -> bytes:
        with sources.reading(f"{tar.label}: {name}"):
            return sources.read_part(tar.path, *places[name])

    for name in list(places):
        content = read(name)
        try:
            formats.check(content)
        except ValueError as e:
            undecodable.append((name, str(e)))
            del places[name]
    test = choose_test(seed, places)
    names = {"train": sorted(places.keys() - test), "test": sorted(test)}
    lengths = {
        split: record_writer.write_records(
            folder / dataset.shard_name(split, label, num_classes),
            (_example(read(name), label, name) for name in names[split]),
        )
        for split in dataset.SPLITS
    }
    return _Class(lengths, sorted(undecodable))


def _example(encoded: bytes, label: int, name: str) -> bytes:
    """Serializes an image in TFDS's form."""
    return record_writer.example(
        {"file_name": name.encode(), "image": encoded, "label": label}
    )


def _describe(wnids: list[str], folder: pathlib.Path, allow_undecodable: bool) -> None:
    """Writes the index, TFDS's metadata, and the sizes of the classes.

    Raises:
        UndecodableImagesError: If there are such images, and they are not allowed.
    """
    classes = [
        _Class(**json.loads(_class_file(folder, wnid).read_bytes())) for wnid in wnids
    ]
    undecodable = [
        (f"{wnid}.tar", *row)
        for wnid, written in zip(wnids, classes, strict=True)
        for row in written.undecodable
    ]
    lengths = {
        split: [written.lengths[split] for written in classes]
        for split in dataset.SPLITS
    }
    sizes = {split: list(map(len, lengths[split])) for split in dataset.SPLITS}
    rows = [("tar", "member", "reason"), *undecodable]
    listing = folder / dataset.UNDECODABLE_FILE
    files.write_text(listing, files.csv_text(rows))
    if undecodable and not allow_undecodable:
        total = len(undecodable) + sum(map(sum, sizes.values()))
        raise UndecodableImagesError(
            f"{len(undecodable):,} of {total:,} images cannot be decoded: see {listing}"
            ". The same command reads their tars again, or, with `allow_undecodable`, "
            "finishes without them."
        )
    with files.replacing(folder / dataset.INDEX_FILE) as temporary:
        arrays = {
            split: np.concatenate([np.array(x, np.int64) for x in lengths[split]])
            for split in dataset.SPLITS
        }
        files.write_npz(temporary, arrays)
    _write_metadata(wnids, folder, lengths)
    table = zip(wnids, sizes["train"], sizes["test"], strict=True)
    text = files.csv_text([("wnid", *dataset.SPLITS), *table])
    files.write_text(folder / dataset.CLASS_SIZES_FILE, text)


def _write_metadata(
    wnids: list[str], folder: pathlib.Path, lengths: dict[str, list[list[int]]]
) -> None:
    """Writes the files that TFDS needs to read the shards without our code."""
    import tensorflow_datasets as tfds  # Slow to import.

    with files.writing(folder):
        tfds.folder_dataset.write_metadata(
            data_dir=folder,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(),
                    "label": tfds.features.ClassLabel(names=wnids),
                    "file_name": tfds.features.Text(),
                }
            ),
            split_infos=[
                tfds.core.SplitInfo(
                    name=split,
                    shard_lengths=list(map(len, lengths[split])),
                    num_bytes=sum(map(sum, lengths[split])),
                )
                for split in dataset.SPLITS
            ],
            check_data=False,
            supervised_keys=("image", "label"),
            description=(
                "ImageNet-21k, with a random fifth of every class as its test images. "
                "Labels are the wnids in alphabetical order. A shard has one class."
            ),
            homepage="https://www.image-net.org/",
            citation=(
                "Deng, Dong, Socher, Li, Li and Fei-Fei. ImageNet: A large-scale "
                "hierarchical image database. CVPR, 2009."
            ),
        )


def _class_file(folder: pathlib.Path, wnid: str) -> pathlib.Path:
    return folder / _PROGRESS / f"{wnid}.json"
