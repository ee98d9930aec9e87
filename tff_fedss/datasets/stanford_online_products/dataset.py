"""Stanford Online Products: photographs of 22,634 products (Song et al., CVPR 2016).

FedSS (Section 4.3, Appendix A.5) splits its 59,551 training images of 11,318 products
over 596 clients of 100 images and about 20 products each, and retrieves images of the
11,316 other products.

The images are read from the TFRecord files of TFDS's `stanford_online_products`, which
is made from the original archive, `Stanford_Online_Products.zip`:

    Stanford_Online_Products/Ebay_train.txt      a line per training image:
                                                 image_id class_id super_class_id path
    Stanford_Online_Products/Ebay_test.txt       likewise, of other products
    Stanford_Online_Products/<...>_final/*.JPG   the images

TFDS drops the `image_id`. But the order of its records is a function of the row of an
image in its listing alone (they are sorted by the MD5 of the split's name and the row's
number), so that every record's row, and with it the image_id, is known exactly. That
the classes of all records agree with their rows is checked.
"""

import concurrent.futures
import contextlib
import csv
import hashlib
import io
import os
import pathlib
import re
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tqdm

from tff_fedss import files
from tff_fedss.datasets import archives, image_files
from tff_fedss.datasets.federated import partitions, records, split_csv
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.errors import InvalidInputError

TITLE = "Stanford Online Products"
FOLDER = "Stanford_Online_Products"
ARCHIVE = f"{FOLDER}.zip"
IMAGES_PER_CLIENT = 100

# The original.
NUM_TRAIN_IMAGES, NUM_TRAIN_CLASSES = 59_551, 11_318
NUM_TEST_IMAGES, NUM_TEST_CLASSES = 60_502, 11_316
_NUM_CLASSES = NUM_TRAIN_CLASSES + NUM_TEST_CLASSES
_NUM_SUPER_CLASSES = 12

_BUILDER = "stanford_online_products"
_IMAGE_FEATURE, _CLASS_FEATURE = "image", "class_id"
_COLUMNS = ("image_id", "class_id", "super_class_id", "path")
_LISTINGS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
_NO_FILE = "there is no such file"
_INTEGER = re.compile(r"[0-9]{1,9}")

# Keeps the draws of this data set apart from others of the same seed.
_PHILOX_STREAM = int.from_bytes(b"products", "big")


class Listing(NamedTuple):
    """The rows of Ebay_train.txt or Ebay_test.txt, in their order.

    Attributes:
        image_ids: str[N], all different.
        labels: `class_id` - 1, as in TFDS, int32[N]. In the original, 0..11317 in
            training and 11318..22633 in the test.
        paths: The images' files, relative to the folder of the listing.
        lines: The lines of the file in which the rows are.
        name: What to call the file in a message.
    """

    image_ids: list[str]
    labels: np.ndarray
    paths: list[str]
    lines: list[int]
    name: str

    def where(self, row: int) -> str:
        """Names the line of a row, for a message."""
        return f"{self.name}, line {self.lines[row]}"


def load(
    data_dir: os.PathLike | None = None,
    *,
    image_size: int = 224,
    resize_size: int | None = None,
    images_per_client: int = IMAGES_PER_CLIENT,
    seed: int = 0,
    clients_csv: os.PathLike | None = None,
) -> FederatedDataset:
    """Loads the clients' images and the test images; no image stays in memory.

    The first call checks every image of the archive and has TFDS make its TFRecord
    files, in the folder of the archive, or where TFDS keeps its data sets if nothing
    can be written there. That takes about ten minutes, 3 GB for the files and, until
    they are finished, 3 GB for the unpacked archive. Later calls take seconds.

    An archive that is as large as the published one must have its checksum too. If it
    has another size, a line on stderr says so, and it is taken for what it is: its
    listings and images are checked in any case.

    Args:
        data_dir: One of: a folder that holds `Stanford_Online_Products.zip`, or what it
            unpacks to, `Stanford_Online_Products`, or TFDS's
            `stanford_online_products`; that zip; that unpacked folder. If None, TFDS
            downloads the zip, and everything is where TFDS keeps its data sets.
        image_size: Height and width of what the model sees, in pixels.
        resize_size: Height and width that images are brought to before the crop, in
            pixels; None: in the paper's ratio. See `Preprocessing`.
        images_per_client: How many images a client has; the last one may have fewer.
        seed: Which partition; 0 <= seed < 2^63. The paper's is not published.
        clients_csv: A partition as `data/partition_sop.py` writes it; None: the one
            that it writes for the same images_per_client and seed.

    Returns:
        The data set. Stored images are references to records, and labels are
        `class_id` - 1: 0..n-1 in training, from n on in the test.

    Raises:
        InvalidInputError: If an argument is out of range, the data is not there or
            damaged, or clients_csv does not fit it. The message names file and line.
    """
    _check_seed(seed)
    preprocessing = Preprocessing(
        image_size, resize_size, records.read_image(_IMAGE_FEATURE)
    )
    place = _find(data_dir)
    prepared = _prepare(place)
    index, sizes = _index_of(prepared.builder)
    num_train, num_test = sizes.values()
    train = prepared.train
    if train is None:
        train = _infer_train_listing(prepared.builder, index, num_train)
    train_rows = _find_records(prepared.builder, index, 0, num_train, train, "train")
    if prepared.test is not None:
        _find_records(
            prepared.builder, index, num_train, num_test, prepared.test, "test"
        )

    if clients_csv is None:
        partition = make_partition(train, images_per_client, seed)
    else:
        partition = read_partition(clients_csv, train)
    # From rows of the listing to those of the index.
    partition = partition._replace(order=train_rows[partition.order])
    client_data = records.RecordClientData(
        index, partition.client_ids, partition.examples
    )
    return FederatedDataset(
        name=TITLE,
        num_classes=int(train.labels.max()) + 1,
        image_shape=(image_size, image_size, 3),
        train=client_data,
        num_examples=client_data.num_examples,
        positives=client_data.positives,
        max_positives=client_data.max_positives,
        test=records.references(index, np.arange(num_train, num_train + num_test)),
        num_test_examples=num_test,
        test_is_unseen=True,
        preprocessing=preprocessing,
        pooled=lambda: records.references(index, np.arange(num_train)),
        note=_note(train, num_test),
        # The index has the test images too.
        contents=client_data.fingerprint,
    )


def _note(train: Listing, num_test: int) -> str:
    num_train, num_classes = len(train.labels), len(np.unique(train.labels))
    original = (NUM_TRAIN_IMAGES, NUM_TRAIN_CLASSES, NUM_TEST_IMAGES)
    note = f"{num_train:,} training images"
    if (num_train, num_classes, num_test) != original:
        note += (
            f"; not the original, which has {NUM_TRAIN_IMAGES:,} of "
            f"{NUM_TRAIN_CLASSES:,} classes and {NUM_TEST_IMAGES:,} test images"
        )
    return note


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise InvalidInputError(f"seed={seed} must be in 0..2^63-1.")


# The partition.


def make_partition(
    train: Listing, images_per_client: int = IMAGES_PER_CLIENT, seed: int = 0
) -> partitions.Partition:
    """Splits the training images over clients; see `partitions.chunks`.

    Args:
        train: The listing of the training images.
        images_per_client: How many images a client has; the last one may have fewer.
        seed: Which partition; 0 <= seed < 2^63.

    Returns:
        The clients, with examples as rows of the listing. The original has 596 for
        images_per_client=100.

    Raises:
        InvalidInputError: If an argument is out of range.
    """
    _check_seed(seed)
    rng = np.random.Generator(np.random.Philox(key=[seed, _PHILOX_STREAM]))
    return partitions.chunks(train.labels, images_per_client, rng)


def to_split(train: Listing, partition: partitions.Partition) -> split_csv.Split:
    """Names the images of a partition, client after client, for `split_csv.write`."""
    return split_csv.Split(
        [train.image_ids[row] for row in partition.order],
        train.labels[partition.order],
        [
            client_id
            for client_id, size in zip(
                partition.client_ids, partition.sizes, strict=True
            )
            for _ in range(size)
        ],
    )


def read_partition(path: os.PathLike, train: Listing) -> partitions.Partition:
    """Reads a partition of the training images, and checks that it is one.

    Args:
        path: A CSV file with the columns user_id, image_id and class.
        train: The listing of the training images.

    Returns:
        The clients in the order in which they come up, each one's images likewise.

    Raises:
        InvalidInputError: If the file cannot be read, names an image that the listing
            does not have, has a wrong class for one, or lacks one.
    """
    split = split_csv.read(path, int(train.labels.max()) + 1)
    row_of = {image_id: row for row, image_id in enumerate(train.image_ids)}
    rows = np.array([row_of.get(image_id, -1) for image_id in split.image_ids])
    for i in np.flatnonzero(rows < 0)[:1]:
        raise InvalidInputError(
            f"{_csv_line(path, i)}: there is no image_id {split.image_ids[i]!r} in "
            f"{train.name}."
        )
    for i in np.flatnonzero(split.classes != train.labels[rows])[:1]:
        raise InvalidInputError(
            f"{_csv_line(path, i)}: image_id {split.image_ids[i]!r} has the class "
            f"{split.classes[i]}; expected {train.labels[rows[i]]}, which is the "
            f"class_id in {train.where(rows[i])}, less 1."
        )
    missing = np.setdiff1d(np.arange(len(train.image_ids)), rows)
    if len(missing):
        raise InvalidInputError(
            f"{os.fspath(path)}: {len(missing):,} of the {len(train.image_ids):,} "
            "training images are with no client, the first of them "
            f"{train.image_ids[missing[0]]!r} ({train.where(missing[0])})."
        )
    client_ids = list(dict.fromkeys(split.clients))
    position = {client_id: k for k, client_id in enumerate(client_ids)}
    client_of = np.array([position[client_id] for client_id in split.clients])
    by_client = np.argsort(client_of, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(client_of)))
    return partitions.Partition(client_ids, rows[by_client], starts)


def _csv_line(path: os.PathLike, row: int) -> str:
    """Names the line of a row of a CSV file that `split_csv` has read."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        lines = [reader.line_num for fields in reader if fields]
    return f"{os.fspath(path)}, line {lines[row + 1]}"


# Where the data is.


class _Place(NamedTuple):
    """What was found in a data_dir.

    Attributes:
        source: The data_dir, as messages are to name it.
        tfds_dir: The folder in which TFDS is to keep its data set; None: its own.
        archive: The zip, if there is one.
        folder: The unpacked folder, if there is one and no zip.
    """

    source: str
    tfds_dir: pathlib.Path | None
    archive: pathlib.Path | None = None
    folder: pathlib.Path | None = None


def _find(data_dir: os.PathLike | None) -> _Place:
    if data_dir is None:
        return _Place("Without `data_dir`", None)
    source = f"data_dir={os.fspath(data_dir)}"
    path = pathlib.Path(data_dir).absolute()
    layout = (
        f"expected {ARCHIVE}, or a folder that holds it, or {FOLDER}/Ebay_train.txt, "
        f"or TFDS's {_BUILDER}"
    )
    if path.is_file():
        if path.suffix.lower() != ".zip":
            raise InvalidInputError(f"{source} is a file but no zip; {layout}.")
        return _Place(source, path.parent, archive=path)
    if not path.is_dir():
        raise InvalidInputError(f"{source} does not exist; {layout}.")
    if (path / ARCHIVE).is_file():
        return _Place(source, path, archive=path / ARCHIVE)
    for folder, parent in ((path / FOLDER, path), (path, path.parent)):
        if any((folder / name).is_file() for name in _LISTINGS.values()):
            return _Place(source, parent, folder=folder)
    if (path / _BUILDER).is_dir():
        return _Place(source, path)
    found = sorted(entry.name for entry in path.iterdir())
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    raise InvalidInputError(f"{source}: {layout}; found {shown or 'an empty folder'}.")


class _Files:
    """The files of the original, in the zip or unpacked."""

    def __init__(self, root: str, names: set[str] | None, read: Callable[[str], bytes]):
        self._root = root
        self._names = names
        self._read = read

    def name(self, path: str) -> str:
        """What to call a file in a message."""
        return f"{self._root}/{path}"

    def has(self, path: str) -> bool:
        """Whether there is a file of this path, relative to the listings' folder."""
        if self._names is not None:
            return path in self._names
        return os.path.isfile(self.name(path))

    def read(self, path: str) -> bytes:
        """Returns the content of a file; raises ValueError with the reason if not."""
        if not self.has(path):
            raise ValueError(_NO_FILE)
        try:
            return self._read(path)
        except archives.DAMAGED as e:
            raise ValueError(f"cannot be read: {_line(e)}") from e


@contextlib.contextmanager
def _open(place: _Place) -> Iterator[_Files]:
    if place.folder is not None:
        yield _Files(
            os.fspath(place.folder),
            None,
            lambda path: files.read(place.folder / path),
        )
        return
    try:
        zipped = zipfile.ZipFile(place.archive)
    except archives.DAMAGED as e:
        raise InvalidInputError(
            f"{place.source}: {place.archive.name} is not a whole zip: {_line(e)} (it "
            f"has {place.archive.stat().st_size:,} bytes)."
        ) from e
    prefix = f"{FOLDER}/"
    with zipped:
        names = {
            name.removeprefix(prefix)
            for name in zipped.namelist()
            if name.startswith(prefix)
        }
        yield _Files(
            os.fspath(place.archive / FOLDER),
            names,
            lambda path: zipped.read(prefix + path),
        )


def read_train_listing(data_dir: os.PathLike) -> Listing:
    """Reads and checks Ebay_train.txt alone; needs no image.

    Args:
        data_dir: As for `load`, but not None, and with the zip or its unpacked folder;
            of the latter, Ebay_train.txt is enough.

    Returns:
        The listing.

    Raises:
        InvalidInputError: If it is not there or damaged.
    """
    place = _find(data_dir)
    if place.archive is None and place.folder is None:
        raise InvalidInputError(
            f"{place.source}: found no {ARCHIVE} and no {FOLDER}/Ebay_train.txt; "
            "one of them is needed for the images' ids."
        )
    with _open(place) as original:
        return _read_train(original)


def _read_train(original: _Files) -> Listing:
    train = _read_listing(original, _LISTINGS["train"])
    present = np.unique(train.labels)
    gaps = np.flatnonzero(present != np.arange(len(present)))
    if len(gaps):
        row = int(np.flatnonzero(train.labels == present[gaps[0]])[0])
        raise InvalidInputError(
            f"{train.where(row)}: class_id {present[gaps[0]] + 1}, but no row has "
            f"class_id {gaps[0] + 1}; training classes must be numbered from 1 without "
            "gaps."
        )
    return train


def _read_test(original: _Files, train: Listing) -> Listing:
    test = _read_listing(original, _LISTINGS["test"])
    for row in np.flatnonzero(np.isin(test.labels, train.labels))[:1]:
        other = int(np.flatnonzero(train.labels == test.labels[row])[0])
        raise InvalidInputError(
            f"{test.where(row)}: class_id {test.labels[row] + 1} is a training class "
            f"too ({train.where(other)}); test classes must be others."
        )
    return test


def _read_listing(original: _Files, file_name: str) -> Listing:
    name = original.name(file_name)
    try:
        text = original.read(file_name).decode("utf-8")
    except UnicodeDecodeError as e:
        raise InvalidInputError(f"{name}: is not UTF-8 text: {e.reason}.") from e
    except ValueError as e:
        raise InvalidInputError(f"{name}: {e}.") from e
    # As TFDS reads it: what is a row, and so the number of each row, must be the same.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=" ")
    rows = ((reader.line_num, row) for row in _csv_rows(reader, name) if row)
    _, header = next(rows, (1, []))
    missing = [column for column in _COLUMNS if header.count(column) != 1]
    if missing:
        raise InvalidInputError(
            f"{name}, line 1: expected the columns {' '.join(_COLUMNS)}, once each; "
            f"found {' '.join(header) or 'nothing'}."
        )
    places = [header.index(column) for column in _COLUMNS]

    line_of_image, line_of_path, labels = {}, {}, []
    for line, row in rows:
        where = f"{name}, line {line}"
        if len(row) != len(header):
            raise InvalidInputError(
                f"{where}: found {len(row)} fields; the header has {len(header)}."
            )
        image_id, class_id, super_class_id, path = (row[place] for place in places)
        if not image_id.strip():
            raise InvalidInputError(f"{where}: the image_id is blank.")
        if not image_id.isprintable():
            raise InvalidInputError(
                f"{where}: the image_id {image_id!r} has a character that cannot be "
                "printed."
            )
        labels.append(_to_number(class_id, "class_id", _NUM_CLASSES, where) - 1)
        _to_number(super_class_id, "super_class_id", _NUM_SUPER_CLASSES, where)
        if not _is_below(path):
            raise InvalidInputError(
                f"{where}: the path {path!r} is not one below {FOLDER}."
            )
        for what, value, line_of in (
            ("image_id", image_id, line_of_image),
            ("path", path, line_of_path),
        ):
            if line_of.setdefault(value, line) != line:
                raise InvalidInputError(
                    f"{where}: the {what} {value!r} is already on line "
                    f"{line_of[value]}; every image may be there once only."
                )
    if not labels:
        raise InvalidInputError(f"{name}: found no row; expected a line per image.")
    return Listing(
        list(line_of_image),
        np.array(labels, np.int32),
        list(line_of_path),
        list(line_of_image.values()),
        name,
    )


def _csv_rows(reader: Any, name: str) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as e:
        raise InvalidInputError(f"{name}, line {reader.line_num}: {e}.") from e


def _to_number(text: str, column: str, largest: int, where: str) -> int:
    if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= largest:
        raise InvalidInputError(
            f"{where}: the {column} {text!r} is not an integer in 1..{largest}."
        )
    return int(text)


def _is_below(path: str) -> bool:
    parts = path.split("/")
    return all(parts) and not {".", ".."} & set(parts)


def _check_images(original: _Files, listing: Listing) -> None:
    """Reads every image of a listing and checks that it decodes, several at a time."""

    def problem(row: int) -> str | None:
        if stop.is_set():
            return None
        path = listing.paths[row]
        try:
            image_files.check(original.read(path))
        except ValueError as e:
            return f"{listing.where(row)}: the image {path}: {e}."
        return None

    # Found at once, where reading them takes minutes.
    for row, path in enumerate(listing.paths):
        if not original.has(path):
            raise InvalidInputError(
                f"{listing.where(row)}: the image {path}: {_NO_FILE}."
            )
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = tqdm.tqdm(
            pool.map(problem, range(len(listing.paths))),
            desc=f"Checking {listing.name.rpartition('/')[2]}",
            total=len(listing.paths),
            unit=" images",
            delay=2,
            disable=None,
        )
        try:
            for found in problems:
                if found:
                    raise InvalidInputError(found)
        finally:
            stop.set()


# TFDS.


class _Prepared(NamedTuple):
    """TFDS's data set, ready, and what its rows are.

    Attributes:
        builder: The `tfds.core.DatasetBuilder`.
        train: The listing of the training images; None if only TFDS's files are there.
        test: That of the test images, likewise.
    """

    builder: Any
    train: Listing | None
    test: Listing | None


def _prepare(place: _Place) -> _Prepared:
    """Has TFDS make its files where that has not been done."""
    # Imported here: it takes seconds, and a partition needs none of it.
    import tensorflow_datasets as tfds

    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    builder = _builder(tfds, place.tfds_dir)
    is_ready = builder.data_path.exists()
    if place.archive is None and place.folder is None:
        if not is_ready:
            if place.tfds_dir is not None:
                raise InvalidInputError(
                    f"{place.source}: {builder.data_dir} does not exist; expected "
                    f"TFDS's {_BUILDER} there, or {ARCHIVE} in {place.tfds_dir}."
                )
            _run_tfds(
                place,
                builder,
                tfds.download.DownloadConfig(force_checksums_validation=True),
            )
        return _Prepared(builder, None, None)

    with _open(place) as original:
        train = _read_train(original)
        test = _read_test(original, train)
        if not is_ready and not os.access(place.tfds_dir, os.W_OK):
            builder = _builder(tfds, None)
            is_ready = builder.data_path.exists()
            print(
                f"TFDS keeps its files in {builder.data_dir}: nothing can be written "
                f"to {place.tfds_dir}.",
                file=sys.stderr,
            )
        if not is_ready:
            _check_images(original, train)
            _check_images(original, test)
    if not is_ready:
        _prepare_from(place, builder)
    return _Prepared(builder, train, test)


def _builder(tfds: Any, tfds_dir: pathlib.Path | None) -> Any:
    return tfds.builder(_BUILDER, data_dir=tfds_dir and os.fspath(tfds_dir))


def _prepare_from(place: _Place, builder: Any) -> None:
    """Has TFDS make its files from the user's, which stay as they are."""
    import tensorflow_datasets as tfds

    os.makedirs(builder.data_dir_root, exist_ok=True)
    # Unpacked here and not where TFDS would, because TFDS takes what was unpacked from
    # another zip of this name for the zip at hand.
    with tempfile.TemporaryDirectory(
        prefix=f".{_BUILDER}_", dir=builder.data_dir_root
    ) as scratch:
        root = pathlib.Path(scratch)
        manual = root / "manual"
        manual.mkdir()
        config = tfds.download.DownloadConfig(
            manual_dir=manual, extract_dir=root / "extracted", try_download_gcs=False
        )
        if place.archive is not None:
            # The name by which TFDS knows it.
            (manual / ARCHIVE).symlink_to(place.archive)
            config.force_checksums_validation = _is_as_large_as_published(
                place, builder
            )
        else:
            (manual / FOLDER).symlink_to(place.folder, target_is_directory=True)
            make = builder._split_generators
            builder._split_generators = lambda _: make(_Unpacked(manual))
        _run_tfds(place, builder, config, root / "downloads")


class _Unpacked:
    """Stands in for TFDS's download manager where there is nothing left to do."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def download_and_extract(self, url: str) -> str:
        """Returns the folder in which the archive's content lies already."""
        del url
        return os.fspath(self._folder)


def _is_as_large_as_published(place: _Place, builder: Any) -> bool:
    (published,) = builder.url_infos.values()
    size = place.archive.stat().st_size
    if size == published.size:
        return True
    print(
        f"{place.archive} is not the published {ARCHIVE}: it has {size:,} bytes, "
        f"expected {int(published.size):,}. Each of its images was checked instead.",
        file=sys.stderr,
    )
    return False


def _run_tfds(
    place: _Place,
    builder: Any,
    config: Any,
    download_dir: pathlib.Path | None = None,
) -> None:
    from tensorflow_datasets.core.download import download_manager

    try:
        builder.download_and_prepare(
            download_dir=download_dir and os.fspath(download_dir),
            download_config=config,
        )
    except download_manager.NonMatchingChecksumError as e:
        raise InvalidInputError(
            f"{place.source}: {ARCHIVE} has not the checksum of the published one, "
            "though its size: it is damaged. Get it again."
        ) from e
    # TFDS raises what its parts raise: a full disk, a failed connection, a zip that
    # changes under its hands.
    except Exception as e:
        hint = (
            f" Name a folder that has {ARCHIVE} with `data_dir`."
            if place.tfds_dir is None
            else ""
        )
        raise InvalidInputError(
            f"{place.source}: TFDS could not prepare {_BUILDER} "
            f"({type(e).__name__}: {_line(e)}).{hint}"
        ) from e


# The records.


def _rows_of_records(split: str, num_records: int) -> np.ndarray:
    """Returns the row of the listing that each record of a TFDS split was made from.

    TFDS sorts the records by the MD5 of the name of the split followed by the key of
    the example, which is here the number of its row.

    Args:
        split: "train" or "test".
        num_records: N.

    Returns:
        int64[N], a permutation.
    """
    salt = hashlib.md5(split.encode(), usedforsecurity=False)

    def digest(row: int) -> bytes:
        md5 = salt.copy()
        md5.update(str(row).encode())
        return md5.digest()

    return np.array(sorted(range(num_records), key=digest), np.int64)


def _index_of(builder: Any) -> tuple[records.RecordIndex, Mapping[str, int]]:
    """Returns the index, train before test, and how many records each split has."""
    info = builder.info
    if info.file_format.value != "tfrecord" or not set(_LISTINGS) <= set(info.splits):
        raise InvalidInputError(
            f"{builder.data_dir}: has the splits {', '.join(info.splits)} in TFDS's "
            f"format {info.file_format.value}; expected train and test in tfrecord."
        )
    splits = [info.splits[split] for split in _LISTINGS]
    paths = [os.fspath(path) for split in splits for path in split.filepaths]
    lengths = [length for split in splits for length in split.shard_lengths]
    index = records.build_index(
        paths,
        records.example_parser(_IMAGE_FEATURE, _CLASS_FEATURE, _NUM_CLASSES),
        cache_dir=builder.data_dir,
        what=TITLE,
    )
    # A file that ends between two records looks whole.
    found = np.bincount(index.records["file"], minlength=len(paths))
    for path, expected, count in zip(paths, lengths, found, strict=True):
        if count != expected:
            raise InvalidInputError(
                f"{path}: found {count:,} records; expected {expected:,}."
            )
    return index, {
        name: sum(split.shard_lengths)
        for name, split in zip(_LISTINGS, splits, strict=True)
    }


def _find_records(
    builder: Any,
    index: records.RecordIndex,
    first: int,
    num_records: int,
    listing: Listing,
    split: str,
) -> np.ndarray:
    """Finds the record of every row of a listing.

    Args:
        builder: Where the records come from, for a message.
        index: The records of all splits.
        first: The position of the split's first record in the index.
        num_records: How many records the split has.
        listing: What the split was made from.
        split: "train" or "test".

    Returns:
        Positions in the index, int64[N].

    Raises:
        InvalidInputError: If the split was not made from this listing.
    """
    num_rows = len(listing.labels)
    remedy = f"Remove {builder.data_dir} to have it made again."
    if num_records != num_rows:
        raise InvalidInputError(
            f"{builder.data_dir}: was made from another archive: its {split} split has "
            f"{num_records:,} records; expected {num_rows:,}, by {listing.name}. "
            f"{remedy}"
        )
    row_of_record = _rows_of_records(split, num_rows)
    labels = index.records["label"][first : first + num_rows]
    differ = np.flatnonzero(labels != listing.labels[row_of_record])
    if len(differ):
        record, row = differ[0], row_of_record[differ[0]]
        raise InvalidInputError(
            f"{builder.data_dir}: was made from another archive: record {record:,} of "
            f"its {split} split has the class_id {labels[record] + 1}; expected "
            f"{listing.labels[row] + 1}, by {listing.where(row)}. {remedy}"
        )
    return first + np.argsort(row_of_record)


def _infer_train_listing(
    builder: Any, index: records.RecordIndex, num_records: int
) -> Listing:
    """Finds the rows of Ebay_train.txt again where only TFDS's files are there.

    In the original, the image_id is the number of the row, from 1, and class_ids
    increase from row to row.

    Raises:
        InvalidInputError: If the records' class_ids do not.
    """
    labels = np.empty(num_records, np.int32)
    labels[_rows_of_records("train", num_records)] = index.records["label"][
        :num_records
    ]
    steps = np.diff(labels, prepend=-1)
    if steps[0] != 1 or not np.isin(steps, (0, 1)).all():
        raise InvalidInputError(
            f"{builder.data_dir}: the images' ids cannot be told from these files, as "
            "they are not in TFDS's order of the original. Put the archive from which "
            f"they were made, {ARCHIVE}, beside them in {builder.data_dir_root}."
        )
    rows = range(num_records)
    return Listing(
        [str(row + 1) for row in rows],
        labels,
        [],
        [row + 2 for row in rows],
        _LISTINGS["train"],
    )


def _line(error: Exception) -> str:
    """The message of an exception on one line."""
    return " ".join(str(error).split()) or type(error).__name__
