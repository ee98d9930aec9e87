"""The programs of data/ and those that describe: bad input, and nothing written."""

import gzip
import os

import numpy as np
from PIL import Image

from tests import imagenet21k_archive, labelled_blobs, landmarks_images, sop_archive
from tests.faults import harness
from tests.faults.arrangements import all_of, write
from tests.faults.harness import EITHER, Case

_LANDMARKS = (
    "--split_dir=source/landmarks-user-160k",
    "--image_dir=source/images",
    "--output_dir=cache",
    "--allow_other_split",
)
_SOP = ("--data_dir=source", "--output=split.csv")
_IMAGENET = ("--archive=raw/fall11_whole.tar", "--output_dir=tfds")


def landmarks(place):
    """A miniature of the split and its images."""
    landmarks_images.make(place.root / "source")


def sop(place):
    """A miniature of Stanford Online Products."""
    train, test = sop_archive.listings(
        sop_archive.made_up_products([5] * 60), sop_archive.made_up_products([4] * 5)
    )
    sop_archive.write_folder(place.root / "source", sop_archive.files(train, test))


def imagenet(place):
    """A miniature of ImageNet-21k."""
    images = imagenet21k_archive.classes([6, 7, 8])
    imagenet21k_archive.write_fall11(place.root / "raw", images)


def pipe(name):
    return lambda place: os.mkfifo(place.root / name)


def change(name, edit):
    """Changes a file."""

    def arrange(place):
        path = place.root / name
        path.write_bytes(edit(path.read_bytes()))

    return arrange


def swap(name, put):
    """Removes a file and puts something else in its place."""

    def arrange(place):
        (place.root / name).unlink()
        put(place.root / name)

    return arrange


def an_image(place):
    return sorted((place.root / "source/images").glob("*.jpg"))[3]


_HUGE = b"9" * 20  # No integer of 64 bits.
_THREE_IMAGES = gzip.compress(labelled_blobs.idx(np.zeros([3, 28, 28], np.uint8)))
_TRAIN_CSV = "source/landmarks-user-160k/federated_train.csv"
_TEST_CSV = "source/landmarks-user-160k/test.csv"
_EBAY = f"source/{sop_archive.FOLDER}/Ebay_train.txt"

LANDMARKS = [
    Case(
        label,
        "prepare_landmarks",
        [*_LANDMARKS, *flags],
        arrange=all_of(landmarks, *more),
        code=code,
        says=[says],
    )
    for label, flags, more, code, says in (
        ("no_images", ["--image_dir=/no/such"], [], 2, "--image_dir=/no/such"),
        ("a_file_for_images", [f"--image_dir={_TEST_CSV}"], [], 2, "--image_dir="),
        ("no_split", ["--split_dir=/no/such"], [], 2, "/no/such"),
        (
            "both_images_and_shards",
            ["--shard_dir=source/images"],
            [],
            2,
            "--shard_dir",
        ),
        ("no_threads", ["--threads=0"], [], 2, "--threads=0"),
        ("no_output", ["--output_dir="], [], 2, "--output_dir"),
        (
            "a_file_for_the_output",
            ["--output_dir=letter"],
            [write("letter", "Dear")],
            EITHER,
            "letter",
        ),
        ("a_device_for_it", ["--output_dir=/dev/null/x"], [], EITHER, "/dev/null"),
        (
            "a_class_of_20_digits",
            [],
            [change(_TRAIN_CSV, lambda c: c.replace(b",0\n", b",%s\n" % _HUGE, 1))],
            2,
            "federated_train.csv",
        ),
        (
            "a_class_of_minus_one",
            [],
            [change(_TEST_CSV, lambda c: c.replace(c[-2:], b"-1\n", 1))],
            2,
            "test.csv",
        ),
        (
            "a_split_not_utf8",
            [],
            [change(_TRAIN_CSV, lambda c: c + b"\xff\xfe,1,2\n")],
            2,
            "federated_train.csv",
        ),
        (
            "a_split_with_a_folder",
            [],
            [swap(_TEST_CSV, os.mkdir)],
            EITHER,
            "test.csv",
        ),
        (
            "an_empty_split",
            [],
            [change(_TRAIN_CSV, lambda c: b"")],
            2,
            "federated_train.csv",
        ),
        (
            "an_image_twice",
            [],
            [change(_TRAIN_CSV, lambda c: c + c.splitlines()[-1] + b"\n")],
            2,
            "federated_train.csv",
        ),
        (
            "the_published_split_it_is_not",
            ["--noallow_other_split"],
            [],
            2,
            "--allow_other_split",
        ),
    )
]

LANDMARKS.append(
    Case(
        "no_shards",
        "prepare_landmarks",
        [_LANDMARKS[0], "--shard_dir=/no/such", *_LANDMARKS[2:]],
        arrange=landmarks,
        says=["--shard_dir=/no/such"],
    )
)

# What is missing is in a list, and the program goes on with the others.
LANDMARKS_IMAGES = [
    Case(
        label,
        "prepare_landmarks",
        _LANDMARKS,
        arrange=all_of(landmarks, arrange),
        code=1,
        writes=None,
    )
    for label, arrange in (
        ("an_image_lost", lambda place: an_image(place).unlink()),
        ("an_image_of_text", lambda place: an_image(place).write_text("no image")),
    )
]

SOP = [
    Case(
        label,
        "partition_sop",
        [*_SOP, *flags],
        arrange=all_of(sop, *more),
        code=code,
        says=[says],
    )
    for label, flags, more, code, says in (
        ("no_output", ["--output="], [], 2, "--output"),
        ("a_folder_for_the_output", ["--output=source"], [], EITHER, "source"),
        ("a_device_for_it", ["--output=/dev/null/x"], [], EITHER, "/dev/null"),
        ("a_long_name", [f"--output={'x' * 300}"], [], EITHER, "x" * 300),
        ("no_data", ["--data_dir=/no/such"], [], 2, "--data_dir=/no/such"),
        ("seed_-1", ["--seed=-1"], [], 2, "seed=-1"),
        ("seed_1e30", [f"--seed={10**30}"], [], 2, "seed"),
        ("no_images_per_client", ["--images_per_client=0"], [], 2, "images_per_client"),
        (
            "negative_images_per_client",
            ["--images_per_client=-5"],
            [],
            2,
            "images_per_client",
        ),
        (
            "a_class_of_20_digits",
            [],
            [change(_EBAY, lambda c: c.replace(b"\n1 1 ", b"\n1 %s " % _HUGE, 1))],
            2,
            "Ebay_train.txt",
        ),
        (
            "a_listing_not_utf8",
            [],
            [change(_EBAY, lambda c: c + b"\xff\xfe\n")],
            2,
            "Ebay_train.txt",
        ),
        ("a_listing_empty", [], [change(_EBAY, lambda c: b"")], 2, "Ebay_train.txt"),
        ("a_listing_a_pipe", [], [swap(_EBAY, os.mkfifo)], 2, "Ebay_train.txt"),
        (
            "a_listing_cut_off",
            [],
            [change(_EBAY, lambda c: b"\n".join(c.split(b"\n")[:9]) + b"\n9 2")],
            2,
            "Ebay_train.txt",
        ),
    )
]

IMAGENET = [
    Case(
        label,
        "prepare_imagenet21k",
        [*_IMAGENET, *flags],
        arrange=all_of(imagenet, *more),
        code=code,
        says=[says],
        writes=writes,
    )
    for label, flags, more, code, says, writes in (
        ("no_archive", ["--archive=/no/such.tar"], [], 2, "/no/such.tar", ()),
        ("no_output", ["--output_dir="], [], 2, "--output_dir", ()),
        ("seed_-1", ["--seed=-1"], [], 2, "--seed=-1", ()),
        ("no_workers", ["--workers=0"], [], 2, "workers", ()),
        ("workers_-1", ["--workers=-1"], [], 2, "workers", ()),
        ("an_archive_of_text", ["--archive=x"], [write("x", "Dear")], 2, "x", ()),
        ("no_wnids", ["--wnids=/no/such"], [], 2, "/no/such", ()),
        (
            "wnids_not_utf8",
            ["--wnids=w.txt"],
            [write("w.txt", b"\xff\xfe\n")],
            2,
            "w.txt",
            (),
        ),
        (
            "a_file_for_the_output",
            ["--output_dir=letter"],
            [write("letter", "Dear")],
            EITHER,
            "letter",
            (),
        ),
        (
            "an_archive_cut_off",
            [],
            [change("raw/fall11_whole.tar", lambda c: c[: len(c) // 2])],
            2,
            "fall11_whole.tar",
            ["tfds*"],
        ),
    )
]

DESCRIBE = [
    Case(
        label,
        "describe",
        ["--dataset=sop", "--class_sizes=sizes.csv", *flags],
        arrange=arrange,
        says=[says],
        code=code,
    )
    for label, arrange, flags, code, says in (
        ("no_class_sizes", None, [], 2, "--class_sizes=sizes.csv"),
        ("class_sizes_a_pipe", pipe("sizes.csv"), [], 2, "sizes.csv"),
        ("class_sizes_empty", write("sizes.csv", ""), [], 2, "sizes.csv"),
        ("class_sizes_not_utf8", write("sizes.csv", b"a,\xff\n"), [], 2, "sizes.csv"),
        ("class_sizes_nul", write("sizes.csv", b"a,\0\n"), [], 2, "sizes.csv"),
        ("class_sizes_negative", write("sizes.csv", "a,-1\n"), [], 2, "sizes.csv:1"),
        ("class_sizes_fraction", write("sizes.csv", "a,1.5\n"), [], 2, "sizes.csv:1"),
        ("class_sizes_twice", write("sizes.csv", "a,1\na,2\n"), [], 2, "sizes.csv:2"),
        (
            "class_sizes_digits_of_another_script",
            write("sizes.csv", "a,\u00b2\n"),
            [],
            2,
            "sizes.csv:1",
        ),
        (
            "no_png",
            write("sizes.csv", "a,9\n"),
            ["--output=x.txt"],
            2,
            "--output=x.txt",
        ),
    )
]


SAMPLERS = [
    Case(
        label,
        "sampler_quality",
        ["--output_dir=out", "--num_draws=100", "--images=x.gz"],
        arrange=arrange,
        says=["--images=x.gz" if arrange is None else "x.gz"],
        code=code,
    )
    for label, arrange, code in (
        ("no_images", None, 2),
        ("images_a_pipe", pipe("x.gz"), 2),
        ("images_no_gzip", write("x.gz", "Dear"), 2),
        ("images_empty", write("x.gz", ""), 2),
        ("images_cut_off", write("x.gz", gzip.compress(b"\0\0\x08\3" * 99)[:30]), 2),
        ("images_too_few", write("x.gz", _THREE_IMAGES), 2),
        ("images_a_folder", lambda place: (place.root / "x.gz").mkdir(), EITHER),
    )
]

SOP_CLIENTS = [
    Case(
        label,
        "train",
        [
            "--dataset=sop",
            "--data_dir=source",
            "--clients_csv=clients.csv",
            "--clients_per_round=2",
            "--num_negatives=2",
            "--results_dir=run",
        ],
        arrange=all_of(sop, write("clients.csv", content)),
        says=["clients.csv"],
        without_usual=True,
    )
    for label, content in (
        ("clients_empty", ""),
        ("clients_of_20_digits", f"user_id,image_id,class\n1,{'9' * 20},1\n"),
        ("clients_class_of_20_digits", f"user_id,image_id,class\n1,1,{'9' * 20}\n"),
        ("clients_not_utf8", b"user_id,image_id,class\n\xff,1,1\n"),
        ("clients_other_columns", "a,b\n1,2\n"),
    )
]


@harness.params([*LANDMARKS, *SOP, *IMAGENET])
def test_bad_input_of_a_preparation_is_named(case, place):
    harness.try_case(case, place)


@harness.params([*DESCRIBE, *SAMPLERS, *SOP_CLIENTS])
def test_a_bad_file_is_named(case, place):
    harness.try_case(case, place)


@harness.params(LANDMARKS_IMAGES)
def test_images_that_cannot_be_read_are_listed(case, place):
    harness.try_case(case, place)
    (rejected,) = (place.root / "cache").glob("*/rejected.csv")
    assert len(rejected.read_text().splitlines()) >= 2


def test_a_huge_image_is_an_image_that_cannot_be_read(place):
    """A picture of a few kilobytes that would take gigabytes of memory."""
    place.begin("moco", "new")
    path = place.data / "train/red/5.png"
    Image.new("1", (60_000, 60_000)).save(path)
    case = Case("huge_image", "moco", code=EITHER, says=["train/red/5.png"])
    before = harness.listing(place.root)
    harness.judge(case, place.run(case))
    assert harness.differences(before, harness.listing(place.root)) == []
