"""Stanford Online Products: from the original archive, through TFDS, to the clients."""

import collections
import hashlib
import io
import os
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import tensorflow_federated as tff
from PIL import Image
from tensorflow_datasets.core import shuffle

from tests import sop_archive
from tff_fedss.datasets import stanford_online_products as sop
from tff_fedss.datasets.federated import split_csv
from tff_fedss.errors import InvalidInputError

_TRAIN, _TEST = sop_archive.listings(
    sop_archive.made_up_products([5, 3, 7, 2, 6, 4, 8, 5, 3]),
    sop_archive.made_up_products([3] * 20)[9:],
)
_CLASS = {image_id: class_id for image_id, class_id, _, _ in [*_TRAIN, *_TEST]}
_TRAIN_IDS = [row[0] for row in _TRAIN]
_TEST_IDS = [row[0] for row in _TEST]
_ZIP = sop_archive.FOLDER + ".zip"
_LISTING = f"{sop_archive.FOLDER}/Ebay_train.txt"
_TEST_LISTING = f"{sop_archive.FOLDER}/Ebay_test.txt"
_SIZES = dict(image_size=8, images_per_client=10)


def _archive():
    return sop_archive.files(_TRAIN, _TEST)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with the zip and what TFDS made of it."""
    folder = tmp_path_factory.mktemp("sop")
    sop_archive.write_zip(folder / _ZIP, _archive())
    sop.load(folder, **_SIZES)
    return folder


@pytest.fixture(scope="module")
def dataset(prepared):
    return sop.load(prepared, **_SIZES)


def _ids(examples):
    """The image_ids of examples that are ready, told from their pixels."""
    return [sop_archive.image_id_of(e["image"]) for e in examples.as_numpy_iterator()]


def _clients(dataset):
    seed = np.array([0, 0], np.int32)
    return {
        client_id: _ids(dataset.client_examples(client_id, seed))
        for client_id in dataset.train.client_ids
    }


@pytest.fixture(scope="module")
def clients(dataset):
    return _clients(dataset)


# The clients.


def test_every_training_image_is_with_one_client(clients):
    assert [len(ids) for ids in clients.values()] == [10, 10, 10, 10, 3]
    assert sorted(i for ids in clients.values() for i in ids) == _TRAIN_IDS


def test_labels_and_positives_are_those_of_the_images(dataset, clients):
    for client_id, ids in clients.items():
        data = dataset.train.create_tf_dataset_for_client(client_id)
        labels = [e["label"] for e in data.as_numpy_iterator()]
        assert labels == [_CLASS[i] - 1 for i in ids]
        assert dataset.positives(client_id).tolist() == sorted(set(labels))
        assert dataset.num_examples(client_id) == len(ids)
    sizes = [len(dataset.positives(client_id)) for client_id in clients]
    assert dataset.max_positives == max(sizes)


def test_products_are_cut_at_the_ends_of_clients_only(clients):
    holders = collections.Counter(
        class_id for ids in clients.values() for class_id in {_CLASS[i] for i in ids}
    )
    assert sum(holders.values()) <= len(holders) + len(clients) - 1


def test_what_is_said_of_the_data_set(dataset):
    assert dataset.num_classes == 9
    assert dataset.image_shape == (8, 8, 3)
    assert dataset.test.num_examples == len(_TEST)
    assert dataset.test_is_unseen
    assert "43 training images; not the original, which has 59,551" in dataset.note
    assert "5 clients" in dataset.summary()


def test_the_seed_decides_the_partition(prepared, clients):
    assert _clients(sop.load(prepared, **_SIZES)) == clients
    other = _clients(sop.load(prepared, **_SIZES, seed=1))
    assert other != clients
    assert sorted(i for ids in other.values() for i in ids) == _TRAIN_IDS


def test_the_test_images_are_of_other_classes(dataset):
    ids = _ids(dataset.test_examples())
    assert sorted(ids) == _TEST_IDS
    labels = [e["label"] for e in dataset.test.data.as_numpy_iterator()]
    assert labels == [_CLASS[i] - 1 for i in ids]
    assert min(labels) >= dataset.num_classes


def test_all_training_images_together(dataset):
    seed = tf.constant([0, 0])
    pooled = dataset.pooled_examples()
    assert sorted(_ids(pooled.map(lambda e: dataset.ready(e, seed)))) == _TRAIN_IDS
    assert pooled.cardinality() == len(_TRAIN)


def test_pixels_are_those_of_the_files(dataset):
    read = dataset.preprocessing.read
    for example in dataset.test.data.take(3):
        image = read(example["image"]).numpy()
        encoded = sop_archive.jpeg(sop_archive.image_id_of(image))
        expected = tf.io.decode_image(encoded, channels=3)
        np.testing.assert_array_equal(image, expected)
        pillow = np.asarray(Image.open(io.BytesIO(encoded))).astype(int)
        assert np.abs(image - pillow).max() <= 2


def test_a_tff_worker_reads_a_clients_images(dataset, clients):
    element = collections.OrderedDict(image=(np.uint8, [8, 8, 3]), label=np.int32)

    @tff.tensorflow.computation(tff.SequenceType(element))
    def stack(data):
        return data.batch(10).get_single_element()

    seed = np.array([0, 0], np.int32)
    found = stack(dataset.client_examples("client_0", seed))
    ids = [sop_archive.image_id_of(image) for image in found["image"]]
    assert ids == clients["client_0"]
    np.testing.assert_array_equal(found["label"], [_CLASS[i] - 1 for i in ids])


def test_real_file_names(test_data, tmp_path):
    products = sop_archive.real_products(test_data)[1000:1030]
    train, test = sop_archive.listings(products[:20], products[20:])
    sop_archive.write_zip(tmp_path / _ZIP, sop_archive.files(train, test))
    dataset = sop.load(tmp_path, image_size=8, images_per_client=25)
    ids = [i for ids in _clients(dataset).values() for i in ids]
    assert sorted(ids) == [row[0] for row in train]
    assert dataset.num_classes == 20


# Where the data may be.


@pytest.mark.parametrize(
    "layout", ["zip", "other name", "folder", "unpacked", "unpacked, other name"]
)
def test_every_place_gives_the_same_clients(layout, tmp_path, clients):
    data_dir = tmp_path
    if layout == "zip":
        data_dir = tmp_path / _ZIP
        sop_archive.write_zip(data_dir, _archive())
    elif layout == "other name":
        data_dir = tmp_path / "products.ZIP"
        sop_archive.write_zip(data_dir, _archive())
    else:
        sop_archive.write_folder(tmp_path, _archive())
        if layout != "folder":
            data_dir = tmp_path / sop_archive.FOLDER
        if layout == "unpacked, other name":
            data_dir = data_dir.rename(tmp_path / "SOP")
    assert _clients(sop.load(data_dir, **_SIZES)) == clients
    # Nothing but TFDS's own is left behind, and the user's files are as they were.
    left = {path.name for path in tmp_path.iterdir()} - {"SOP", data_dir.name}
    assert left <= {"stanford_online_products", _ZIP, sop_archive.FOLDER}
    if data_dir.is_file():
        assert zipfile.ZipFile(data_dir).testzip() is None


def _prepare_with_tfds(folder, **config):
    """What a user has who called TFDS, without this project."""
    manual = folder / "manual"
    manual.mkdir(parents=True)
    sop_archive.write_zip(manual / _ZIP, _archive())
    builder = tfds.builder("stanford_online_products", data_dir=folder / "tfds")
    builder.download_and_prepare(
        download_dir=folder / "downloads",
        download_config=tfds.download.DownloadConfig(
            manual_dir=manual, try_download_gcs=False, **config
        ),
    )
    return folder / "tfds"


@pytest.mark.parametrize("on_disk", [False, True])
def test_tfds_data_of_several_shards_with_and_without_the_archive(
    on_disk, tmp_path, clients, monkeypatch
):
    if on_disk:  # As for a split of more than 1 GB, which the original's are.
        monkeypatch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", 2000)
    folder = _prepare_with_tfds(tmp_path, num_shards=3)
    assert len(list(folder.glob("*/1.0.0/*-train.tfrecord-0000?-of-00003"))) == 3
    assert _clients(sop.load(folder, **_SIZES)) == clients
    sop_archive.write_zip(folder / _ZIP, _archive())
    assert _clients(sop.load(folder, **_SIZES)) == clients


def test_what_is_prepared_is_plain_tfds_data(prepared):
    data = tfds.load(
        "stanford_online_products", data_dir=prepared, split="train", download=False
    )
    found = [
        (sop_archive.image_id_of(e["image"]), int(e["class_id"]))
        for e in data.as_numpy_iterator()
    ]
    assert sorted(found) == [(i, _CLASS[i] - 1) for i in _TRAIN_IDS]


def test_a_folder_that_cannot_be_written_to(tmp_path, clients, monkeypatch, capsys):
    sop_archive.write_zip(tmp_path / _ZIP, _archive())
    home = tmp_path / "home"
    monkeypatch.setenv("TFDS_DATA_DIR", str(home))
    access = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: pathlib.Path(path) != tmp_path and access(path, mode),
    )
    assert _clients(sop.load(tmp_path, **_SIZES)) == clients
    assert f"TFDS keeps its files in {home}" in capsys.readouterr().err
    assert not (tmp_path / "stanford_online_products").exists()
    assert (home / "stanford_online_products" / "1.0.0").is_dir()


def test_nothing_that_could_be_read(tmp_path):
    with pytest.raises(InvalidInputError, match=r"data_dir=.*/none does not exist"):
        sop.load(tmp_path / "none")
    (tmp_path / "readme").touch()
    with pytest.raises(InvalidInputError, match="Ebay_train.txt.*found readme"):
        sop.load(tmp_path)
    with pytest.raises(InvalidInputError, match="is a file but no zip"):
        sop.load(tmp_path / "readme")
    (tmp_path / "stanford_online_products").mkdir()
    with pytest.raises(InvalidInputError, match=r"1\.0\.0 does not exist; expected"):
        sop.load(tmp_path)


def test_a_download_that_fails(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(InvalidInputError) as raised:
        sop.load()
    message = str(raised.value)
    assert "ConnectionError: no route to host" in message
    assert "data_dir" in message
    assert "\n" not in message


# The published checksum.


@pytest.fixture
def published(monkeypatch):
    """Makes TFDS take an archive for the published one: (zip, sha256) -> None."""

    def publish(path, sha256):
        cls = tfds.builder_cls("stanford_online_products")
        ((url, info),) = cls.url_infos.items()
        changed = type(info)(
            size=tfds.core.utils.Size(path.stat().st_size),
            checksum=sha256,
            filename=info.filename,
        )
        monkeypatch.setattr(cls, "url_infos", {url: changed})

    return publish


def test_an_archive_of_another_size_is_taken_and_said_to_be_another(tmp_path, capsys):
    sop_archive.write_zip(tmp_path / _ZIP, _archive())
    sop.load(tmp_path, **_SIZES)
    said = capsys.readouterr().err.splitlines()
    (line,) = (line for line in said if "published" in line)
    assert f"{(tmp_path / _ZIP).stat().st_size:,} bytes" in line
    assert "expected 3,083,860,082" in line


def test_an_archive_of_the_published_size_must_have_its_checksum(
    tmp_path, published, capsys
):
    path = tmp_path / _ZIP
    sop_archive.write_zip(path, _archive())
    published(path, "0" * 64)
    with pytest.raises(InvalidInputError, match=r"has not the checksum"):
        sop.load(tmp_path, **_SIZES)
    assert [entry.name for entry in tmp_path.rglob("*.tfrecord*")] == []
    published(path, hashlib.sha256(path.read_bytes()).hexdigest())
    assert sop.load(tmp_path, **_SIZES).num_classes == 9
    assert "published" not in capsys.readouterr().err


# What can be wrong with the listings.


def _listing_with(change, rows=None):
    lines = sop_archive.text(rows or _TRAIN).decode().splitlines()
    change(lines)
    return "".join(f"{line}\n" for line in lines).encode()


def _set(line, text):
    def change(lines):
        lines[line - 1] = text

    return change


_HEADER = sop_archive.HEADER
_BAD_LISTINGS = {
    "empty": (lambda lines: lines.clear(), "line 1: .*found nothing"),
    "no row": (lambda lines: lines.__delitem__(slice(1, None)), "found no row"),
    "missing column": (
        _set(1, "image_id class super_class_id path"),
        "line 1: expected the columns image_id class_id .*found image_id class super",
    ),
    "column twice": (_set(1, _HEADER + " path"), "line 1: expected the columns"),
    "short row": (_set(4, "3 1 1"), "line 4: found 3 fields; the header has 4"),
    "long row": (_set(4, "3 1 1 a b"), "line 4: found 5 fields"),
    "class 0": (_set(2, "1 0 1 a.JPG"), r"line 2: the class_id '0' .*in 1\.\.22634"),
    "class too large": (_set(3, "2 22635 1 a.JPG"), "line 3: the class_id '22635'"),
    "class no number": (_set(3, "2 one 1 a.JPG"), "line 3: the class_id 'one'"),
    "super class": (_set(3, "2 1 13 a.JPG"), "line 3: the super_class_id '13'"),
    "duplicate id": (
        _set(6, "2 1 1 x.JPG"),
        "line 6: the image_id '2' is already on line 3",
    ),
    "duplicate path": (
        _set(6, f"5 1 1 {_TRAIN[1][3]}"),
        "line 6: the path .* is already on line 3",
    ),
    "no id": (_set(3, " 1 1 a.JPG"), "line 3: the image_id is blank"),
    "path upwards": (_set(3, "2 1 1 ../a.JPG"), "line 3: the path '../a.JPG' is not"),
    "absolute path": (_set(3, "2 1 1 /a.JPG"), "line 3: the path '/a.JPG' is not"),
    "gap": (
        _set(len(_TRAIN) + 1, "43 11 1 a.JPG"),
        "line 44: class_id 11, but no row has class_id 10",
    ),
}


@pytest.mark.parametrize("problem", _BAD_LISTINGS)
def test_a_bad_listing_is_named_with_its_line(problem, tmp_path):
    change, reason = _BAD_LISTINGS[problem]
    content = {**_archive(), _LISTING: _listing_with(change)}
    sop_archive.write_zip(tmp_path / _ZIP, content)
    with pytest.raises(InvalidInputError, match=rf"Ebay_train\.txt(, |: ){reason}"):
        sop.load(tmp_path)


def test_lines_are_counted_with_blank_ones_but_rows_are_not(tmp_path, clients):
    def blank(lines):
        lines.insert(3, "")

    good = {**_archive(), _LISTING: _listing_with(blank)}
    sop_archive.write_folder(tmp_path / "good", good)
    assert _clients(sop.load(tmp_path / "good", **_SIZES)) == clients

    def bad(lines):
        blank(lines)
        lines[9] = "9 2"

    sop_archive.write_folder(tmp_path / "bad", {_LISTING: _listing_with(bad)})
    with pytest.raises(InvalidInputError, match="line 10: found 2 fields"):
        sop.load(tmp_path / "bad")


def test_a_listing_that_is_missing_or_no_text(tmp_path):
    content = _archive()
    del content[_TEST_LISTING]
    sop_archive.write_zip(tmp_path / _ZIP, content)
    with pytest.raises(InvalidInputError, match=r"Ebay_test\.txt: there is no such"):
        sop.load(tmp_path)
    content[_LISTING] = b"image_id class_id super_class_id path\n1 1 1 \xff.JPG\n"
    sop_archive.write_zip(tmp_path / _ZIP, content)
    with pytest.raises(InvalidInputError, match=r"Ebay_train\.txt: is not UTF-8"):
        sop.load(tmp_path)


def test_a_test_class_that_is_a_training_class_too(tmp_path):
    listing = _listing_with(_set(5, "47 3 1 a.JPG"), _TEST)
    sop_archive.write_zip(tmp_path / _ZIP, {**_archive(), _TEST_LISTING: listing})
    with pytest.raises(
        InvalidInputError,
        match=r"Ebay_test\.txt, line 5: class_id 3 is a training class too .*line 10\)",
    ):
        sop.load(tmp_path)


# What can be wrong with the images and the archive.


@pytest.mark.parametrize(("split", "unpacked"), [("train", False), ("test", True)])
def test_missing_and_corrupt_images_are_named_and_can_be_mended(
    split, unpacked, tmp_path, clients
):
    listing, rows = {
        "train": ("Ebay_train.txt", _TRAIN),
        "test": ("Ebay_test.txt", _TEST),
    }[split]
    path = rows[7][3]
    name = f"{sop_archive.FOLDER}/{path}"
    write = sop_archive.write_folder if unpacked else sop_archive.write_zip
    target = tmp_path if unpacked else tmp_path / _ZIP
    where = rf"{listing}, line 9: the image {path}: "

    whole = _archive()
    for content, reason in (
        (whole[name][:-20], "is cut off or damaged"),
        (b"<html>", "is neither a JPEG nor a PNG"),
        (b"", "is empty"),
    ):
        write(target, {**whole, name: content})
        with pytest.raises(InvalidInputError, match=where + reason):
            sop.load(tmp_path, **_SIZES)
    without = {key: value for key, value in whole.items() if key != name}
    if unpacked:
        (tmp_path / name).unlink()
    write(target, without)
    with pytest.raises(InvalidInputError, match=where + "there is no such file"):
        sop.load(tmp_path, **_SIZES)

    write(target, whole)
    assert _clients(sop.load(tmp_path, **_SIZES)) == clients


def test_a_zip_that_is_cut_off_or_damaged(tmp_path):
    path = tmp_path / _ZIP
    sop_archive.write_zip(path, _archive())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInputError, match=r"zip is not a whole zip.*bytes\)"):
        sop.load(tmp_path)

    image = sop_archive.jpeg(_TRAIN[4][0])
    damaged = bytearray(whole)
    damaged[whole.index(image) + len(image) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(
        InvalidInputError, match=r"line 6: the image .*_4\.JPG: cannot be read: Bad CRC"
    ):
        sop.load(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {_ZIP}


def test_tfds_files_that_are_damaged_or_of_another_archive(prepared, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(prepared, folder)
    (records,) = folder.glob("*/1.0.0/*-test.tfrecord-*")
    content = records.read_bytes()
    records.write_bytes(content[:-100])
    with pytest.raises(
        InvalidInputError, match=r"-test\.tfrecord-.*, record .*cut off"
    ):
        sop.load(folder)

    (first,) = folder.glob("*/1.0.0/*-train.tfrecord-*")
    length = int.from_bytes(first.read_bytes()[:8], "little") + 16
    first.write_bytes(first.read_bytes()[:length])
    records.write_bytes(content)
    with pytest.raises(InvalidInputError, match="found 1 records; expected 43"):
        sop.load(folder)

    shutil.rmtree(folder)
    shutil.copytree(prepared, folder)
    swapped = [[i, 10 - class_id, *rest] for i, class_id, *rest in _TRAIN]
    for rows, reason in (
        (_TRAIN[:-1], r"train split has 43 records; expected 42"),
        (swapped, r"record \d+ of its train split has the class_id"),
    ):
        sop_archive.write_zip(folder / _ZIP, sop_archive.files(rows, _TEST))
        with pytest.raises(InvalidInputError, match=f"another archive: .*{reason}"):
            sop.load(folder)


def test_tfds_files_alone_that_are_not_in_the_order_of_the_original(tmp_path):
    rows = [_TRAIN[i] for i in np.random.default_rng(0).permutation(len(_TRAIN))]
    sop_archive.write_zip(tmp_path / _ZIP, sop_archive.files(rows, _TEST))
    dataset = sop.load(tmp_path, **_SIZES)
    expected = _clients(dataset)
    assert sorted(i for ids in expected.values() for i in ids) == _TRAIN_IDS
    (tmp_path / _ZIP).rename(tmp_path / "elsewhere.zip")
    with pytest.raises(InvalidInputError, match="ids cannot be told .*beside them"):
        sop.load(tmp_path)


# A partition from a file.


@pytest.fixture
def partition_csv(prepared, tmp_path):
    """Writes a partition and returns its path and its lines."""
    train = sop.read_train_listing(prepared)
    partition = sop.make_partition(train, 10)
    path = tmp_path / "clients.csv"
    split_csv.write(path, sop.to_split(train, partition))
    return path, path.read_text().splitlines()


def test_the_written_partition_is_the_one_that_load_makes(
    partition_csv, prepared, clients
):
    path, lines = partition_csv
    assert _clients(sop.load(prepared, image_size=8, clients_csv=path)) == clients
    rows = [line.split(",") for line in lines[1:]]
    assert rows == [
        [client_id, str(i), str(_CLASS[i] - 1)]
        for client_id, ids in clients.items()
        for i in ids
    ]


def test_clients_of_any_name_and_order(partition_csv, prepared):
    path, lines = partition_csv
    rows = [line.split(",") for line in lines[1:]]
    rng = np.random.default_rng(0)
    expected = collections.defaultdict(list)
    with path.open("w") as file:
        file.write("class,image_id,user_id\n")
        for row in rng.permutation(len(rows)):
            _, image_id, class_name = rows[row]
            user = "uvw"[int(image_id) % 3]
            file.write(f"{class_name},{image_id},{user}\n")
            expected[user].append(int(image_id))
    assert _clients(sop.load(prepared, image_size=8, clients_csv=path)) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            _set(6, "client_0,999,3"),
            "line 7: there is no image_id '999' in .*train.txt",
        ),
        (
            _set(6, "client_0,1,8"),
            r"line 7: image_id '1' has the class 8; expected 0, .*train.txt, line 2",
        ),
        (_set(6, "client_0,1,9"), r"line 7: the class 9 is not in 0\.\.8"),
        (
            lambda lines: lines.pop(),
            r"2 of the 43 training images are with no client, .*'1' \(.*txt, line 2\)",
        ),
        (lambda lines: lines.append(lines[4]), "line 45: .* is already on line 6"),
        (_set(1, "user,image_id,class"), "line 1: .*no column 'user_id'"),
    ],
)
def test_a_partition_that_does_not_fit(partition_csv, prepared, change, reason):
    path, lines = partition_csv
    lines = [line for line in lines if ",1," not in line]
    change(lines)
    lines.insert(2, "")  # A blank line is skipped, and counted.
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidInputError, match=f"clients.csv(, |: ){reason}"):
        sop.load(prepared, image_size=8, clients_csv=path)


def test_arguments_out_of_range(prepared):
    with pytest.raises(InvalidInputError, match="seed=-1"):
        sop.load(prepared, seed=-1)
    with pytest.raises(InvalidInputError, match="images_per_client=0"):
        sop.load(prepared, images_per_client=0)
    with pytest.raises(InvalidInputError, match="image_size=9"):
        sop.load(prepared, image_size=9, resize_size=8)
