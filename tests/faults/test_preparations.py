"""The programs of data/ and those that describe: bad input, and nothing written."""

import gzip

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


def change(name, edit):
    """Changes a file."""

    def arrange(place):
        path = place.root / name
        path.write_bytes(edit(path.read_bytes()))

    return arrange


def an_image(place):
    return sorted((place.root / "source/images").glob("*.jpg"))[3]


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
        (
            "both_images_and_shards",
            ["--shard_dir=source/images"],
            [],
            2,
            "--shard_dir",
        ),
        ("no_output", ["--output_dir="], [], 2, "--output_dir"),
        (
            "a_file_for_the_output",
            ["--output_dir=letter"],
            [write("letter", "Dear")],
            EITHER,
            "letter",
        ),
        (
            "an_empty_split",
            [],
            [change(_TRAIN_CSV, lambda c: b"")],
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

# What is missing is in a list, and the program continues with the others.
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
        ("no_data", ["--data_dir=/no/such"], [], 2, "--data_dir=/no/such"),
        ("seed_-1", ["--seed=-1"], [], 2, "seed=-1"),
        ("no_images_per_client", ["--images_per_client=0"], [], 2, "images_per_client"),
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
        ("no_wnids", ["--wnids=/no/such"], [], 2, "/no/such", ()),
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
        ("class_sizes_not_utf8", write("sizes.csv", b"a,\xff\n"), [], 2, "sizes.csv"),
        ("class_sizes_fraction", write("sizes.csv", "a,1.5\n"), [], 2, "sizes.csv:1"),
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
        ("images_no_gzip", write("x.gz", "Dear"), 2),
        ("images_cut_off", write("x.gz", gzip.compress(b"\0\0\x08\3" * 99)[:30]), 2),
        ("images_too_few", write("x.gz", _THREE_IMAGES), 2),
    )
]

SOP_CLIENTS = [
    Case(
        label,
        "train",
        [
            "--dataset=sop:clients_csv=clients.csv",
            "--data_dir=source",
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
