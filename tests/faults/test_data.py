"""Data that are not there, damaged or strange: named before anything is written."""

import shutil
import struct

from tests.faults import harness, programs
from tests.faults.arrangements import (
    cut_off,
    harm,
    lose,
    make_folder,
    put,
    remove,
    replace_by_folder,
    spoil,
    write,
)
from tests.faults.harness import EITHER, Case

WITH_DATA = (
    "train_photographs",
    "rf_softmax",
    "rf_softmax_labels",
    "partial_fc_faces",
    "leap",
    "moco",
)
# A file of each that every run reads.
A_FILE = {
    "train_photographs": programs.A_PHOTOGRAPH,
    "rf_softmax": "data/ptb.train.txt",
    "rf_softmax_labels": "data/train.txt",
    "partial_fc_faces": "data/person03/1.png",
    "leap": "data/train-labels-idx1-ubyte",
    "moco": "data/train/red/5.png",
}
IMAGES = {k: v for k, v in A_FILE.items() if v.endswith(("JPEG", "png"))}


def shown(name):
    """How a line names a file, with the --data_dir before it or not."""
    return name.removeprefix("data/").removeprefix("tiny-imagenet-200/")


def forbid(name):
    """Nobody but its owner may read a file."""
    return {
        "arrange": lambda place: (
            place.root.chmod(0o777),
            (place.root / name).chmod(0o000),
        ),
        "cure": lambda place: (place.root / name).chmod(0o644),
    }


ANY = [
    case
    for p in WITH_DATA
    for case in (
        Case("no_data", p, ["--data_dir=/no/such"], says=["--data_dir=/no/such"]),
        Case(
            "an_empty_folder",
            p,
            ["--data_dir=empty"],
            arrange=make_folder("empty"),
            says=["empty"],
        ),
        Case(
            "a_text_for_a_folder",
            p,
            ["--data_dir=letter.txt"],
            arrange=write("letter.txt", "Dear"),
            says=["letter.txt"],
        ),
        Case(
            "a_broken_zip",
            p,
            ["--data_dir=data.zip"],
            arrange=write("data.zip", b"PK\3\4 and no more"),
            says=["data.zip"],
        ),
        Case(
            "a_file_lost_of_which_one_is_needed",
            p,
            arrange=lambda place: shutil.rmtree(place.data),
            says=["--data_dir=data"],
        ),
        Case(
            "a_file_a_folder",
            p,
            code=EITHER,
            says=[shown(A_FILE[p])],
            **replace_by_folder(A_FILE[p]),
        ),
        Case(
            "a_file_forbidden",
            p,
            code=EITHER,
            says=[shown(A_FILE[p]), "ermission denied"],
            as_nobody=True,
            **forbid(A_FILE[p]),
        ),
        Case("a_file_empty", p, says=[shown(A_FILE[p])], **spoil(A_FILE[p], put(b""))),
    )
]

DAMAGED_IMAGES = [
    case
    for p, name in IMAGES.items()
    for case in (
        Case("an_image_cut_off", p, says=[shown(name)], **harm(name, cut_off)),
        Case("an_image_of_text", p, says=[shown(name)], **harm(name, put("no image"))),
    )
]


# What else may be wrong in a file is tried with its reader, in tests/datasets.
DAMAGED_FILES = [
    Case(label, program, says=[says], **harm(f"data/{name}", change))
    for program, label, name, change, says in (
        (
            "leap",
            "a_label_of_no_class",
            "train-labels-idx1-ubyte",
            lambda c: c[:8] + b"\x0a" + c[9:],
            "train-labels-idx1-ubyte",
        ),
        ("leap", "labels_cut_off", "train-labels-idx1-ubyte", cut_off, "train-labels"),
        ("leap", "no_test_images", "t10k-images-idx3-ubyte", lose, "t10k-images"),
        (
            "leap",
            "more_labels_than_images",
            "train-labels-idx1-ubyte",
            lambda c: c[:4] + struct.pack(">I", 61) + c[8:] + b"\1",
            "61",
        ),
        (
            "rf_softmax",
            "not_utf8",
            "ptb.train.txt",
            lambda c: c + b"\xff\xfe\n",
            "ptb.train.txt",
        ),
        ("rf_softmax", "no_validation_text", "ptb.valid.txt", lose, "ptb.valid.txt"),
        (
            "rf_softmax",
            "an_unknown_word",
            "ptb.valid.txt",
            lambda c: b"zebra " + c,
            "ptb.valid.txt",
        ),
        (
            "rf_softmax_labels",
            "a_label_of_20_digits",
            "train.txt",
            lambda c: c.replace(b"\n3,4 ", b"\n%s " % (b"9" * 20), 1),
            "train.txt",
        ),
        (
            "rf_softmax_labels",
            "infinity_for_a_value",
            "train.txt",
            lambda c: c.replace(b" 3:1", b" 3:1e999", 1),
            "train.txt",
        ),
        (
            "rf_softmax_labels",
            "fewer_rows_than_its_header_says",
            "train.txt",
            lambda c: b"61 12 12\n" + c.partition(b"\n")[2],
            "train.txt",
        ),
    )
]

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
    Case(
        "one_identity",
        "partial_fc_faces",
        arrange=lambda place: [
            shutil.rmtree(path) for path in sorted(place.data.iterdir())[1:]
        ],
        says=["data"],
    ),
    Case(
        "a_class_without_images",
        "moco",
        arrange=make_folder("data/train/green"),
        says=["green"],
        cure=remove("data/train/green"),
    ),
    Case(
        "a_class_for_the_test_only",
        "moco",
        arrange=write("data/test/green/1.png", programs.picture(7)),
        says=["green"],
        cure=remove("data/test/green"),
    ),
    Case(
        "no_test_images",
        "moco",
        arrange=remove("data/test"),
        says=["data", "test"],
    ),
    Case(
        "a_class_that_is_none",
        "train_photographs",
        says=["wnids.txt"],
        **harm("data/tiny-imagenet-200/wnids.txt", lambda c: c + b"what is this\n"),
    ),
    Case(
        "an_annotation_of_no_class",
        "train_photographs",
        says=["val_annotations.txt"],
        **harm(
            "data/tiny-imagenet-200/val/val_annotations.txt",
            lambda c: c.replace(b"n00001001", b"n99999999", 1),
        ),
    ),
    Case(
        "annotations_cut_off",
        "train_photographs",
        says=["val"],
        **harm("data/tiny-imagenet-200/val/val_annotations.txt", cut_off),
    ),
]


@harness.params(ANY)
def test_data_that_are_not_there_are_named(case, place):
    harness.try_case(case, place)


@harness.params(DAMAGED_IMAGES)
def test_a_damaged_image_is_named(case, place):
    harness.try_case(case, place)


@harness.params(DAMAGED_FILES)
def test_a_damaged_file_is_named(case, place):
    harness.try_case(case, place)


@harness.params(FOLDERS)
def test_a_strange_folder_is_named(case, place):
    harness.try_case(case, place)
