"""Every reader against what may lie where its data should: one line, or the data."""

import gzip
import io
import os
import shutil
import signal
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from tests import labelled_blobs, odd_files
from tests.datasets.damaged import refused, write
from tff_fedss.datasets import (
    formats,
    images,
    tiny_imagenet,
)
from tff_fedss.datasets.central import (
    extreme,
    identities,
    labelled_images,
    penn_treebank,
)
from tff_fedss.datasets.omniglot import drawing_files
from tff_fedss.errors import InvalidInputError, RunStoppedError


@pytest.fixture(autouse=True)
def _limit():
    """A reader that waits for the other end of a pipe fails, and does not hang."""

    def fail(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# Each reader: how its data look, how to load them, and its files to spoil.


def _faces(folder):
    for person in range(8):
        for i in range(2):
            image = odd_files.encoded(colour=(20 * person, i, 0))
            write(folder / f"p{person}" / f"{i}.png", image)


def _load_faces(folder):
    data = identities.of_images(images.load_index(folder), image_size=8)
    return data, np.concatenate([data.batch(0, 12, 0)[0], data.test_examples(0, 99)])


def _labelled(folder):
    for part in ("train", "test"):
        for class_name in "ab":
            for i in range(2):
                image = odd_files.encoded(colour=(i, ord(class_name), 0))
                write(folder / part / class_name / f"{i}.png", image)


def _load_labelled(folder, image_size=16):
    return labelled_images.load("cifar10", folder, image_size=image_size)


def _tiny(folder):
    lines = []
    for class_name in "ab":
        for i in range(2):
            image = odd_files.encoded((64, 64), colour=(i, ord(class_name), 0))
            name = f"n{class_name}_{i}.JPEG"
            write(folder / f"train/n{class_name}/images/{name}", image)
            write(folder / f"val/images/v{name}", image)
            lines.append(f"v{name}\tn{class_name}\t0\t0\t1\t1\n")
    write(folder / "val/val_annotations.txt", "".join(lines))
    write(folder / "wnids.txt", "na\nnb\n")


def _load_mnist(folder):
    return labelled_images.load("mnist", folder)


def _load_tiny(folder):
    return tiny_imagenet.load(folder, image_size=32)


def _text(folder):
    for part in ("train", "valid", "test"):
        write(folder / f"ptb.{part}.txt", "a b c\n" * 50)


XMC = "3 5 4\n1,3 0:1.5 4:-2\n 2:0.5\n0\n"


def _sparse(folder):
    for part in ("train", "test"):
        write(folder / f"{part}.txt", XMC)


def _drawings(folder):
    for drawer in range(1, 21):
        name = f"Greek/character01/0001_{drawer:02}.png"
        write(folder / name, odd_files.encoded((28, 28), "1", 1))


READERS = {
    "faces": (_faces, _load_faces, ["p0/0.png", "p5/1.png"]),
    "labelled": (_labelled, _load_labelled, ["train/a/0.png", "test/b/1.png"]),
    "mnist": (
        labelled_blobs.write,
        _load_mnist,
        ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
    ),
    "tiny": (
        _tiny,
        _load_tiny,
        [
            "train/na/images/na_0.JPEG",
            "val/images/vna_0.JPEG",
            "wnids.txt",
            "val/val_annotations.txt",
        ],
    ),
    "omniglot": (
        _drawings,
        lambda folder: drawing_files.read(folder, 28),
        ["Greek/character01/0001_01.png"],
    ),
    "text": (_text, penn_treebank.load, ["ptb.train.txt", "ptb.test.txt"]),
    "sparse": (_sparse, extreme.load, ["train.txt", "test.txt"]),
}
PLACES = [(name, place) for name, (_, _, places) in READERS.items() for place in places]


@pytest.mark.parametrize("kind", ["loop", "dangling"])
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_what_is_no_file_is_named(tmp_path, name, place, kind):
    make, load, _ = READERS[name]
    make(tmp_path)
    odd_files.UNREADABLE[kind](tmp_path / place)
    refused(load, tmp_path, os.path.basename(place))


@pytest.mark.parametrize("kind", odd_files.UNUSABLE_IMAGES)
@pytest.mark.parametrize(
    ("name", "place"),
    [(name, place) for name, place in PLACES if "png" in place or "JPEG" in place],
)
def test_images_that_do_not_decode_are_named(tmp_path, name, place, kind):
    make, load, _ = READERS[name]
    make(tmp_path)
    content, reason = odd_files.UNUSABLE_IMAGES[kind]
    write(tmp_path / place, content)
    refused(load, tmp_path, os.path.basename(place), reason)


@pytest.mark.parametrize("kind", odd_files.USABLE_IMAGES)
@pytest.mark.parametrize("name", ["faces", "labelled", "tiny"])
def test_unusual_images_are_taken(tmp_path, name, kind):
    make, load, (place, *_) = READERS[name]
    make(tmp_path)
    write(tmp_path / place, odd_files.USABLE_IMAGES[kind])
    load(tmp_path)


def test_sixteen_bits_become_eight_as_tensorflow_has_it():
    import tensorflow as tf

    content = odd_files.sixteen_bits()
    pixels = formats.pixels(content)
    np.testing.assert_array_equal(pixels, tf.io.decode_image(content, 3))
    assert pixels[0, 0, 0] == 0 and pixels[0, 16, 0] == 132 and pixels[0, -1, 0] == 255


@pytest.mark.parametrize("name", ["labelled", "tiny", "omniglot", "text"])
@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_archives_that_are_none(tmp_path, name, suffix):
    _, load, _ = READERS[name]
    path = tmp_path / f"data{suffix}"
    for content in (b"", b"PK", b"noise" * 500):
        write(path, content)
        refused(load, path, path.name, "unreadable or damaged")


def test_a_damaged_name_in_a_zip_is_no_missing_image(tmp_path):
    _labelled(tmp_path / "data")
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        for file in sorted((tmp_path / "data").rglob("*.png")):
            zipped.write(file, file.relative_to(tmp_path / "data"))
    assert len(_load_labelled(path).train_labels) == 4
    head, directory = path.read_bytes().rsplit(b"train/b/1.png", 1)
    path.write_bytes(head + b"train/b/1.pnk" + directory)
    refused(_load_labelled, path, "data.zip", "differ")


def test_links_in_a_circle_end(tmp_path):
    for name, below in (("labelled", "train/a"), ("tiny", "train/na/images")):
        folder = tmp_path / name
        READERS[name][0](folder)
        for link in ("x", "y"):  # Two: the paths through them double at every step.
            (folder / below / link).symlink_to("..")
        refused(READERS[name][1], folder, "a link to a folder that it is in")


# Faces.


def test_faces_without_images_are_named(tmp_path):
    _faces(tmp_path)
    (tmp_path / "nobody").mkdir()
    write(tmp_path / "text only" / "notes.txt", "x")
    write(tmp_path / "p0" / "._0.png", "a file of another system")
    data, _ = _load_faces(tmp_path)
    assert data.summary.endswith("; without images: 'nobody', 'text only'")
    for i in range(9):
        (tmp_path / f"z{i}").mkdir()
    data, _ = _load_faces(tmp_path)
    assert data.summary.endswith("'nobody', 'text only', 'z0', ...")
    (tmp_path / "gone").symlink_to("nowhere")
    refused(_load_faces, tmp_path, "gone cannot be read: No such file")


def test_a_face_that_is_lost_while_training_stops_the_run(tmp_path):
    _faces(tmp_path)
    data, _ = _load_faces(tmp_path)
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(RunStoppedError, match=r"png can no longer be read.*same comm"):
        data.batch(0, 12, 0)


# Labelled images and MNIST's files.


def test_classes_that_cannot_be(tmp_path):
    _labelled(tmp_path / "a")
    (tmp_path / "a" / "train" / "c").mkdir()
    refused(_load_labelled, tmp_path / "a", "the folder train/c/ holds no image")
    for name in ("train/c", "train/b", "test/b"):
        shutil.rmtree(tmp_path / "a" / name)
    refused(_load_labelled, tmp_path / "a", "all images are of one class ('a')")
    write(tmp_path / "b" / "train", "x")
    refused(_load_labelled, tmp_path / "b", "found no image")


def _mnist(folder, images=None, labels=None, prefix="train"):
    labelled_blobs.write(folder)
    for what, content in (("images-idx3", images), ("labels-idx1", labels)):
        if content is not None:
            write(folder / f"{prefix}-{what}-ubyte", content)
    return folder


def _idx(*values, shape=None):
    array = np.array(values, np.uint8)
    return labelled_blobs.idx(array if shape is None else array.reshape(shape))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "labels": labelled_blobs.idx(
                    np.array([0, 1, 2] * 19 + [0, 255, 2], "u1")
                )
            },
            "train-labels-idx1-ubyte has the label 255; mnist has",
        ),
        (
            {"labels": _idx(*[0, 1, 4] * 20)},
            "no training image has the label 2",
        ),
        ({"labels": _idx(*[0] * 60)}, "no training image has the label 1"),
        ({"labels": _idx(0, 1, 2)}, "60 images, train-labels-idx1-ubyte 3 labels"),
        ({"images": b""}, "has 0 bytes; expected an IDX file of bytes in 3 dimensions"),
        ({"images": b"\0\0\x08\x03\0\0"}, "has 6 bytes; expected an IDX file"),
        ({"images": b"\0\0\x0c\x03" + bytes(12)}, "expected an IDX file of bytes in 3"),
        (
            {"images": struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**31, 4)},
            "3 dimensions, here [2147483648, 2147483648, 4]",
        ),
        (
            {"images": _idx(*[0] * 60 * 16, shape=(60, 4, 4))},
            "training images are of shape (4, 4, 1), test images of (16, 16, 1)",
        ),
        ({"images": gzip.compress(b"x")}, "expected an IDX file of bytes"),
    ],
)
def test_idx_files_that_cannot_be(tmp_path, changes, message):
    refused(_load_mnist, _mnist(tmp_path, **changes), message)


def test_idx_files_of_one_image_or_another_data_set(tmp_path):
    labelled_blobs.write(tmp_path, num_test=1)
    for path in tmp_path.glob("train-*"):
        path.unlink()
    refused(_load_mnist, tmp_path, "1 images", "two or more")
    refused(_load_labelled, tmp_path, "files of mnist or fas")


# Tiny-ImageNet.


def test_tiny_imagenet_of_one_class_and_from_an_editor(tmp_path):
    _tiny(tmp_path)
    path = tmp_path / "val" / "val_annotations.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    _load_tiny(tmp_path)
    shutil.rmtree(tmp_path / "train" / "nb")
    (tmp_path / "wnids.txt").write_text("na\n")
    refused(_load_tiny, tmp_path, "which is none of the 1 classes")


# Lists, and archives that are damaged anywhere.


def test_a_fingerprint_of_what_was_read_says_that_an_image_is_another(tmp_path):
    _faces(tmp_path)
    before = _load_faces(tmp_path)[0].fingerprint()
    write(tmp_path / "p0" / "0.png", odd_files.encoded(colour=(1, 1, 1)))
    after = _load_faces(tmp_path)[0].fingerprint()
    assert before != after and isinstance(before, dict)
    assert before.keys() == after.keys()


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_random_damage_to_an_archive_is_found(tmp_path, suffix):
    _labelled(tmp_path / "data")
    content = io.BytesIO()
    files = sorted((tmp_path / "data").rglob("*.png"))
    if suffix == ".zip":
        with zipfile.ZipFile(content, "w") as zipped:
            for file in files:
                zipped.write(file, file.relative_to(tmp_path / "data"))
    else:
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            for file in files:
                tar.add(file, file.relative_to(tmp_path / "data"))
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content.getvalue())
    expected = _load_labelled(path).fingerprint()
    generator = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content.getvalue())
        damaged[generator.integers(len(damaged))] ^= generator.integers(1, 256)
        path.write_bytes(damaged)
        try:
            found = _load_labelled(path).fingerprint()
        except InvalidInputError:
            continue
        # Not every byte counts: a time, or an owner.
        assert found == expected
