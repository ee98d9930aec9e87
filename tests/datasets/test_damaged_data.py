"""Unusual images are read; damage in an archive is found wherever it is."""

import io
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

from tests import odd_files
from tests.datasets.damaged import refused, write
from tff_fedss.datasets import (
    formats,
    images,
    tiny_imagenet,
)
from tff_fedss.datasets.central import (
    identities,
    labelled_images,
)
from tff_fedss.errors import InvalidInputError, RunStoppedError


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


def _load_tiny(folder):
    return tiny_imagenet.load(folder, image_size=32)


@pytest.mark.parametrize("kind", odd_files.USABLE_IMAGES)
@pytest.mark.parametrize(
    ("make", "load", "place"),
    [
        (_faces, _load_faces, "p0/0.png"),
        (_labelled, _load_labelled, "train/a/0.png"),
        (_tiny, _load_tiny, "train/na/images/na_0.JPEG"),
    ],
)
def test_unusual_images_are_taken(tmp_path, make, load, place, kind):
    make(tmp_path)
    write(tmp_path / place, odd_files.USABLE_IMAGES[kind])
    load(tmp_path)


def test_sixteen_bits_become_eight_as_tensorflow_has_it():
    import tensorflow as tf

    content = odd_files.sixteen_bits()
    pixels = formats.pixels(content)
    np.testing.assert_array_equal(pixels, tf.io.decode_image(content, 3))
    assert pixels[0, 0, 0] == 0 and pixels[0, 16, 0] == 132 and pixels[0, -1, 0] == 255


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


def test_a_face_that_is_lost_while_training_stops_the_run(tmp_path):
    _faces(tmp_path)
    data, _ = _load_faces(tmp_path)
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(RunStoppedError, match=r"png can no longer be read.*same comm"):
        data.batch(0, 12, 0)


def test_tiny_imagenet_of_one_class_and_from_an_editor(tmp_path):
    _tiny(tmp_path)
    path = tmp_path / "val" / "val_annotations.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    _load_tiny(tmp_path)
    shutil.rmtree(tmp_path / "train" / "nb")
    (tmp_path / "wnids.txt").write_text("na\n")
    refused(_load_tiny, tmp_path, "which is none of the 1 classes")


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
