"""The programs of data/, tables and figures: bad input, and nothing written."""

import gzip
import shutil

import numpy as np

from tests import imagenet21k_archive, labelled_blobs, landmarks_images, sop_archive
from tests.experiments import run_folders
from tests.faults import harness
from tests.faults.arrangements import change, cut_off, put, write
from tests.faults.harness import EITHER, Case

# --- Preparations; more of them: tests/data ---------------------------------------

_LANDMARKS = (
    "--split_dir=source/landmarks-user-160k",
    "--image_dir=source/images",
    "--output_dir=cache",
    "--allow_other_split",
)
_SOP = ("--data_dir=source", "--output=split.csv")
_IMAGENET = ("--archive=raw/fall11_whole.tar", "--output_dir=tfds")
_TRAIN_CSV = "source/landmarks-user-160k/federated_train.csv"
_EBAY = f"source/{sop_archive.FOLDER}/Ebay_train.txt"


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


PREPARATIONS = [
    Case(
        label,
        program,
        [*usual, *flags],
        prepare=prepare,
        arrange=arrange,
        code=EITHER,
        says=[says],
        writes=["tfds*"] if label == "an_archive_cut_off" else (),
    )
    for program, prepare, usual, cases in (
        (
            "prepare_landmarks",
            landmarks,
            _LANDMARKS,
            [
                (
                    "a_file_for_the_output",
                    ["--output_dir=letter"],
                    write("letter", "Dear"),
                    "letter",
                ),
                (
                    "an_empty_split",
                    [],
                    change(_TRAIN_CSV, put("")),
                    "federated_train.csv",
                ),
                (
                    "another_split",
                    ["--noallow_other_split"],
                    None,
                    "--allow_other_split",
                ),
            ],
        ),
        (
            "partition_sop",
            sop,
            _SOP,
            [
                ("a_folder_for_the_output", ["--output=source"], None, "source"),
                ("no_data", ["--data_dir=/no/such"], None, "--data_dir=/no/such"),
                ("seed_-1", ["--seed=-1"], None, "seed=-1"),
                (
                    "a_listing_cut_off",
                    [],
                    change(_EBAY, lambda c: b"\n".join(c.split(b"\n")[:9]) + b"\n9 2"),
                    "Ebay_train.txt",
                ),
            ],
        ),
        (
            "prepare_imagenet21k",
            imagenet,
            _IMAGENET,
            [
                ("no_archive", ["--archive=/no/such.tar"], None, "/no/such.tar"),
                ("no_output", ["--output_dir="], None, "--output_dir"),
                ("seed_-1", ["--seed=-1"], None, "--seed=-1"),
                ("no_wnids", ["--wnids=/no/such"], None, "/no/such"),
                (
                    "a_file_for_the_output",
                    ["--output_dir=letter"],
                    write("letter", "Dear"),
                    "letter",
                ),
                (
                    "an_archive_cut_off",
                    [],
                    change("raw/fall11_whole.tar", cut_off),
                    "fall11_whole.tar",
                ),
            ],
        ),
    )
    for label, flags, arrange, says in cases
]

# --- What a program reads besides -------------------------------------------------

_THREE_IMAGES = gzip.compress(labelled_blobs.idx(np.zeros([3, 28, 28], np.uint8)))

FILES = [
    Case(
        f"images_{label}",
        "sampler_quality",
        ["--output_dir=out", "--num_draws=100", "--images=x.gz"],
        arrange=arrange,
        says=["x.gz"],
    )
    for label, arrange in (
        ("lost", None),
        ("no_gzip", write("x.gz", "Dear")),
        ("cut_off", write("x.gz", gzip.compress(b"\0\0\x08\3" * 99)[:30])),
        ("too_few", write("x.gz", _THREE_IMAGES)),
    )
]

# --- Tables and figures; more of them: tests/experiments/common -------------------

_TABLE = ["1", "--report", "--results_dir=runs"]
_CELL = "omniglot_fedss_m5"
_FOLDER = f"runs/{_CELL}/seed1"


def again(**changes):
    """One run of the table, another one now."""

    def arrange(place):
        shutil.rmtree(place.root / _FOLDER)
        run_folders.write_run(place.root / "runs", _CELL, 1, 52.0, **changes)

    return arrange


TABLES = [
    Case(
        label,
        "run_table",
        _TABLE,
        prepare=lambda place: run_folders.write_table(place.root / "runs"),
        arrange=arrange,
        says=says,
    )
    for label, arrange, says in (
        ("fewer_rounds", again(rounds=2), ["--rounds=", _FOLDER]),
        *(
            (
                f"another_{flag}",
                again(flags={flag: value}),
                [f"--{flag}", _FOLDER],
            )
            for flag, value in (
                ("pretrained", "w.h5"),
                ("client_learning_rate", "0.5"),
                ("dataset", "glyphs"),
            )
        ),
        *(
            (
                f"{name}_{label}",
                change(f"{_FOLDER}/{name}", put(content)),
                [f"{_FOLDER}/{name}"],
            )
            for name, label, content in (
                ("done.json", "cut_off", "{"),
                ("done.json", "a_list", "[]"),
                ("flags.txt", "not_utf8", b"--seed=\xff\n"),
                ("metrics.csv", "not_utf8", b"method,round\n\xff,1\n"),
                ("run.json", "cut_off", "{"),
            )
        ),
        (
            "metrics_lost",
            change(f"{_FOLDER}/metrics.csv", lambda c: None),
            [f"{_FOLDER}/metrics.csv"],
        ),
    )
] + [
    Case(label, program, flags, says=[says], code=EITHER)
    for program, label, flags, says in (
        ("run_table", "no_runs", _TABLE, "runs"),
        ("run_table", "table_9", ["9"], "which table"),
        ("run_table", "no_workers", ["1", "--workers=0"], "--workers=0"),
        ("figures", "an_unknown_one", ["--figures=99"], "--figures"),
        (
            "figures",
            "to_a_device",
            ["--figures=8", "--output_dir=/dev/null/x"],
            "/dev/null",
        ),
    )
]


@harness.params([*PREPARATIONS, *FILES, *TABLES])
def test_bad_input_is_named(case, place):
    harness.try_case(case, place)


def test_a_table_says_what_was_run(place):
    """Command, seeds and rounds are those of the runs, not the published ones."""
    run_folders.write_table(
        place.root / "runs", {_CELL: (50.0, 52.0)}, rounds=6, rounds_per_evaluation=3
    )
    outcome = place.run(Case("said", "run_table", _TABLE))
    assert outcome.code == 0, outcome
    text = (place.root / "runs/table1.md").read_text()
    (seeds,) = (x for x in text.splitlines() if x.startswith("- Seeds:"))
    (rounds,) = (x for x in text.splitlines() if x.startswith("- Rounds:"))
    assert seeds.startswith(f"- Seeds: 0, 1 in {_CELL}; none yet in "), seeds
    assert "6" in rounds, rounds
