"""From CSV files and jpgs to TFF's cache layout, in one go or after a kill."""

import csv
import functools
import os
import pathlib
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated.python.simulation.datasets import (
    gldv2,
    vision_datasets_utils,
)

from data import prepare_landmarks
from tests import landmarks_images
from tests.datasets.images import own_images
from tests.landmarks_images import preparation_flags
from tests.waiting import wait_until
from tff_fedss.datasets import landmarks

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def miniature(tmp_path):
    return landmarks_images.make(tmp_path / "source")


@pytest.fixture
def run(run_program, monkeypatch, tmp_path):
    """Runs the program in this process: flags -> an `Outcome`."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(run_program, prepare_landmarks)


@pytest.fixture
def prepare(run, miniature, tmp_path):
    """Prepares the miniature, with more flags, and returns as `run` does."""

    def prepare(*flags):
        return run(*preparation_flags(miniature, tmp_path / "out"), *flags)

    return prepare


@pytest.fixture
def folder(tmp_path):
    """What `prepare` writes."""
    return tmp_path / "out" / "gld160k"


def _records(path):
    """Reads a file as TFF does: its decoded images' numbers, and its classes."""
    dataset = vision_datasets_utils.load_tfrecord(str(path), "test")
    images, classes = [], []
    for element in dataset.as_numpy_iterator():
        pixels = element["image/decoded"]
        rgb = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
        images.append(landmarks_images.number_of(rgb))
        classes.append(int(element["class"][0]))
    return images, classes


def _assert_complete(folder, miniature):
    assert {path.name for path in (folder / "train").iterdir()} == {"7", "12", "101"}
    for client_id, image_ids in miniature.clients.items():
        numbers, classes = _records(folder / "train" / client_id)
        assert numbers == [miniature.numbers[i] for i in image_ids]
        assert classes == [miniature.classes[i] for i in image_ids]
    numbers, classes = _records(folder / "test.tfRecord")
    assert numbers == [miniature.numbers[i] for i in miniature.test]
    assert classes == [miniature.classes[i] for i in miniature.test]


def test_writes_the_cache_of_tff(prepare, miniature, folder):
    out, err = prepare().ok()
    assert "12 images of 3 clients and 6 test images" in out
    _assert_complete(folder, miniature)
    names = {"train", "test.tfRecord", "federated_train.csv", "test.csv"}
    assert {path.name for path in folder.iterdir()} == names
    # It says what it is not.
    assert "note: This is not the published Landmarks-User-160k" in err
    assert "it has 3 clients, expected 1,262" in err
    assert "it has 12 images of clients, expected 164,172" in err
    assert "it has 6 test images, expected 19,526" in err


def test_files_are_those_that_tff_writes(prepare, miniature, folder, tmp_path):
    prepare().ok()
    gldv2._create_train_data_files(
        str(tmp_path / "tff"),
        str(miniature.image_dir),
        str(miniature.split_dir / "federated_train.csv"),
    )
    for client_id in miniature.clients:
        ours, theirs = (
            [tf.train.Example.FromString(r) for r in _raw(folder / client_id)]
            for folder in (folder / "train", tmp_path / "tff")
        )
        assert ours == theirs and len(ours) == len(miniature.clients[client_id])


def _raw(path):
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def test_constants_are_those_of_tff():
    full, mini = landmarks.SPLITS["160k"], landmarks.SPLITS["23k"]
    assert full.folder == gldv2.FED_GLD_CACHE and mini.folder == gldv2.MINI_GLD_CACHE
    assert full.train_csv == gldv2.FED_GLD_TRAIN_SPLIT_FILE
    assert full.test_csv == gldv2.FED_GLD_TEST_SPLIT_FILE
    assert mini.train_csv == gldv2.MINI_GLD_TRAIN_SPLIT_FILE
    assert mini.test_csv == gldv2.MINI_GLD_TEST_SPLIT_FILE
    assert landmarks.TRAIN_FOLDER == gldv2.TRAIN_SUB_DIR
    assert landmarks.TEST_FILE == gldv2.TEST_FILE_NAME
    counts = "233 clients and 23080", "2,028 classes, 1262 clients and 164,172"
    assert all(count in gldv2.load_data.__doc__ for count in counts)


# Where images and CSV files may come from.


def test_reads_the_original_archives(run, miniature, folder, tmp_path):
    for number in range(3):
        images = {
            f"{'/'.join(path.name[:3])}/{path.name}": path.read_bytes()
            for path in sorted(miniature.image_dir.iterdir())[number::3]
        }
        images["0/0/0/0000000000000000.jpg"] = b"of no client"
        shard = own_images.write(tmp_path / f"images_{number:03}.tar", images)
    split_dir, _, *others = preparation_flags(miniature, tmp_path / "out")
    flags = split_dir, f"--shard_dir={tmp_path}", *others
    run(*flags).ok()
    _assert_complete(folder, miniature)
    assert not list(folder.glob(".*"))

    with tarfile.open(shard) as tar:
        os.truncate(shard, tar.getmembers()[1].offset)  # Between two members.
    code, _, err = run(*flags)
    assert code == 2 and f"{shard} is unreadable or damaged" in err


# The published split.


def _publish(monkeypatch, split, **known):
    published = landmarks.SPLITS[split]
    known = {
        "num_clients": 3,
        "num_classes": 7,
        "num_train_images": 12,
        "num_test_images": 6,
        **known,
    }
    values = {**vars(published), **known}
    monkeypatch.setitem(landmarks.SPLITS, split, landmarks.Published(**values))


def test_split_with_the_published_numbers(prepare, miniature, monkeypatch):
    _publish(monkeypatch, "160k")
    _, err = prepare("--noallow_other_split").ok()
    assert "note" not in err
    _publish(monkeypatch, "160k", num_clients=4)
    other = prepare("--noallow_other_split")
    other.refused("3 clients, expected 4. If that is intended, give")
    with (miniature.split_dir / "test.csv").open("a") as file:
        file.write(f"{miniature.clients['7'][0]},0\n")
    other = prepare("--noallow_other_split")
    other.refused("1 test images are clients' images too")


# Images that are missing or damaged.


@pytest.fixture
def damaged(miniature):
    """Takes one image of client 12 and of the test away, cuts one of client 7 off."""
    gone, gone_test = miniature.clients["12"][1], miniature.test[2]
    cut = miniature.clients["7"][3]
    removed = {}
    for image_id in (gone, gone_test, cut):
        path = miniature.image_dir / f"{image_id}.jpg"
        removed[path] = path.read_bytes()
        path.unlink()
    path.write_bytes(removed[path][:-60])
    return {"gone": gone, "gone_test": gone_test, "cut": cut, "removed": removed}


def _rejected(folder):
    with (folder / "rejected.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_missing_and_damaged_images_are_listed(prepare, miniature, damaged, folder):
    code, out, err = prepare()
    assert code == 1 and not out
    assert "3 of 18 images are missing or damaged" in err
    assert "3 files that need them were not written" in err and "rejected.csv" in err
    assert [path.name for path in (folder / "train").iterdir()] == ["101"]
    assert not (folder / "test.tfRecord").exists()
    by_id = {row["image_id"]: row for row in _rejected(folder)}
    assert list(by_id) == [damaged["cut"], damaged["gone"], damaged["gone_test"]]
    cut, gone, gone_test = by_id.values()
    assert (cut["user_id"], gone["user_id"], gone_test["user_id"]) == (
        "7",
        "12",
        "test",
    )
    assert gone["reason"] == "is missing" and "cut off" in cut["reason"]
    assert cut["path"] == str(miniature.image_dir / f"{damaged['cut']}.jpg")

    # The same command again, once they are there.
    for path, content in damaged["removed"].items():
        path.write_bytes(content)
    prepare().ok()
    _assert_complete(folder, miniature)
    assert not (folder / "rejected.csv").exists()


def test_allow_missing_leaves_them_out(prepare, miniature, damaged, folder):
    out, err = prepare("--allow_missing").ok()
    assert "note: 3 of 18 images are missing or damaged" in err
    assert "10 images of 3 clients and 5 test images" in out
    assert len(_rejected(folder)) == 3
    for owner, image_ids in (*miniature.clients.items(), ("test", miniature.test)):
        path = folder / ("test.tfRecord" if owner == "test" else f"train/{owner}")
        left = [i for i in image_ids if i not in damaged.values()]
        assert _records(path)[0] == [miniature.numbers[i] for i in left]
    before = own_images.contents(folder)
    prepare("--allow_missing").ok()
    assert own_images.contents(folder) == before
    # Images that have turned up since are taken in.
    for path, content in damaged["removed"].items():
        path.write_bytes(content)
    prepare("--allow_missing").ok()
    _assert_complete(folder, miniature)


@pytest.mark.parametrize("owner", ["101", "test"])
def test_nothing_left_of_a_client(prepare, miniature, folder, owner):
    for image_id in {**miniature.clients, "test": miniature.test}[owner]:
        (miniature.image_dir / f"{image_id}.jpg").unlink()
    code, _, err = prepare("--allow_missing")
    assert code == 1 and f"No image is left of: {owner}." in err
    assert not (folder / "train" / "101").exists() or owner == "test"
    assert not (folder / "test.tfRecord").exists() or owner == "101"


# Again, and after a kill.


_HELD_UP = """
import sys, threading
from data import prepare_landmarks
from experiments.common import program
from tff_fedss.datasets.landmarks import preparation

_, stuck, *flags = sys.argv
read = preparation.read_whole

def held_up(images, image_id):
    if image_id == stuck:
        threading.Event().wait()
    return read(images, image_id)

preparation.read_whole = held_up
program.run(
    prepare_landmarks.main,
    prepare_landmarks.Config(),
    ["prepare_landmarks", *flags],
)
"""


def test_kill_loses_nothing(prepare, miniature, folder, tmp_path):
    prepare().ok()
    expected = own_images.contents(folder)

    # A worker is held up when it reads this image, in the middle of a client, until
    # the program is killed.
    stuck = miniature.clients["12"][1]
    other = tmp_path / "killed"
    flags = (*preparation_flags(miniature, other), "--threads=2")
    command = [sys.executable, "-c", _HELD_UP, stuck, *flags]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        killed = other / "gld160k"
        others = [killed / name for name in ("train/7", "train/101", "test.tfRecord")]
        wait_until(lambda: all(path.exists() for path in others), process)
        assert prepare(f"--output_dir={other}").code == 2, "locked"
    finally:
        process.kill()
        process.wait()
    kept = {path: path.stat().st_ino for path in others}
    assert list((killed / "train").glob(".12.*")), "it was in the middle of a file"

    prepare(f"--output_dir={other}").ok()
    assert own_images.contents(killed) == expected
    assert {path: path.stat().st_ino for path in kept} == kept, "not written again"
