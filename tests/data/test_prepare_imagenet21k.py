"""From class tars to TFRecord shards, in every layout and after every interruption."""

import csv
import functools
import io
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from data import prepare_imagenet21k
from tests import imagenet21k_archive, waiting
from tests.datasets.images import own_images
from tests.datasets.images.own_images import contents
from tests.refusals import message_of
from tff_fedss.datasets.imagenet21k import class_tars, preparation
from tff_fedss.datasets.imagenet21k import dataset as shards

_prepare = preparation.prepare

ROOT = pathlib.Path(__file__).parents[2]
SIZES = [1, 2, 3, 7, 30, 10, 18]


@pytest.fixture(scope="module")
def classes():
    return imagenet21k_archive.classes(SIZES)


def _error(archive, tmp_path):
    """Prepares what cannot be prepared, and returns the message."""
    message = message_of(_prepare, archive, tmp_path / "out")
    folder = tmp_path / "out" / "imagenet21k" / "1.0.0"
    assert not (folder / shards.CLASS_SIZES_FILE).exists()
    return message


def _records(folder, split):
    """Reads the shards as what they are: (wnid, file name, image) of every record."""
    wnids = (folder / "label.labels.txt").read_text().split()
    for path in sorted(folder.glob(f"imagenet21k-{split}.tfrecord-*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            yield (
                wnids[feature["label"].int64_list.value[0]],
                feature["file_name"].bytes_list.value[0].decode(),
                feature["image"].bytes_list.value[0],
            )


@pytest.fixture(scope="module")
def folder_archive(classes, tmp_path_factory):
    return imagenet21k_archive.write_folder(tmp_path_factory.mktemp("a") / "f", classes)


@pytest.fixture(scope="module")
def prepared(folder_archive, tmp_path_factory):
    return _prepare(folder_archive, tmp_path_factory.mktemp("prepared"))


# What is written.


def test_every_image_is_in_one_split_unchanged(prepared, classes):
    found = {split: list(_records(prepared, split)) for split in ("train", "test")}
    for wnid, images in classes.items():
        train, test = (
            {name: image for w, name, image in found[split] if w == wnid}
            for split in ("train", "test")
        )
        assert not train.keys() & test.keys()
        assert images == {**train, **test}
        assert len(test) == round(0.2 * len(images))
    assert sum(map(len, found.values())) == sum(SIZES)
    with open(prepared / "class_sizes.csv") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["wnid", "train", "test"],
        *(
            [wnid, str(size - round(0.2 * size)), str(round(0.2 * size))]
            for wnid, size in zip(sorted(classes), SIZES)
        ),
    ]
    assert (prepared / "undecodable.csv").read_text() == "tar,member,reason\n"


def test_tfds_reads_it_without_our_code(prepared, classes):
    data_dir = prepared.parents[1]
    for builder in (
        tfds.builder_from_directory(prepared),
        tfds.builder("imagenet21k", data_dir=data_dir),
    ):
        assert builder.info.features["label"].names == sorted(classes)
        num = {name: split.num_examples for name, split in builder.info.splits.items()}
        assert num == {"train": 57, "test": 14}
    names = set()
    for split in ("train", "test"):
        data = builder.as_dataset(split=split, shuffle_files=True)
        for example in data.as_numpy_iterator():
            wnid = sorted(classes)[example["label"]]
            name = example["file_name"].decode()
            expected = Image.open(io.BytesIO(classes[wnid][name]))
            # Two JPEG decoders, which round differently.
            difference = example["image"].astype(int) - np.asarray(expected)
            assert np.abs(difference).max() <= 3
            names.add(name)
    assert names == {name for images in classes.values() for name in images}


def test_the_split_is_a_random_fifth_that_depends_on_names_and_seed_only():
    names = [f"n01440764_{i}.JPEG" for i in range(2000)]
    first = preparation.choose_test(0, names)
    assert len(first) == 400 and first < set(names)
    assert preparation.choose_test(0, names[::-1]) == first
    # Independent of another seed's: 80 of the 400 in common, +- 8.
    second = preparation.choose_test(1, names)
    assert 48 < len(first & second) < 112
    # No trend along the names: the mean place is 1000 +- 29.
    assert 880 < np.mean([names.index(name) for name in first]) < 1120
    # Without one image, at most one other changes sides.
    assert len(first ^ preparation.choose_test(0, names[1:])) <= 2


# Layouts.


def _shuffled(classes):
    rng = np.random.default_rng(1)

    def shuffle(mapping):
        keys = list(mapping)
        return {keys[i]: mapping[keys[i]] for i in rng.permutation(len(keys))}

    return {wnid: shuffle(images) for wnid, images in shuffle(classes).items()}


def test_all_layouts_give_the_same_bytes(prepared, classes, tmp_path, monkeypatch):
    fall11 = imagenet21k_archive.write_fall11(tmp_path, _shuffled(classes))
    winter21 = imagenet21k_archive.write_winter21(tmp_path, _shuffled(classes))
    wnids = tmp_path / "wnids.txt"
    wnids.write_text("\n".join(sorted(classes, reverse=True)) + "\n")
    expected = contents(prepared)
    assert len(expected) == 2 * len(SIZES) + 7
    assert contents(_prepare(fall11, tmp_path / "1", workers=3)) == expected
    assert contents(_prepare(winter21, tmp_path / "2", workers=1)) == expected
    # With the list of the classes, a gzipped tar is decompressed only once.
    read = class_tars._gzipped
    monkeypatch.setattr(class_tars, "_gzipped", lambda path: read(path))
    known = {"wnids": str(wnids)}
    assert contents(_prepare(winter21, tmp_path / "3", **known)) == expected
    assert contents(_prepare(fall11, tmp_path / "4", **known)) == expected


# Images that cannot be decoded.


@pytest.fixture
def with_bad_images(classes):
    """Some images of other kinds, and some that are none."""
    images = {wnid: dict(members) for wnid, members in classes.items()}
    wnids = sorted(images)
    rng = np.random.default_rng(5)
    good, bad = {}, {}
    good[f"{wnids[4]}_90001.JPEG"] = own_images.encoded(own_images.picture(0))
    good[f"{wnids[4]}_90002.JPEG"] = imagenet21k_archive.jpeg(rng, mode="L")
    good[f"{wnids[4]}_90003.JPEG"] = imagenet21k_archive.jpeg(rng, mode="CMYK")
    bad[f"{wnids[4]}_90004.JPEG"] = b""
    bad[f"{wnids[5]}_90005.JPEG"] = b"<html>This photo is no longer available</html>"
    bad[f"{wnids[5]}_90006.JPEG"] = imagenet21k_archive.jpeg(rng)[:-200]
    for name, content in {**good, **bad}.items():
        images[name.partition("_")[0]][name] = content
    # Nothing is left of a class.
    images[wnids[0]] = {f"{wnids[0]}_1.JPEG": b"\xff\xd8\xff"}
    return images, {*bad, f"{wnids[0]}_1.JPEG"}


def test_undecodable_images_are_listed_and_need_permission(
    with_bad_images, tmp_path, monkeypatch
):
    images, bad = with_bad_images
    archive = imagenet21k_archive.write_winter21(tmp_path, images)
    with pytest.raises(preparation.UndecodableImagesError) as error:
        _prepare(archive, tmp_path / "out")
    partial = tmp_path / "out" / "imagenet21k" / "1.0.0"
    message = str(error.value)
    assert message.startswith("4 of 77 images cannot be decoded")
    assert str(partial / "undecodable.csv") in message
    assert "`allow_undecodable`" in message
    with open(partial / "undecodable.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["member"] for row in rows} == bad
    assert all(row["tar"] == f"{row['member'][:9]}.tar" for row in rows)
    assert any("(0 bytes" in row["reason"] for row in rows)

    with monkeypatch.context() as patch:
        patch.setattr(class_tars, "_gzipped", None)  # It is not decompressed again.
        folder = _prepare(archive, tmp_path / "out", allow_undecodable=True)
    names = [n for split in ("train", "test") for _, n, _ in _records(folder, split)]
    everything = {name for members in images.values() for name in members}
    assert sorted(names) == sorted(everything - bad)
    wnid = min(images)
    assert f"\n{wnid},0,0\n" in (folder / "class_sizes.csv").read_text()
    assert tfds.builder_from_directory(folder).info.splits["train"].num_examples == 58
    # What is left out does not depend on the way there.
    again = _prepare(archive, tmp_path / "at_once", allow_undecodable=True)
    assert contents(folder) == contents(again)


def test_a_tar_that_was_replaced_is_read_again(prepared, classes, tmp_path):
    wnid = max(classes)
    name = min(classes[wnid])
    cut = {**classes[wnid], name: classes[wnid][name][:-20]}
    archive = tmp_path / "f"
    imagenet21k_archive.write_folder(archive, {**classes, wnid: cut})
    with pytest.raises(preparation.UndecodableImagesError, match="1 of 71 images"):
        _prepare(archive, tmp_path / "out")
    # The others are finished: nothing is read of them.
    tars = {k: images if k == wnid else {} for k, images in classes.items()}
    imagenet21k_archive.write_folder(archive, tars)
    assert contents(_prepare(archive, tmp_path / "out")) == contents(prepared)


# Archives that are not what they should be.


LAYOUTS = {
    "folder": lambda path, images: imagenet21k_archive.write_folder(path / "f", images),
    "fall11": imagenet21k_archive.write_fall11,
    "winter21": imagenet21k_archive.write_winter21,
}


def test_odd_member_of_a_class_tar(tmp_path):
    member = "n01440764_12.JPEG"
    images = imagenet21k_archive.classes([2, 2, 3])
    image = next(iter(images["n01440838"].values()))
    images["n01440838"]["n01440838_7.JPEG"] = image
    images["n01440838"][member] = image
    message = _error(imagenet21k_archive.write_fall11(tmp_path, images), tmp_path)
    assert f"n01440838.tar: {member} is no n01440838_<number>.JPEG" in message


@pytest.mark.parametrize("keep", [0.0, 0.7, "before the end mark"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_truncated_archive(tmp_path, layout, keep):
    images = imagenet21k_archive.classes([4, 5, 3])
    archive = path = LAYOUTS[layout](tmp_path, images)
    if path.is_dir():
        path = path / "n01440801.tar"
    content = path.read_bytes()
    if keep == "before the end mark" and layout == "winter21":
        pytest.skip("nothing is lost, and a checksum says so")
    if keep == "before the end mark":
        # tarfile by itself takes this for a whole archive.
        content = content[: len(content.rstrip(b"\0")) // 512 * 512 + 512]
    else:
        # A tar may lose the zeros at its end.
        content = content[: int(keep * len(content.rstrip(b"\0")))]
    path.write_bytes(content)
    message = _error(archive, tmp_path)
    assert str(path) in message and "is unreadable or damaged" in message


# Interruptions.


_KILLED = """
import os, signal, sys
import tensorflow as tf
from tff_fedss.datasets.imagenet21k import preparation
example = preparation._example
calls = 0
def killed(*arguments):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return example(*arguments)
preparation._example = killed
preparation.prepare(sys.argv[1], sys.argv[2], workers=2)
"""


def test_a_killed_program_resumes_to_the_same_bytes(prepared, classes, tmp_path):
    archive = imagenet21k_archive.write_winter21(tmp_path, _shuffled(classes))
    out = tmp_path / "out"
    arguments = [sys.executable, "-c", _KILLED, str(archive), str(out), "34"]
    killed = subprocess.run(
        arguments, cwd=ROOT, capture_output=True, timeout=waiting.LIMIT
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    progress = out / "imagenet21k" / "1.0.0" / "progress"
    assert 0 < len(list(progress.glob("n*.json"))) < len(SIZES)
    assert list(progress.glob("n*.tar"))
    assert contents(_prepare(archive, out)) == contents(prepared)


# Afterwards.


def test_the_command_line(with_bad_images, tmp_path, run_program):
    images, _ = with_bad_images
    archive = imagenet21k_archive.write_fall11(tmp_path, images)
    flags = (f"--archive={archive}", f"--output_dir={tmp_path / 'out'}")
    run = functools.partial(run_program, prepare_imagenet21k, *flags)
    code, _, error = run("--seed=7")
    assert code == 1
    assert error.splitlines()[-1].startswith("error: 4 of 77 images")
    out, _ = run("--seed=7", "--allow_undecodable").ok()
    assert "58 training and 15 test images of 7 classes" in out
    assert len(list(_records(tmp_path / "out/imagenet21k/1.0.0", "test"))) == 15
    for flag in ("--archive=", "--output_dir=", "--seed=-1"):
        run(flag).refused(flag.strip("="))
