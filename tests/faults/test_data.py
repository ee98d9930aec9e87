"""Data that are missing, damaged, invalid or changed since a run began."""

import shutil

import numpy as np
from PIL import Image

from tests.faults import harness, programs
from tests.faults.arrangements import (
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
_VAL_PHOTOGRAPH = "data/tiny-imagenet-200/val/images/val_7.JPEG"
_WNIDS = "data/tiny-imagenet-200/wnids.txt"
_VALID = "data/ptb.valid.txt"


def shown(name):
    """How a line names a file, with the --data_dir before it or not."""
    return name.removeprefix("data/").removeprefix("tiny-imagenet-200/")


# --- Not there, damaged, strange --------------------------------------------------

ABSENT = of_each(
    Case("no_data", flags=["--data_dir=/no/such"], says=["--data_dir=/no/such"]),
    Case("a_folder_lost", arrange=remove("data"), says=["--data_dir=data"]),
    *(
        Case(label, flags=[f"--data_dir={name}"], arrange=arrange(name), says=[name])
        for label, name, arrange in (
            ("an_empty_folder", "empty", make_folder),
            ("a_text_for_a_folder", "letter.txt", lambda name: write(name, "Dear")),
            ("a_broken_zip", "data.zip", lambda name: write(name, b"PK\3\4 and no")),
        )
    ),
    names=tuple(A_FILE),
)
ABSENT += [
    Case(
        label,
        program,
        arrange=arrange,
        cure=True,
        code=code,
        says=[shown(name), *says],
        as_nobody=label == "a_file_forbidden",
    )
    for program, name in A_FILE.items()
    for label, arrange, code, *says in (
        ("a_file_forbidden", forbid(name), EITHER, "ermission denied"),
        ("a_file_empty", change(name, put(b"")), 2),
        ("a_file_a_folder", make_folder(name), EITHER),
    )
    # Where folders of images are searched, a folder is no image, whatever its name.
    if (label, program)
    not in {("a_file_a_folder", x) for x in ("train_photographs", "partial_fc_faces")}
]

# What else may be wrong in a file is tried with its reader, in tests/datasets.
DAMAGED = [
    Case(label, program, arrange=change(name, by), says=[shown(name)])
    for program, name in IMAGES.items()
    for label, by in (
        ("an_image_cut_off", cut_off),
        ("an_image_of_text", put("no image")),
    )
]


def _write_a_huge_image(place):
    """A picture of a few kilobytes that would take gigabytes of memory."""
    Image.new("1", (60_000, 60_000)).save(place.data / "train/red/5.png")


HUGE = [
    Case("a_huge_image", "moco", arrange=_write_a_huge_image, says=["train/red/5.png"])
]


@harness.params([*ABSENT, *DAMAGED, *HUGE])
def test_data_that_will_not_do_are_named(case, place):
    harness.try_case(case, place)


# --- Changed behind the same path -------------------------------------------------

# Program: what changes in its data, and what the line says of it.
_OTHER = put(programs.picture(987))
_OTHER_JPEG = put(programs.picture(987, "JPEG"))
_W8_FOR_W7 = swap(b" w7 ", b" w8 ")
_LABEL = swap(b"\n3,4 3:1", b"\n3,5 3:1")


def _invert_the_last(content):
    return content[:-1] + bytes([content[-1] ^ 255])


CHANGES = {
    "train_photographs": {
        "an_image_lost": (programs.A_PHOTOGRAPH, lose, "100 there, 99 here"),
        "an_image_of_another_content": (
            programs.A_PHOTOGRAPH,
            _OTHER_JPEG,
            "contents",
        ),
        "a_test_image_of_another_content": (
            _VAL_PHOTOGRAPH,
            _OTHER_JPEG,
            "contents",
        ),
        "a_test_image_of_another_class": (_VAL, swap(b"1001", b"1000"), "test"),
    },
    "rf_softmax": {"another_validation_text": (_VALID, _W8_FOR_W7)},
    "rf_softmax_labels": {
        "another_label": ("data/train.txt", _LABEL),
        "another_test": ("data/test.txt", _LABEL),
    },
    "partial_fc_faces": {
        "an_image_of_another_content": (A_FILE["partial_fc_faces"], _OTHER),
    },
    "leap": {
        "train_pixels_changed": ("data/train-images-idx3-ubyte", _invert_the_last),
        "t10k_pixels_changed": ("data/t10k-images-idx3-ubyte", _invert_the_last),
    },
    "moco": {"a_test_image_lost": ("data/test/red/2.png", lose, "10 there, 9 here")},
}

CHANGED = [
    Case(
        label,
        program,
        start="stopped",
        arrange=change(name, by),
        cure=True,
        says=["--results_dir=run", "there", "here", *says],
        writes=["run/.lock"],
    )
    for program, changes in CHANGES.items()
    for label, (name, by, *says) in changes.items()
]


def _write_again(place):
    """As another copy of the data is: other times and inodes, in another order."""
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
        *((program, "copied_back", _write_again) for program in CHANGES),
        (
            "train_photographs",
            "classes_in_another_order",
            # They are numbered in the order of their names.
            change(_WNIDS, lambda c: b"\n".join(reversed(c.split())) + b"\n"),
        ),
    )
]


def _start_from(first, flag):
    """A run, and another one that starts from its weights and is stopped."""

    def prepare(place):
        options = {"stop_after_rows": programs.STOP_AFTER_ROWS}
        for flags, code, more in (
            (["--results_dir=first", first], 0, {}),
            ([flag], 130, options),
        ):
            outcome = place.run(Case("", place.program, flags), **more)
            assert outcome.code == code, outcome

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
        prepare=_start_from(first, flag),
        arrange=_change_weight(path, array),
        says=["pretrained", "there", "here"],
        writes=["run/.lock"],
        cure=True,
        same=False,
    )
    for program, first, flag, path, array in (
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
