"""Data that are missing, damaged, invalid or changed since a run began."""

import os
import shutil

import numpy as np
from PIL import Image

from tests.faults import harness, programs
from tests.faults.arrangements import (
    all_of,
    change,
    cut_off,
    forbid,
    lose,
    make_folder,
    put,
    remove,
    swap,
    write,
)
from tests.faults.harness import EITHER, Case, of_each

# A file that every run of a program reads.
A_FILE = {
    "train_photographs": programs.A_PHOTOGRAPH,
    "rf_softmax": "data/ptb.train.txt",
    "rf_softmax_labels": "data/train.txt",
    "partial_fc_faces": "data/person03/1.png",
    "leap": "data/train-labels-idx1-ubyte",
    "moco": "data/train/red/5.png",
}
IMAGES = {k: v for k, v in A_FILE.items() if v.endswith(("JPEG", "png"))}
_VAL = "data/tiny-imagenet-200/val/val_annotations.txt"
_WNIDS = "data/tiny-imagenet-200/wnids.txt"


def shown(name):
    """How a line names a file, with the --data_dir before it or not."""
    return name.removeprefix("data/").removeprefix("tiny-imagenet-200/")


# --- Not there, damaged, strange --------------------------------------------------

ABSENT = of_each(
    Case("no_data", flags=["--data_dir=/no/such"], says=["--data_dir=/no/such"]),
    Case(
        "an_empty_folder",
        flags=["--data_dir=empty"],
        arrange=make_folder("empty"),
        says=["empty"],
    ),
    Case(
        "a_text_for_a_folder",
        flags=["--data_dir=letter.txt"],
        arrange=write("letter.txt", "Dear"),
        says=["letter.txt"],
    ),
    Case(
        "a_broken_zip",
        flags=["--data_dir=data.zip"],
        arrange=write("data.zip", b"PK\3\4 and no more"),
        says=["data.zip"],
    ),
    Case("a_folder_lost", arrange=remove("data"), says=["--data_dir=data"]),
    names=tuple(A_FILE),
) + [
    case
    for program, name in A_FILE.items()
    for case in (
        Case(
            "a_file_forbidden",
            program,
            arrange=forbid(name),
            cure=True,
            code=EITHER,
            says=[shown(name), "ermission denied"],
            as_nobody=True,
        ),
        Case(
            "a_file_empty",
            program,
            arrange=change(name, put(b"")),
            cure=True,
            says=[shown(name)],
        ),
    )
]

ABSENT += [
    Case(
        "a_file_a_folder",
        program,
        arrange=make_folder(A_FILE[program]),
        cure=True,
        code=EITHER,
        says=[shown(A_FILE[program])],
    )
    # Where folders of images are searched, a folder is no image, whatever its name.
    for program in ("rf_softmax", "rf_softmax_labels", "leap", "moco")
]

# What else may be wrong in a file is tried with its reader, in tests/datasets.
DAMAGED = [
    Case(label, program, arrange=change(name, by), says=[shown(says)])
    for program, label, name, by, says in (
        *((p, "an_image_cut_off", name, cut_off, name) for p, name in IMAGES.items()),
        *((p, "an_image_of_text", x, put("no image"), x) for p, x in IMAGES.items()),
        (
            "leap",
            "a_label_of_no_class",
            "data/train-labels-idx1-ubyte",
            lambda c: c[:8] + b"\x0a" + c[9:],
            "train-labels-idx1-ubyte",
        ),
        (
            "rf_softmax",
            "no_validation_text",
            "data/ptb.valid.txt",
            lose,
            "ptb.valid.txt",
        ),
        (
            "rf_softmax",
            "an_unknown_word",
            "data/ptb.valid.txt",
            lambda c: b"zebra " + c,
            "ptb.valid.txt",
        ),
        (
            "rf_softmax_labels",
            "infinity_for_a_value",
            "data/train.txt",
            swap(b" 3:1", b" 3:1e999"),
            "train.txt",
        ),
        (
            "rf_softmax_labels",
            "fewer_rows_than_its_header_says",
            "data/train.txt",
            swap(b"60 12 12", b"61 12 12"),
            "train.txt",
        ),
        (
            "train_photographs",
            "a_class_that_is_none",
            _WNIDS,
            lambda c: c + b"what is this\n",
            "wnids.txt",
        ),
        (
            "train_photographs",
            "an_annotation_of_no_class",
            _VAL,
            swap(b"n00001001", b"n99999999"),
            "val_annotations.txt",
        ),
        ("train_photographs", "annotations_cut_off", _VAL, cut_off, "val"),
    )
]


def _keep_one_identity(place):
    for path in sorted(place.data.iterdir())[1:]:
        shutil.rmtree(path)


FOLDERS = [
    # Nothing is lost with them; but the run says so.
    *(
        Case(
            f"an_identity_{label}",
            "partial_fc_faces",
            arrange=arrange,
            code=0,
            says=["without images", "person99"],
        )
        for label, arrange in (
            ("without_images", make_folder("data/person99")),
            ("with_a_text_only", write("data/person99/notes.txt", "no image")),
        )
    ),
    *(
        Case(label, program, arrange=arrange, says=says)
        for program, label, arrange, says in (
            ("partial_fc_faces", "one_identity", _keep_one_identity, ["data"]),
            (
                "moco",
                "a_class_without_images",
                make_folder("data/train/green"),
                ["green"],
            ),
            (
                "moco",
                "a_class_for_the_test_only",
                write("data/test/green/1.png", programs.picture(7)),
                ["green"],
            ),
            ("moco", "no_test_images", remove("data/test"), ["data", "test"]),
            (
                "moco",
                "one_class",
                all_of(remove("data/train/red"), remove("data/test/red")),
                ["data", ("class", "classes")],
            ),
            # A picture of a few kilobytes that would take gigabytes of memory.
            (
                "moco",
                "a_huge_image",
                lambda place: Image.new("1", (60_000, 60_000)).save(
                    place.data / "train/red/5.png"
                ),
                ["train/red/5.png"],
            ),
        )
    ),
]


@harness.params([*ABSENT, *DAMAGED, *FOLDERS])
def test_data_that_will_not_do_are_named(case, place):
    harness.try_case(case, place)


# --- Changed behind the same path -------------------------------------------------

# Program: what changes in its data, and what the line says of it.
CHANGES = {
    "train_photographs": {
        "an_image_lost": (programs.A_PHOTOGRAPH, lose, "80 there, 79 here"),
        "an_image_of_another_content": (
            programs.A_PHOTOGRAPH,
            put(programs.picture(987, 16, kind="JPEG")),
            "contents",
        ),
        "a_test_image_of_another_class": (
            _VAL,
            swap(b"n00001001", b"n00001000"),
            "test",
        ),
    },
    "rf_softmax": {
        "a_word_more": ("data/ptb.train.txt", lambda c: c + b" w1\n", "there"),
        "a_word_for_another": ("data/ptb.train.txt", swap(b" w7 ", b" w8 "), "there"),
        "another_validation_text": (
            "data/ptb.valid.txt",
            swap(b" w7 ", b" w8 "),
            "there",
        ),
        "a_new_word": ("data/ptb.train.txt", swap(b" w7 ", b" new "), "there"),
    },
    "rf_softmax_labels": {
        "another_label": ("data/train.txt", swap(b"\n3,4 3:1", b"\n3,5 3:1"), "there"),
        "another_feature": ("data/train.txt", swap(b" 3:1", b" 3:2"), "there"),
        "another_test": ("data/test.txt", swap(b"\n3,4 3:1", b"\n3,5 3:1"), "there"),
        "a_row_less": (
            "data/train.txt",
            lambda c: b"59 12 12\n" + b"\n".join(c.split(b"\n")[2:]),
            "60 there, 59 here",
        ),
    },
    "partial_fc_faces": {
        "an_image_lost": (A_FILE["partial_fc_faces"], lose, "there"),
        "an_image_of_another_content": (
            A_FILE["partial_fc_faces"],
            put(programs.picture(987)),
            "there",
        ),
    },
    "leap": {
        "labels_changed": (
            A_FILE["leap"],
            lambda c: c[:-2] + bytes([c[-1], c[-2]]),
            "there",
        ),
        **{
            f"{part}_pixels_changed": (
                f"data/{part}-images-idx3-ubyte",
                lambda c: c[:-1] + bytes([c[-1] ^ 255]),
                "there",
            )
            for part in ("train", "t10k")
        },
    },
    "moco": {
        "an_image_lost": (A_FILE["moco"], lose, "26 there, 25 here"),
        "an_image_of_another_content": (
            A_FILE["moco"],
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
        arrange=change(name, by),
        cure=True,
        says=["--results_dir=run", says, "here"],
        writes=["run/.lock"],
    )
    for program, changes in CHANGES.items()
    for label, (name, by, says) in changes.items()
]


def _touch(place):
    for path in place.data.rglob("*"):
        os.utime(path, (1, 1))


def _write_again(place):
    """As another copy of the data is: other inodes, in another order."""
    copy = place.root / "copy"
    place.data.rename(copy)
    for path in sorted((p for p in copy.rglob("*") if p.is_file()), reverse=True):
        target = place.data / path.relative_to(copy)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


UNCHANGED = [
    Case(
        label, program, start="stopped", arrange=arrange, code=0, says=["resumes after"]
    )
    for program, label, arrange in (
        *((program, "touched", _touch) for program in CHANGES),
        *((program, "copied_back", _write_again) for program in CHANGES),
        (
            "train_photographs",
            "classes_in_another_order",
            # They are numbered in the order of their names.
            change(_WNIDS, lambda c: b"\n".join(reversed(c.split())) + b"\n"),
        ),
    )
]


def _start_from(program, *flags):
    """A run, and another one that starts from its weights and is stopped."""

    def prepare(place):
        first = place.run(Case("first", program, ["--results_dir=first", flags[0]]))
        assert first.code == 0, first
        stopped = place.run(
            Case("stopped", program, flags[1:]),
            stop_after_rows=programs.STOP_AFTER_ROWS,
        )
        assert stopped.code == 130, stopped

    return prepare


def _change_weight(path, name):
    """Changes one number of an .npz file."""

    def arrange(place):
        with np.load(place.root / path) as saved:
            arrays = dict(saved)
        arrays[name] = arrays[name] + np.float32(1e-3)
        np.savez(place.root / path, **arrays)

    return arrange


PRETRAINED = [
    Case(
        "another_pretrained",
        program,
        [flag],
        prepare=_start_from(program, length, flag),
        arrange=_change_weight(path, array),
        says=["pretrained", "there", "here"],
        writes=["run/.lock"],
        cure=True,
        same=False,
    )
    for program, length, flag, path, array in (
        (
            "train",
            "--rounds=1",
            "--pretrained=first/fedss.npz",
            "first/fedss.npz",
            "phi_000",
        ),
        ("moco", "--epochs=1", "--pretrained=first", "first/moco.npz", "query_000"),
    )
]


@harness.params([*CHANGED, *PRETRAINED])
def test_changed_data_are_refused(case, place):
    harness.try_case(case, place)


@harness.params(UNCHANGED)
def test_the_same_data_are_the_same(case, place):
    harness.try_case(case, place)
