r"""Brings Landmarks-User-160k (or its 23k mini) into the form that is trained on.

    ./run.sh prepare_landmarks --split_dir=landmarks-user-160k.zip --image_dir=IMAGES \
        --output_dir=CACHE

reads the split and the images of Google Landmarks v2, and writes

    CACHE/gld160k/train/<user_id>   a TFRecord file per client
    CACHE/gld160k/test.tfRecord     the test images
    CACHE/gld160k/*.csv             the split, as it was given
    CACHE/gld160k/finished.csv      what is whole: file, images, bytes, digest of rows
    CACHE/gld160k/rejected.csv      images that are missing or damaged, if there are any

which is the cache of `tff.simulation.datasets.gldv2` and what `--data_dir=CACHE` of
`./run.sh train` reads. IMAGES may be a folder of `<id>.jpg`, or the tree that the
original archives unpack to, `a/b/c/abc<...>.jpg`; `--shard_dir` reads these archives,
`images_000.tar` to `images_499.tar`, as they were downloaded.

Expected: 1,262 clients with 164,172 images of 2,028 classes, and 19,526 test images.
The output is as large as these images: about 22 GB, at the 0.12 MB that an image of
GLDv2 has on average (500 GB in 4.1 million). Every image is decoded once to see that it
is whole, some 800 of 0.17 MB a second on one core: minutes, if the disk keeps up.

The program may be killed at any time. The same command goes on where it stopped, and
ends with the same bytes. It exits with 0 if nothing is missing, with 1 if images are
(unless `--allow_missing`) or the disk is full, and with 2 on any other bad input.
"""

import collections
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
import shutil
import sys
import tarfile
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, NoReturn, Protocol

import numpy as np
import tensorflow as tf
import tqdm

from experiments.common import config, program
from tff_fedss import files
from tff_fedss.datasets import archives, image_files, landmarks, split_csv
from tff_fedss.errors import InvalidInputError

_EXIT_MISSING = 1

_FINISHED_FILE = "finished.csv"
_FINISHED_COLUMNS = ("file", "images", "bytes", "rows_md5")
# Folders that are gone when everything is done. None is in `train`, where TFF takes
# every file for a client.
_UNFINISHED = ".unfinished"
_PARTS = ".parts"
_SHARD_INDEX = ".shards"
# The test file is made of parts, so that its images too are read in parallel and are
# not read again after an interruption.
_IMAGES_PER_PART = 500
# As it becomes part of a path. The published ones are 16 hexadecimal digits.
_IMAGE_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{2,63}")
_SHARD_MEMBER = re.compile(r"(?:^|/)([^/]+)\.jpg$")


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user says; an attribute is the flag of its name.

    Attributes:
        output_dir: Where to write: the folder for `gld160k` or `gld23k`.
        split: Which of `landmarks.SPLITS`.
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
    def published(self) -> landmarks.Published:
        """What is known of the split."""
        return landmarks.SPLITS[self.split]

    @property
    def folder(self) -> pathlib.Path:
        """The folder that is written."""
        return pathlib.Path(self.output_dir) / self.published.folder


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    split: str = config.flag("160k", "Which published split.", choices=landmarks.SPLITS)
    split_dir: str | None = config.flag(
        None,
        "The folder or the zip with the two CSV files of the split: "
        "federated_train.csv and test.csv, or mini_gld_train_split.csv and "
        "mini_gld_test.csv.",
    )
    train_csv: str | None = config.flag(
        None, "Instead of --split_dir: the file of the clients' images."
    )
    test_csv: str | None = config.flag(
        None, "Instead of --split_dir: the file of the test images."
    )
    image_dir: str | None = config.flag(
        None, "The images: <id>.jpg, or a/b/c/<id>.jpg where <id> is abc..."
    )
    shard_dir: str | None = config.flag(
        None, "Instead of --image_dir: the folder of images_NNN.tar."
    )
    output_dir: str | None = config.flag(
        None, "Where to write: the folder for gld160k or gld23k."
    )
    threads: int | None = config.flag(
        None, "How many images to read at a time; default: two per core.", low=1
    )
    allow_missing: bool = config.flag(
        False, "Leave out images that are missing or damaged."
    )
    allow_other_split: bool = config.flag(
        False, "Take CSV files that are not the published ones."
    )


class NoImageError(Exception):
    """An image that is missing or that cannot be read; see its two arguments.

    Attributes:
        path: Where it should be.
        reason: What is wrong, to follow the path: "is missing".
    """

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


class Images(Protocol):
    """Where images come from."""

    def read(self, image_id: str) -> tuple[str, bytes]:
        """Returns the path, for messages, and the content of one image.

        Raises:
            NoImageError: If it is not there.
        """


class FolderOfImages:
    """Images in files, flat or in the tree of the original archives."""

    def __init__(self, folder: pathlib.Path):
        self._folder = str(folder)

    def read(self, image_id: str) -> tuple[str, bytes]:
        """See `Images`."""
        flat = f"{self._folder}/{image_id}.jpg"
        tree = f"{self._folder}/{'/'.join(image_id[:3])}/{image_id}.jpg"
        for path in (flat, tree):
            try:
                return path, files.read(path)
            except FileNotFoundError:
                continue
            except OSError as e:
                raise NoImageError(path, f"cannot be read: {e.strerror}") from e
        raise NoImageError(flat, "is missing")


class ShardsOfImages:
    """Images in the original `images_NNN.tar`, read where they lie."""

    def __init__(
        self, folder: pathlib.Path, image_ids: Collection[str], cache_dir: pathlib.Path
    ):
        """Finds the images in the archives.

        Args:
            folder: Of the archives; there may be fewer than 500.
            image_ids: The images that will be asked for.
            cache_dir: Remembers where the images are in each archive.

        Raises:
            InvalidInputError: If an archive is damaged or cut off.
        """
        self._shards = _shards_in(folder)
        self._folder = folder
        self._places = {}
        cache_dir.mkdir(exist_ok=True)
        image_ids = frozenset(image_ids)
        bar = _progress("Looking into the shards", len(self._shards), " shards")
        with bar, _thread_pool() as pool:
            contents = pool.map(
                lambda shard: _shard_content(shard, image_ids, cache_dir), self._shards
            )
            for number, content in enumerate(contents):
                for image_id, (offset, size) in content.items():
                    self._places.setdefault(image_id, (number, offset, size))
                bar.update()

    def read(self, image_id: str) -> tuple[str, bytes]:
        """See `Images`."""
        if image_id not in self._places:
            raise NoImageError(
                f"{self._folder}/*/{image_id}.jpg",
                f"is in none of the {len(self._shards)} shards",
            )
        number, offset, size = self._places[image_id]
        path = f"{self._shards[number]}:{image_id}.jpg"
        try:
            with open(self._shards[number], "rb") as file:
                file.seek(offset)
                return path, file.read(size)
        except OSError as e:
            raise NoImageError(path, f"cannot be read: {e.strerror}") from e


def _check_regular(shard: pathlib.Path) -> os.stat_result:
    try:
        return files.check_regular(shard)
    except OSError as e:
        raise InvalidInputError(f"{shard}: cannot be read: {e.strerror}.") from e


def _shard_content(
    shard: pathlib.Path, image_ids: frozenset[str], cache_dir: pathlib.Path
) -> dict[str, tuple[int, int]]:
    """Returns offset and size of those images that are in one archive."""
    status = _check_regular(shard)
    version = [status.st_size, status.st_mtime_ns]
    cache = cache_dir / f"{shard.name}.json"
    # What was not written whole is made again.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        remembered = json.loads(files.read(cache))
        if remembered["version"] == version:
            return remembered["places"]
    places = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                match = _SHARD_MEMBER.search(member.name)
                if match and member.isfile() and match[1] in image_ids:
                    places[match[1]] = (member.offset_data, member.size)
            # tarfile takes whatever is no header for the end of the archive; the end
            # is a block of zeros.
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError(f"no end of the archive at byte {tar.offset:,}")
    except (OSError, tarfile.TarError) as e:
        raise InvalidInputError(
            f"{shard}: not a whole tar archive ({e}); download it again."
        ) from e
    files.write(cache, json.dumps({"version": version, "places": places}).encode())
    return places


class SplitFiles(NamedTuple):
    """The two CSV files as bytes, and their rows.

    Attributes:
        train_csv: Content of the clients' file.
        test_csv: Content of the test images' file.
        train: Its rows.
        test: Its rows.
    """

    train_csv: bytes
    test_csv: bytes
    train: split_csv.Split
    test: split_csv.Split


def read_split(options: Options) -> SplitFiles:
    """Reads and checks what --split_dir or --train_csv and --test_csv name.

    Raises:
        InvalidInputError: If the flags or the files cannot be used, or if they are not
            the published ones and --allow_other_split is not given.
    """
    published = options.published
    names = (published.train_csv, published.test_csv)
    if options.split_dir is not None:
        if options.train_csv is not None or options.test_csv is not None:
            raise InvalidInputError(
                "--split_dir already names both CSV files; leave out --train_csv and "
                "--test_csv."
            )
        path = pathlib.Path(options.split_dir)
        is_zip = path.name.endswith(".zip") and not path.is_dir()
        if not is_zip:
            paths = [path / name for name in names]
    else:
        if options.train_csv is None or options.test_csv is None:
            raise InvalidInputError(
                f"--split_dir must name the folder or the zip with {names[0]} and "
                f"{names[1]} (or give both --train_csv and --test_csv)."
            )
        is_zip = False
        paths = [pathlib.Path(options.train_csv), pathlib.Path(options.test_csv)]

    problems = []
    is_verified = False
    if is_zip:
        shown, contents = _read_zip(path, names)
        if published.zip_md5 is not None:
            is_verified = _check_md5(
                path.name, _read_bytes(path), published.zip_md5, problems
            )
    else:
        shown = [str(path) for path in paths]
        contents = [_read_bytes(path) for path in paths]
    if published.csv_md5s is not None:
        checks = [
            _check_md5(name, content, md5, problems)
            for name, content, md5 in zip(
                shown, contents, published.csv_md5s, strict=True
            )
        ]
        is_verified = all(checks)

    n = published.num_classes
    train = split_csv.parse(contents[0], shown[0], n)
    test = split_csv.parse(contents[1], shown[1], n, with_clients=False)
    for name, rows in zip(shown, (train, test), strict=True):
        _check_image_ids(name, rows.image_ids)
    if landmarks.TEST_OWNER in train.clients:
        raise InvalidInputError(
            f"{shown[0]}: no client may be called {landmarks.TEST_OWNER!r}, which "
            f"stands for the test images in {landmarks.REJECTED_FILE}."
        )
    problems += _count_problems(train, test, published)
    if is_verified and not problems:
        print(f"The split is the published {published.title}, by its MD5.")
    elif not problems:
        print(
            f"The split has the numbers of the published {published.title}. (An MD5 is "
            "published for its zip only.)"
        )
    else:
        message = f"This is not the published {published.title}: {'; '.join(problems)}."
        if not options.allow_other_split:
            raise InvalidInputError(
                f"{message} If that is intended, give --allow_other_split."
            )
        print(f"note: {message}", file=sys.stderr)
    return SplitFiles(*contents, train, test)


def _read_bytes(path: pathlib.Path) -> bytes:
    try:
        return files.read(path)
    except OSError as e:
        raise InvalidInputError(f"{path}: cannot be read: {e.strerror or e}.") from e


def _read_zip(
    path: pathlib.Path, names: Sequence[str]
) -> tuple[list[str], list[bytes]]:
    """Returns the names, for messages, and the contents of the files of those names."""

    def is_wanted(member: str) -> bool:
        return member.rpartition("/")[2] in names and "__MACOSX/" not in member

    source = f"--split_dir={path}"
    _read_bytes(path)
    found = collections.defaultdict(list)
    for member, content in archives.members(path, source, is_wanted):
        found[member.rpartition("/")[2]].append((f"{path}/{member}", content))
    for name in names:
        if len(found[name]) != 1:
            raise InvalidInputError(
                f"{source}: found {len(found[name])} files called {name}; expected 1."
            )
    shown, contents = zip(*(found[name][0] for name in names), strict=True)
    return list(shown), list(contents)


def _check_md5(name: str, content: bytes, expected: str, problems: list[str]) -> bool:
    found = hashlib.md5(content).hexdigest()
    if found != expected:
        problems.append(f"{name} has the MD5 {found}, expected {expected}")
    return found == expected


def _check_image_ids(name: str, image_ids: Sequence[str]) -> None:
    for image_id in image_ids:
        if not _IMAGE_ID.fullmatch(image_id):
            raise InvalidInputError(
                f"{name}: the image_id {image_id!r} is no id of Google Landmarks v2 "
                "(such as 3e0a3dd44b426720)."
            )


def _count_problems(
    train: split_csv.Split, test: split_csv.Split, published: landmarks.Published
) -> Iterator[str]:
    counts = [
        ("clients", len(set(train.clients)), published.num_clients),
        ("classes of clients", len(np.unique(train.classes)), published.num_classes),
        ("images of clients", len(train.image_ids), published.num_train_images),
    ]
    if published.num_test_images is not None:
        counts.append(("test images", len(test.image_ids), published.num_test_images))
    for what, found, expected in counts:
        if found != expected:
            yield f"it has {found:,} {what}, expected {expected:,}"
    in_both = len(set(train.image_ids) & set(test.image_ids))
    if in_both:
        yield f"{in_both:,} test images are clients' images too"


class Unit(NamedTuple):
    """A file to write: one client's, or a part of the test file.

    Attributes:
        file: Its path in the output folder.
        owner: The client, or `landmarks.TEST_OWNER`.
        image_ids: Its images, in order.
        classes: Theirs.
    """

    file: str
    owner: str
    image_ids: list[str]
    classes: list[int]

    def rows_md5(self) -> str:
        """The digest of what is to be in the file, apart from the pixels."""
        rows = zip(self.image_ids, self.classes, strict=True)
        text = "".join(f"{image_id},{label}\n" for image_id, label in rows)
        return hashlib.md5(text.encode()).hexdigest()


class Rejected(NamedTuple):
    """A row of rejected.csv."""

    image_id: str
    owner: str
    reason: str
    path: str


class _StoppedError(Exception):
    """Ends a worker's unit because the program ends."""


class Preparation:
    """Writes the output folder, or what is still to be written of it."""

    def __init__(self, folder: pathlib.Path, split: SplitFiles, allow_missing: bool):
        """Lays out the files.

        Args:
            folder: The output: `gld160k` or `gld23k`, locked by `_lock`.
            split: What is to be in it.
            allow_missing: Whether to write files without images that cannot be read.
        """
        self._folder = folder
        self._allow_missing = allow_missing
        self._clients = _client_units(split.train)
        self._test = Unit(
            landmarks.TEST_FILE,
            landmarks.TEST_OWNER,
            split.test.image_ids,
            split.test.classes.tolist(),
        )
        self._stop = threading.Event()
        self._is_joined = False
        for name in (landmarks.TRAIN_FOLDER, _PARTS, _UNFINISHED):
            (folder / name).mkdir(exist_ok=True)
        self._check_strays()
        self._finished = self._read_finished()

    def _check_strays(self) -> None:
        train = self._folder / landmarks.TRAIN_FOLDER
        expected = {pathlib.Path(unit.file).name for unit in self._clients}
        strays = sorted({path.name for path in train.iterdir()} - expected)
        if strays:
            raise InvalidInputError(
                f"{train / strays[0]} is of no client of this split; remove it, or "
                "give another --output_dir."
            )

    def _read_finished(self) -> dict[str, tuple[str, ...]]:
        """Returns the rows of finished.csv that hold, and leaves only these in it."""
        path = self._folder / _FINISHED_FILE
        content = files.read(path) if path.exists() else b""
        # A kill may have cut the last line off. Such a row is none that is expected.
        lines = io.StringIO(content.decode(errors="replace"), newline="")
        rows = {row[0]: tuple(row) for row in csv.reader(lines) if row}
        finished = {}
        for unit in (*self._clients, *self._parts(), self._test):
            row = rows.get(unit.file)
            if row is not None and row == self._finished_row(unit):
                finished[unit.file] = row
        self._write_finished(finished.values())
        return finished

    def _finished_row(self, unit: Unit) -> tuple[str, ...] | None:
        """The row for a unit whose file is there, if that is whole."""
        try:
            size = (self._folder / unit.file).stat().st_size
        except FileNotFoundError:
            return None
        return unit.file, str(len(unit.image_ids)), str(size), unit.rows_md5()

    def _write_finished(self, rows: Collection[tuple[str, ...]]) -> None:
        text = _csv_lines([_FINISHED_COLUMNS, *rows])
        files.write(self._folder / _FINISHED_FILE, text.encode())

    def _parts(self) -> list[Unit]:
        parts = []
        for begin in range(0, len(self._test.image_ids), _IMAGES_PER_PART):
            rows = slice(begin, begin + _IMAGES_PER_PART)
            parts.append(
                Unit(
                    f"{_PARTS}/test-{begin:08}",
                    self._test.owner,
                    self._test.image_ids[rows],
                    self._test.classes[rows],
                )
            )
        return parts

    def is_finished(self) -> bool:
        """Whether there is nothing left to write."""
        return self._test.file in self._finished and not self._to_do()

    def _to_do(self) -> list[Unit]:
        units = list(self._clients)
        if self._test.file not in self._finished:
            units += self._parts()
        return [unit for unit in units if unit.file not in self._finished]

    def run(self, images: Images, workers: int) -> list[Rejected]:
        """Writes every file that is not finished.

        Args:
            images: Where they come from.
            workers: How many images to read at a time.

        Returns:
            The images that could not be read, in the order of the split. Without
            allow_missing, the files that they belong to are not written.
        """
        units = self._to_do()
        rejected = {}
        with (
            open(self._folder / _FINISHED_FILE, "a", newline="") as finished,
            _progress(
                "Writing", sum(len(unit.image_ids) for unit in units), " images"
            ) as bar,
            _thread_pool(workers, self._stop) as pool,
        ):
            futures = {pool.submit(self._write, unit, images): unit for unit in units}
            for future in concurrent.futures.as_completed(futures):
                unit = futures[future]
                rejected[unit.file] = future.result()
                if not rejected[unit.file]:
                    row = self._finished_row(unit)
                    self._finished[unit.file] = row
                    finished.write(_csv_lines([row]))
                    finished.flush()
                bar.update(len(unit.image_ids))
        in_order = [row for unit in units for row in rejected[unit.file]]
        self._join_parts(any(row.owner == landmarks.TEST_OWNER for row in in_order))
        return in_order

    def _write(self, unit: Unit, images: Images) -> list[Rejected]:
        """Writes one file, whole or not at all."""
        target = self._folder / unit.file
        unfinished = self._folder / _UNFINISHED / unit.file.replace("/", "%")
        rejected = []
        with tf.io.TFRecordWriter(str(unfinished)) as writer:
            for image_id, label in zip(unit.image_ids, unit.classes, strict=True):
                if self._stop.is_set():
                    raise _StoppedError
                try:
                    encoded = _read_whole(images, image_id)
                except NoImageError as e:
                    rejected.append(Rejected(image_id, unit.owner, e.reason, e.path))
                    continue
                writer.write(landmarks.to_record(encoded, label))
        # A part of the test file may be empty, a client's file may not.
        is_part = unit.owner == landmarks.TEST_OWNER
        is_empty = len(rejected) == len(unit.image_ids)
        if rejected and (not self._allow_missing or (is_empty and not is_part)):
            unfinished.unlink()
        else:
            os.replace(unfinished, target)
        return rejected

    def _join_parts(self, some_rejected: bool) -> None:
        """Makes the test file of its parts."""
        if self._test.file in self._finished:
            return
        if some_rejected and not self._allow_missing:
            return
        unfinished = self._folder / _UNFINISHED / self._test.file
        with open(unfinished, "wb") as whole:
            for part in self._parts():
                with open(self._folder / part.file, "rb") as file:
                    shutil.copyfileobj(file, whole, 1 << 20)
        if not unfinished.stat().st_size:
            unfinished.unlink()
            return
        os.replace(unfinished, self._folder / self._test.file)
        self._is_joined = True
        if not some_rejected:
            self._finished[self._test.file] = self._finished_row(self._test)

    def close(self, rejected: Sequence[Rejected]) -> None:
        """Writes rejected.csv and removes what was for this program only."""
        path = self._folder / landmarks.REJECTED_FILE
        if rejected:
            text = _csv_lines([landmarks.REJECTED_COLUMNS, *rejected])
            files.write(path, text.encode())
        else:
            path.unlink(missing_ok=True)
        whole = [unit.file for unit in self._clients]
        if self._is_joined or self._test.file in self._finished:
            whole.append(self._test.file)
        else:  # Its parts are work that need not be done again.
            whole += [unit.file for unit in self._parts()]
        self._write_finished(
            [self._finished[file] for file in whole if file in self._finished]
        )
        if self._test.file in whole:
            shutil.rmtree(self._folder / _PARTS)
        if not rejected:
            shutil.rmtree(self._folder / _SHARD_INDEX, ignore_errors=True)
        shutil.rmtree(self._folder / _UNFINISHED)

    def empty_owners(self, rejected: Sequence[Rejected]) -> list[str]:
        """The clients, and perhaps the test, of whose images not one can be read."""
        num_rejected = collections.Counter(row.owner for row in rejected)
        return [
            unit.owner
            for unit in (*self._clients, self._test)
            if num_rejected[unit.owner] == len(unit.image_ids)
        ]


def _client_units(train: split_csv.Split) -> list[Unit]:
    rows_of = collections.defaultdict(list)
    for row, client_id in enumerate(train.clients):
        rows_of[client_id].append(row)
    return [
        Unit(
            f"{landmarks.TRAIN_FOLDER}/{client_id}",
            client_id,
            [train.image_ids[row] for row in rows],
            train.classes[rows].tolist(),
        )
        for client_id, rows in rows_of.items()
    ]


def _read_whole(images: Images, image_id: str) -> bytes:
    path, encoded = images.read(image_id)
    try:
        image_files.check(encoded)
    except ValueError as e:
        raise NoImageError(path, str(e)) from e
    return encoded


@contextlib.contextmanager
def _thread_pool(
    workers: int | None = None, stop: threading.Event | None = None
) -> Iterator[concurrent.futures.Executor]:
    """A pool that ends soon, and not when all is done, if its user fails.

    Threads suffice: reading, decoding and TFRecord's checksums let go of the GIL.

    Args:
        workers: Their number.
        stop: Set at the end, for workers that look at it.
    """
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    try:
        yield pool
    finally:
        if stop is not None:
            stop.set()
        pool.shutdown(cancel_futures=True)


def _csv_lines(rows: Collection[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _progress(what: str, total: int, unit: str) -> tqdm.tqdm:
    return tqdm.tqdm(desc=what, total=total, unit=unit, delay=2, disable=None)


@contextlib.contextmanager
def _lock(folder: pathlib.Path) -> Iterator[None]:
    """Makes a folder and keeps other runs of this program out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise InvalidInputError(
                f"{folder}: another run is writing there; wait for its end."
            ) from e
        yield
    finally:
        os.close(descriptor)


def _keep_csvs(
    folder: pathlib.Path, split: SplitFiles, published: landmarks.Published
) -> None:
    """Copies the CSV files, so that it is known later what the data should be."""
    for name, content in (
        (published.train_csv, split.train_csv),
        (published.test_csv, split.test_csv),
    ):
        path = folder / name
        if path.exists() and files.read(path) != content:
            raise InvalidInputError(
                f"{path} is not the {name} that you gave: the folder is of another "
                "split. Give another --output_dir, or remove the folder."
            )
        files.write(path, content)


def _shards_in(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("images_*.tar"))


def _check_images(options: Options) -> None:
    """Checks where the images are to come from, before anything is written."""
    if options.image_dir is not None:
        if not pathlib.Path(options.image_dir).is_dir():
            raise InvalidInputError(
                f"--image_dir={options.image_dir} is no folder; expected one with "
                "<id>.jpg or a/b/c/<id>.jpg."
            )
        return
    shards = _shards_in(pathlib.Path(options.shard_dir))
    if not shards:
        raise InvalidInputError(
            f"--shard_dir={options.shard_dir}: found no images_NNN.tar; expected those "
            "of Google Landmarks v2, images_000.tar to images_499.tar."
        )
    for shard in shards:
        _check_regular(shard)


def _open_images(options: Options, split: SplitFiles) -> Images:
    if options.image_dir is not None:
        return FolderOfImages(pathlib.Path(options.image_dir))
    return ShardsOfImages(
        pathlib.Path(options.shard_dir),
        [*split.train.image_ids, *split.test.image_ids],
        options.folder / _SHARD_INDEX,
    )


def prepare(options: Options) -> None:
    """Prepares the data set and prints what there is.

    Args:
        options: What, from where, and to where.

    Raises:
        InvalidInputError: If an option or a file cannot be used.
        RunStoppedError: If the disk is full or the system forbids to write.
        SystemExit: With code 1 if images are missing or damaged which may not be.
    """
    if not options.output_dir:
        raise InvalidInputError(
            f"--output_dir must say where to write {options.published.folder}."
        )
    if (options.image_dir is None) == (options.shard_dir is None):
        raise InvalidInputError(
            "exactly one of --image_dir (a folder of jpgs) and --shard_dir (a folder "
            "of images_NNN.tar) must be given."
        )
    split = read_split(options)
    _check_images(options)
    try:
        with _lock(options.folder):
            _keep_csvs(options.folder, split, options.published)
            preparation = Preparation(options.folder, split, options.allow_missing)
            rejected = []
            if not preparation.is_finished():
                images = _open_images(options, split)
                workers = options.threads or 2 * len(os.sched_getaffinity(0))
                rejected = preparation.run(images, workers)
            preparation.close(rejected)
    except (OSError, tf.errors.OpError) as e:
        where = getattr(e, "filename", None) or options.folder
        raise files.refusal(
            e, f"--output_dir={options.output_dir}", f"cannot be written at {where}"
        ) from e
    _report(options, split, rejected, preparation.empty_owners(rejected))


def _report(
    options: Options,
    split: SplitFiles,
    rejected: Sequence[Rejected],
    empty: Sequence[str],
) -> None:
    """Prints what was done.

    Raises:
        SystemExit: With code 1 if images are missing which may not be.
    """
    folder = options.folder
    num_train, num_test = len(split.train.image_ids), len(split.test.image_ids)
    if rejected:
        found = (
            f"{len(rejected):,} of {num_train + num_test:,} images are missing or "
            f"damaged: see {folder / landmarks.REJECTED_FILE}. The first: "
            f"{rejected[0].path} {rejected[0].reason}."
        )
        if empty:
            _fail(f"{found} Not one image is left of: {', '.join(empty)}.")
        if not options.allow_missing:
            owners = {row.owner for row in rejected}
            _fail(
                f"{found} The {len(owners):,} files that need them were not written. "
                "Add the images and run the same command again, or leave them out with "
                "--allow_missing."
            )
        print(f"note: {found} They are left out.", file=sys.stderr)
    num_test_rejected = sum(row.owner == landmarks.TEST_OWNER for row in rejected)
    num_train_rejected = len(rejected) - num_test_rejected
    print(
        f"{folder} holds {num_train - num_train_rejected:,} images of "
        f"{len(set(split.train.clients)):,} clients and "
        f"{num_test - num_test_rejected:,} test images."
    )


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(_EXIT_MISSING)


def main(config: Config) -> None:
    """Prepares the data set that the flags describe."""
    prepare(Options(**dataclasses.asdict(config)))


if __name__ == "__main__":
    program.run(main, Config())
