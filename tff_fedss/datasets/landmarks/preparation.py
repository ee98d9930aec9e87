"""Makes the files of a landmarks data set, which may be interrupted at any time.

A file per client, and one of the test images. The latter is made of parts, so that its
images too are read in parallel and are not read again after an interruption. How they
are written, and what is not written again, is `record_writer`'s.
"""

import collections
import contextlib
import dataclasses
import hashlib
import pathlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tff_fedss import files
from tff_fedss.datasets.federated import record_writer, split_csv
from tff_fedss.datasets.landmarks import image_sources, splits
from tff_fedss.datasets.landmarks.layout import (
    REJECTED_COLUMNS,
    REJECTED_FILE,
    TEST_FILE,
    TEST_OWNER,
    TRAIN_FOLDER,
    to_record,
)
from tff_fedss.errors import InvalidInputError, RunStoppedError

_LEDGER = "finished.csv"
# Folders that are gone when everything is done. None is in `train`, where TFF takes
# every file for a client.
_UNFINISHED = ".unfinished"
_PARTS = ".parts"
_SHARD_INDEX = ".shards"
_IMAGES_PER_PART = 500


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user says; an attribute is the flag of its name.

    Attributes:
        output_dir: Where to write: the folder for `gld160k` or `gld23k`.
        split: Which of `splits.SPLITS`.
        split_dir: The folder or the zip with both CSV files of the split.
        train_csv: Instead: the clients' file.
        test_csv: And the test images' file.
        image_dir: The folder of images.
        shard_dir: Instead: the folder of the original archives.
        threads: How many images to read at a time; None: twice as many as cores.
        allow_missing: Whether images that are missing or damaged are left out.
        allow_other_split: Whether the CSV files may be others than those published.
    """

    output_dir: str | None
    split: str = "160k"
    split_dir: str | None = None
    train_csv: str | None = None
    test_csv: str | None = None
    image_dir: str | None = None
    shard_dir: str | None = None
    threads: int | None = None
    allow_missing: bool = False
    allow_other_split: bool = False

    @property
    def published(self) -> splits.Published:
        """What is known of the split."""
        return splits.SPLITS[self.split]

    @property
    def folder(self) -> pathlib.Path:
        """The folder that is written."""
        return pathlib.Path(self.output_dir) / self.published.folder


def prepare(options: Options) -> None:
    """Prepares the data set and prints what there is.

    Args:
        options: What, from where, and to where.

    Raises:
        InvalidInputError: If an option or a file cannot be used.
        RunStoppedError: If the disk is full, the system forbids to write, or images are
            missing or damaged which may not be.
    """
    published = options.published
    if not options.output_dir:
        raise InvalidInputError(
            f"`output_dir` must say where to write {published.folder}."
        )
    image_sources.check_choice(options.image_dir, options.shard_dir)
    split = splits.read_split(
        published,
        split_dir=options.split_dir,
        train_csv=options.train_csv,
        test_csv=options.test_csv,
        allow_other_split=options.allow_other_split,
    )
    image_sources.check(options.image_dir, options.shard_dir)
    folder, name = options.folder, f"output_dir={options.output_dir}"
    with (
        files.writing(name),
        record_writer.open_folder(
            folder,
            ledger=_LEDGER,
            scratch=_UNFINISHED,
            # So that it is known later, too, what the data should be.
            run={
                published.train_csv: split.train_csv,
                published.test_csv: split.test_csv,
            },
            refusal=lambda file: (
                f"{folder / file} is not the {file} that you gave: the folder is of "
                "another split. Give another `output_dir`, or remove the folder."
            ),
            name=name,
        ) as writer,
    ):
        preparation = _Preparation(folder, writer, split, options.allow_missing)
        rejected = []
        if not preparation.is_finished():
            images = _open_images(options, split)
            rejected = preparation.run(images, options.threads)
        preparation.close(rejected)
    _report(options, split, rejected, preparation.empty_owners(rejected))


def _open_images(options: Options, split: splits.SplitFiles) -> image_sources.Images:
    if options.image_dir is not None:
        return image_sources.FolderOfImages(pathlib.Path(options.image_dir))
    return image_sources.ShardsOfImages(
        pathlib.Path(options.shard_dir),
        [*split.train.image_ids, *split.test.image_ids],
        options.folder / _SHARD_INDEX,
    )


class _Unit(NamedTuple):
    """A file to write: one client's, or a part of the test file.

    Attributes:
        file: Its path in the output folder.
        owner: The client, or `TEST_OWNER`.
        image_ids: Its images, in order.
        classes: Theirs.
        digest: Of what is to be in the file, apart from the pixels.
    """

    file: str
    owner: str
    image_ids: list[str]
    classes: list[int]
    digest: str


def _unit(file: str, owner: str, image_ids: list[str], classes: list[int]) -> _Unit:
    rows = zip(image_ids, classes, strict=True)
    text = "".join(f"{image_id},{label}\n" for image_id, label in rows)
    digest = hashlib.md5(text.encode()).hexdigest()
    return _Unit(file, owner, image_ids, classes, digest)


class _Rejected(NamedTuple):
    """A row of rejected.csv."""

    image_id: str
    owner: str
    reason: str
    path: str


class _RejectedError(Exception):
    """Ends a file that is not to be written, as images of it are rejected."""


class _Preparation:
    """Writes the output folder, or what is still to be written of it."""

    def __init__(
        self,
        folder: pathlib.Path,
        writer: record_writer.RecordWriter,
        split: splits.SplitFiles,
        allow_missing: bool,
    ):
        """Lays out the files.

        Args:
            folder: The output: `gld160k` or `gld23k`.
            writer: What writes there.
            split: What is to be in it.
            allow_missing: Whether to write files without images that cannot be read.
        """
        self._folder = folder
        self._writer = writer
        self._allow_missing = allow_missing
        self._clients = _client_units(split.train)
        image_ids, classes = split.test.image_ids, split.test.classes.tolist()
        self._test = _unit(TEST_FILE, TEST_OWNER, image_ids, classes)
        self._parts = [
            _unit(
                f"{_PARTS}/test-{begin:08}",
                TEST_OWNER,
                image_ids[begin : begin + _IMAGES_PER_PART],
                classes[begin : begin + _IMAGES_PER_PART],
            )
            for begin in range(0, len(image_ids), _IMAGES_PER_PART)
        ]
        self._is_joined = False
        for name in (TRAIN_FOLDER, _PARTS):
            (folder / name).mkdir(exist_ok=True)
        self._check_strays()

    def _check_strays(self) -> None:
        train = self._folder / TRAIN_FOLDER
        expected = {pathlib.Path(unit.file).name for unit in self._clients}
        strays = sorted({path.name for path in train.iterdir()} - expected)
        if strays:
            raise InvalidInputError(
                f"{train / strays[0]} is of no client of this split; remove it, or "
                "give another `output_dir`."
            )

    def _has(self, unit: _Unit) -> bool:
        return self._writer.is_finished(unit.file, unit.digest)

    def _enter(self, unit: _Unit) -> None:
        self._writer.enter(unit.file, len(unit.image_ids), unit.digest)

    def is_finished(self) -> bool:
        """Whether there is nothing left to write."""
        return self._has(self._test) and not self._to_do()

    def _to_do(self) -> list[_Unit]:
        parts = [] if self._has(self._test) else self._parts
        return [unit for unit in (*self._clients, *parts) if not self._has(unit)]

    def run(self, images: image_sources.Images, threads: int | None) -> list[_Rejected]:
        """Writes every file that is not finished.

        Args:
            images: Where they come from.
            threads: How many images to read at a time; None: two per core.

        Returns:
            The images that could not be read, in the order of the split. Without
            allow_missing, the files that they belong to are not written.
        """
        units = self._to_do()
        rejected = {}
        total = sum(len(unit.image_ids) for unit in units)
        with record_writer.Progress("Writing", total, " images") as bar:
            for unit, found in self._writer.run(
                lambda unit: self._write(unit, images), units, threads
            ):
                rejected[unit.file] = found
                if not found:
                    self._enter(unit)
                bar.add(len(unit.image_ids), len(unit.image_ids))
        in_order = [row for unit in units for row in rejected[unit.file]]
        self._join_parts(any(row.owner == TEST_OWNER for row in in_order))
        return in_order

    def _write(self, unit: _Unit, images: image_sources.Images) -> list[_Rejected]:
        """Writes one file, unless images are rejected that may not be."""
        rejected = []

        def payloads() -> Iterator[bytes]:
            for image_id, label in zip(unit.image_ids, unit.classes, strict=True):
                try:
                    encoded = image_sources.read_whole(images, image_id)
                except image_sources.NoImageError as e:
                    rejected.append(_Rejected(image_id, unit.owner, e.reason, e.path))
                    continue
                yield to_record(encoded, label)
            # A part of the test file may be empty, a client's file may not.
            is_part = unit.owner == TEST_OWNER
            is_empty = len(rejected) == len(unit.image_ids)
            if rejected and (not self._allow_missing or (is_empty and not is_part)):
                raise _RejectedError

        with contextlib.suppress(_RejectedError):
            self._writer.write(unit.file, payloads())
        return rejected

    def _join_parts(self, some_rejected: bool) -> None:
        """Makes the test file of its parts."""
        if self._has(self._test) or (some_rejected and not self._allow_missing):
            return
        self._is_joined = self._writer.join(
            self._test.file, [part.file for part in self._parts]
        )
        if self._is_joined and not some_rejected:
            self._enter(self._test)

    def close(self, rejected: Sequence[_Rejected]) -> None:
        """Writes rejected.csv and removes what was for this program only."""
        path = self._folder / REJECTED_FILE
        if rejected:
            files.write_text(
                path, record_writer.csv_text([REJECTED_COLUMNS, *rejected])
            )
        else:
            path.unlink(missing_ok=True)
        is_whole = self._is_joined or self._has(self._test)
        # Without the test file, its parts are work that need not be done again.
        tests = [self._test] if is_whole else self._parts
        self._writer.finish(
            [unit.file for unit in (*self._clients, *tests) if self._has(unit)]
        )
        if is_whole:
            shutil.rmtree(self._folder / _PARTS)
        if not rejected:
            shutil.rmtree(self._folder / _SHARD_INDEX, ignore_errors=True)

    def empty_owners(self, rejected: Sequence[_Rejected]) -> list[str]:
        """The clients, and perhaps the test, of whose images not one can be read."""
        num_rejected = collections.Counter(row.owner for row in rejected)
        return [
            unit.owner
            for unit in (*self._clients, self._test)
            if num_rejected[unit.owner] == len(unit.image_ids)
        ]


def _client_units(train: split_csv.Split) -> list[_Unit]:
    rows_of = collections.defaultdict(list)
    for row, client_id in enumerate(train.clients):
        rows_of[client_id].append(row)
    return [
        _unit(
            f"{TRAIN_FOLDER}/{client_id}",
            client_id,
            [train.image_ids[row] for row in rows],
            train.classes[rows].tolist(),
        )
        for client_id, rows in rows_of.items()
    ]


def _report(
    options: Options,
    split: splits.SplitFiles,
    rejected: Sequence[_Rejected],
    empty: Sequence[str],
) -> None:
    """Prints what was done.

    Raises:
        RunStoppedError: If images are missing which may not be.
    """
    folder = options.folder
    num_train, num_test = len(split.train.image_ids), len(split.test.image_ids)
    if rejected:
        found = (
            f"{len(rejected):,} of {num_train + num_test:,} images are missing or "
            f"damaged: see {folder / REJECTED_FILE}. The first: "
            f"{rejected[0].path} {rejected[0].reason}."
        )
        if empty:
            raise RunStoppedError(
                f"{found} Not one image is left of: {', '.join(empty)}."
            )
        if not options.allow_missing:
            owners = {row.owner for row in rejected}
            raise RunStoppedError(
                f"{found} The {len(owners):,} files that need them were not written. "
                "Add the images and run the same command again, or leave them out with "
                "`allow_missing`."
            )
        print(f"note: {found} They are left out.", file=sys.stderr)
    num_test_rejected = sum(row.owner == TEST_OWNER for row in rejected)
    num_train_rejected = len(rejected) - num_test_rejected
    print(
        f"{folder} holds {num_train - num_train_rejected:,} images of "
        f"{len(set(split.train.clients)):,} clients and "
        f"{num_test - num_test_rejected:,} test images."
    )
