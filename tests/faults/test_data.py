"""Data that are not there, damaged or strange: named before anything is written."""

import gzip
import os
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
_HUGE = b"9" * 20  # No integer of 64 bits.
IMAGES = {k: v for k, v in A_FILE.items() if v.endswith(("JPEG", "png"))}


def shown(name):
    """How a line names a file, with the --data_dir before it or not."""
    return name.removeprefix("data/").removeprefix("tiny-imagenet-200/")


def replace_by_fifo(name):
    """A pipe in the place of a file: who opens it waits for ever."""

    def arrange(place):
        place.kept = (place.root / name).read_bytes()
        (place.root / name).unlink()
        os.mkfifo(place.root / name)

    def cure(place):
        (place.root / name).unlink()
        (place.root / name).write_bytes(place.kept)

    return {"arrange": arrange, "cure": cure}


def forbid(name):
    """Nobody but its owner may read a file."""
    return {
        "arrange": lambda place: (
            place.root.chmod(0o777),
            (place.root / name).chmod(0o000),
        ),
        "cure": lambda place: (place.root / name).chmod(0o644),
    }


def link_to_itself(name):
    """A link that leads nowhere."""

    def arrange(place):
        place.kept = (place.root / name).read_bytes()
        (place.root / name).unlink()
        (place.root / name).symlink_to((place.root / name).name)

    def cure(place):
        (place.root / name).unlink()
        (place.root / name).write_bytes(place.kept)

    return {"arrange": arrange, "cure": cure}


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
            "a_pipe_for_a_folder",
            p,
            ["--data_dir=pipe"],
            arrange=lambda place: os.mkfifo(place.root / "pipe"),
            says=["pipe"],
        ),
        Case(
            "a_name_too_long",
            p,
            [f"--data_dir={'x' * 300}"],
            code=EITHER,
            says=["x" * 300],
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
        Case("a_file_a_pipe", p, says=[shown(A_FILE[p])], **replace_by_fifo(A_FILE[p])),
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
        Case(
            "a_link_to_itself",
            p,
            code=EITHER,
            says=[shown(A_FILE[p])],
            **link_to_itself(A_FILE[p]),
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
        Case(
            "an_image_of_another_kind_cut_off",
            p,
            says=[shown(name)],
            **harm(name, put(b"GIF89a\1\0\1\0")),
        ),
        Case(
            "an_image_of_zeros", p, says=[shown(name)], **harm(name, put(b"\0" * 999))
        ),
    )
]


def _labels(change):
    """Changes the labels of MNIST's training images."""
    return lambda c: c[:8] + change(c[8:])


MNIST = [
    Case(f"mnist_{label}", "leap", says=[says], **harm(f"data/{name}", change))
    for label, name, change, says in (
        (
            "label_255",
            "train-labels-idx1-ubyte",
            _labels(lambda c: c[:-1] + b"\xff"),
            "train-labels-idx1-ubyte",
        ),
        (
            "label_10",
            "train-labels-idx1-ubyte",
            _labels(lambda c: b"\x0a" + c[1:]),
            "train-labels-idx1-ubyte",
        ),
        (
            "test_label_255",
            "t10k-labels-idx1-ubyte",
            _labels(lambda c: c[:-1] + b"\xff"),
            "t10k-labels-idx1-ubyte",
        ),
        ("labels_cut_off", "train-labels-idx1-ubyte", cut_off, "train-labels"),
        ("images_cut_off", "train-images-idx3-ubyte", cut_off, "train-images"),
        ("no_test_images", "t10k-images-idx3-ubyte", lose, "t10k-images"),
        (
            "a_wrong_magic_number",
            "train-images-idx3-ubyte",
            lambda c: b"\1\2\3\4" + c[4:],
            "train-images",
        ),
        (
            "more_labels_than_images",
            "train-labels-idx1-ubyte",
            lambda c: c[:4] + struct.pack(">I", 61) + c[8:] + b"\1",
            "61",
        ),
        (
            "four_billion_images",
            "train-images-idx3-ubyte",
            lambda c: c[:4] + struct.pack(">I", 2**32 - 1) + c[8:],
            "train-images",
        ),
        (
            "no_image",
            "train-images-idx3-ubyte",
            lambda c: c[:4] + struct.pack(">I", 0) + c[8:16],
            "train-",
        ),
        (
            "broken_gzip",
            "train-images-idx3-ubyte",
            lambda c: gzip.compress(c)[:200],
            "train-images",
        ),
        (
            "one_class",
            "train-labels-idx1-ubyte",
            _labels(lambda c: b"\0" * len(c)),
            "label",
        ),
    )
]

PTB = [
    Case(f"ptb_{label}", "rf_softmax", says=[name], **harm(f"data/{name}", change))
    for label, name, change in (
        ("not_utf8", "ptb.train.txt", lambda c: c + b"\xff\xfe\n"),
        ("blank", "ptb.train.txt", put("  \n\n")),
        ("no_validation_text", "ptb.valid.txt", lose),
        ("an_unknown_word", "ptb.valid.txt", lambda c: b"zebra " + c),
        ("an_empty_validation_text", "ptb.valid.txt", put("")),
    )
]

XMC = [
    Case(
        f"xmc_{label}",
        "rf_softmax_labels",
        says=["train.txt"],
        **harm("data/train.txt", change),
    )
    for label, change in (
        ("a_label_of_20_digits", lambda c: c.replace(b"\n3,4 ", b"\n%s " % _HUGE, 1)),
        ("a_feature_of_20_digits", lambda c: c.replace(b" 3:1", b" %s:1" % _HUGE, 1)),
        ("a_header_of_20_digits", lambda c: c.replace(b"12 12", b"12 %s" % _HUGE, 1)),
        ("a_label_too_large", lambda c: c.replace(b"\n3,4 ", b"\n3,12 ", 1)),
        ("a_label_of_minus_one", lambda c: c.replace(b"\n3,4 ", b"\n-1 ", 1)),
        ("a_word_for_a_value", lambda c: c.replace(b" 3:1", b" 3:one", 1)),
        ("nan_for_a_value", lambda c: c.replace(b" 3:1", b" 3:nan", 1)),
        ("infinity_for_a_value", lambda c: c.replace(b" 3:1", b" 3:1e999", 1)),
        ("no_header", lambda c: c.partition(b"\n")[2]),
        ("a_header_of_words", lambda c: b"a b c\n" + c.partition(b"\n")[2]),
        ("fewer_rows_than_said", lambda c: b"61 12 12\n" + c.partition(b"\n")[2]),
        ("more_rows_than_said", lambda c: b"59 12 12\n" + c.partition(b"\n")[2]),
        ("no_rows", put("0 12 12\n")),
        ("not_utf8", lambda c: c + b"\xff\xfe\n"),
    )
] + [
    Case(
        "xmc_one_label",
        "rf_softmax_labels",
        arrange=lambda place: [
            (place.data / f"{part}.txt").write_text("9 2 1\n" + "0 1:1\n" * 9)
            for part in ("train", "test")
        ],
        says=["data", "label"],
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
    *(
        Case(
            f"image_{i}_of_{person}_cut_off",
            "partial_fc_faces",
            says=[f"{person}/{i}.png"],
            **harm(f"data/{person}/{i}.png", cut_off),
        )
        for person, i in (("person00", 0), ("person11", 2), ("person23", 2))
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
        "annotations_not_utf8",
        "train_photographs",
        says=["val_annotations.txt"],
        **harm(
            "data/tiny-imagenet-200/val/val_annotations.txt",
            lambda c: c + b"\xff\xfe\n",
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


@harness.params([*MNIST, *PTB, *XMC])
def test_a_damaged_file_is_named(case, place):
    harness.try_case(case, place)


@harness.params(FOLDERS)
def test_a_strange_folder_is_named(case, place):
    harness.try_case(case, place)
