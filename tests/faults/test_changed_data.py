"""Data that changed behind the same path: refused with the difference, untouched."""

import os
import shutil

import numpy as np

from tests.faults import harness, programs
from tests.faults.arrangements import lose, put, spoil
from tests.faults.harness import Case

# Program: what changes in its data, and what the line says of it.
CHANGES = {
    "train_photographs": {
        "an_image_lost": (
            programs.A_PHOTOGRAPH,
            lose,
            "80 there, 79 here",
        ),
        "an_image_of_another_content": (
            programs.A_PHOTOGRAPH,
            put(programs.picture(987, 16, kind="JPEG")),
            "contents",
        ),
        "a_test_image_of_another_class": (
            "data/tiny-imagenet-200/val/val_annotations.txt",
            lambda c: c.replace(b"n00001001", b"n00001000", 1),
            "test",
        ),
    },
    "rf_softmax": {
        "a_word_more": ("data/ptb.train.txt", lambda c: c + b" w1\n", "there"),
        "a_word_for_another": (
            "data/ptb.train.txt",
            lambda c: c.replace(b" w7 ", b" w8 ", 1),
            "there",
        ),
        "another_validation_text": (
            "data/ptb.valid.txt",
            lambda c: c.replace(b" w7 ", b" w8 ", 1),
            "there",
        ),
        "a_new_word": (
            "data/ptb.train.txt",
            lambda c: c.replace(b" w7 ", b" new ", 1),
            "there",
        ),
    },
    "rf_softmax_labels": {
        "a_row_of_another_label": (
            "data/train.txt",
            lambda c: c.replace(b"\n3,4 3:1", b"\n3,5 3:1", 1),
            "there",
        ),
        "another_feature": (
            "data/train.txt",
            lambda c: c.replace(b" 3:1", b" 3:2", 1),
            "there",
        ),
        "another_test_row": (
            "data/test.txt",
            lambda c: c.replace(b"\n3,4 3:1", b"\n3,5 3:1", 1),
            "there",
        ),
        "a_row_less": (
            "data/train.txt",
            lambda c: b"59 12 12\n" + b"\n".join(c.split(b"\n")[2:]),
            "60 there, 59 here",
        ),
    },
    "partial_fc_faces": {
        "an_image_lost": ("data/person03/1.png", lose, "there"),
        "an_image_of_another_content": (
            "data/person03/1.png",
            put(programs.picture(987)),
            "there",
        ),
    },
    "leap": {
        "labels_changed": (
            "data/train-labels-idx1-ubyte",
            lambda c: c[:-2] + bytes([c[-1], c[-2]]),
            "there",
        ),
        "pixels_changed": (
            "data/train-images-idx3-ubyte",
            lambda c: c[:-1] + bytes([c[-1] ^ 255]),
            "there",
        ),
        "test_pixels_changed": (
            "data/t10k-images-idx3-ubyte",
            lambda c: c[:-1] + bytes([c[-1] ^ 255]),
            "there",
        ),
    },
    "moco": {
        "an_image_lost": ("data/train/red/5.png", lose, "26 there, 25 here"),
        "an_image_of_another_content": (
            "data/train/red/5.png",
            put(programs.picture(987)),
            "there",
        ),
        "a_test_image_lost": ("data/test/red/2.png", lose, "10 there, 9 here"),
    },
}

CHANGED = [
    Case(
        label,
        program,
        start="stopped",
        says=["--results_dir=run", says, "here"],
        writes=["run/.lock"],
        **spoil(name, change),
    )
    for program, changes in CHANGES.items()
    for label, (name, change, says) in changes.items()
]


def _touch(place):
    for path in place.data.rglob("*"):
        os.utime(path, (1, 1))


def _write_again(place):
    """As another copy of the data is: other inodes, in another order."""
    shutil.copytree(place.data, place.root / "copy")
    shutil.rmtree(place.data)
    names = sorted(
        (p for p in (place.root / "copy").rglob("*") if p.is_file()), reverse=True
    )
    for path in names:
        target = place.data / path.relative_to(place.root / "copy")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


UNCHANGED = [
    Case(
        label, program, start="stopped", arrange=arrange, code=0, says=["resumes after"]
    )
    for program in CHANGES
    for label, arrange in (("touched", _touch), ("copied_back", _write_again))
]


UNCHANGED.append(
    Case(
        "classes_in_another_order",
        "train_photographs",
        start="stopped",
        # They are numbered in the order of their names.
        arrange=spoil(
            "data/tiny-imagenet-200/wnids.txt",
            lambda c: b"\n".join(reversed(c.split())) + b"\n",
        )["arrange"],
        code=0,
        says=["resumes after"],
    )
)


def _pretrained_of_train(place):
    outcome = place.run(Case("first", "train", ["--results_dir=first", "--rounds=1"]))
    assert outcome.code == 0, outcome
    _stop(place, "train", "--pretrained=first/fedss.npz")


def _pretrained_of_moco(place):
    outcome = place.run(Case("first", "moco", ["--results_dir=first", "--epochs=1"]))
    assert outcome.code == 0, outcome
    _stop(place, "moco", "--pretrained=first")


def _stop(place, program, flag):
    outcome = place.run(
        Case("stopped", program, [flag]), stop_after_rows=programs.STOP_AFTER_ROWS
    )
    assert outcome.code == 130, outcome


def _change_weight(path, name):
    """Changes one number of an .npz file."""
    with np.load(path) as saved:
        arrays = dict(saved)
    arrays[name] = arrays[name] + np.float32(1e-3)
    np.savez(path, **arrays)


def _and_change(arrange, path, name):
    def both(place):
        arrange(place)
        place.kept = (place.root / path).read_bytes()
        _change_weight(place.root / path, name)

    return both


def _restore(path):
    return lambda place: (place.root / path).write_bytes(place.kept)


PRETRAINED = [
    Case(
        "another_pretrained",
        "train",
        ["--pretrained=first/fedss.npz"],
        arrange=_and_change(_pretrained_of_train, "first/fedss.npz", "phi_000"),
        says=["pretrained", "there", "here"],
        writes=["run/.lock"],
        cure=_restore("first/fedss.npz"),
        same=False,
    ),
    Case(
        "another_pretrained",
        "moco",
        ["--pretrained=first"],
        arrange=_and_change(_pretrained_of_moco, "first/moco.npz", "query_000"),
        says=["pretrained", "there", "here"],
        writes=["run/.lock"],
        cure=_restore("first/moco.npz"),
        same=False,
    ),
]


@harness.params(CHANGED)
def test_changed_data_are_refused(case, place):
    harness.try_case(case, place)


@harness.params(UNCHANGED)
def test_the_same_data_are_the_same(case, place):
    harness.try_case(case, place)


@harness.params(PRETRAINED)
def test_a_changed_start_is_refused(case, place):
    harness.try_case(case, place)
