"""The programs, with flags and data for which a run takes a second or two."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from tests import labelled_blobs
from tests.datasets.images import own_images

STOP_AFTER_ROWS = 4  # Rounds 0 to 3: the last whole checkpoint is of round 3.
ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and its usual flags.

    Attributes:
        module: As `python -m` takes it.
        flags: For a tiny run. Paths are relative: it runs beside its data, in `data`.
        make_data: Writes the data into a folder.
        name: Of the run: its checkpoints and weights have it.
    """

    module: str
    flags: Sequence[str] = ()
    make_data: Callable[[pathlib.Path], None] | None = None
    name: str = ""


# --- Data -------------------------------------------------------------------------


def text(folder: pathlib.Path) -> None:
    """A language of 40 words, in which each is followed by one of two."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part in ("train", "valid", "test"):
        word, words = 0, []
        for _ in range(600):
            word = (3 * word + generator.integers(1, 3)) % 40
            words.append(f"w{word}")
        if part == "train":
            words += [f"w{i}" for i in range(40)]
        (folder / f"ptb.{part}.txt").write_text(" ".join(words) + "\n")


def labelled_rows(folder: pathlib.Path) -> None:
    """Sparse rows (XMC) whose feature is their label."""
    folder.mkdir(parents=True)
    for part, count in (("train", 60), ("test", 20)):
        lines = [f"{i % 12},{(i + 1) % 12} {i % 12}:1" for i in range(count)]
        header = f"{count} 12 12"
        (folder / f"{part}.txt").write_text("\n".join([header, *lines]) + "\n")


def picture(number: int, kind: str = "PNG") -> bytes:
    """An image of noise that no other number has."""
    return own_images.encoded(own_images.picture(number, (16, 16)), kind)


def image_folders(folder: pathlib.Path) -> None:
    """26 training and 10 test images of two classes, red and green."""
    own_images.of_classes(folder / "train", "red", "green", count=13)
    own_images.of_classes(folder / "test", "red", "green", count=5, first=50)


def faces(folder: pathlib.Path) -> None:
    """24 identities with three images each."""
    own_images.of_classes(folder, *(f"person{k:02}" for k in range(24)), count=3)


A_PHOTOGRAPH = "data/tiny-imagenet-200/train/n00001003/images/n00001003_2.JPEG"
WNIDS = [f"n{1000 + i:08}" for i in range(10)]


def tiny_imagenet(folder: pathlib.Path) -> None:
    """Ten classes of photographs with 8 training and 2 validation images each."""
    root = "tiny-imagenet-200"
    contents, lines = {f"{root}/wnids.txt": "\n".join([*WNIDS, ""]).encode()}, []
    for c, wnid in enumerate(WNIDS):
        for i in range(8):
            name = f"{root}/train/{wnid}/images/{wnid}_{i}.JPEG"
            contents[name] = picture(100 * c + i, "JPEG")
        for i in range(2 * c, 2 * c + 2):
            contents[f"{root}/val/images/val_{i}.JPEG"] = picture(5000 + i, "JPEG")
            lines.append(f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    contents[f"{root}/val/val_annotations.txt"] = "".join(lines).encode()
    own_images.write(folder, contents)


# --- Programs ---------------------------------------------------------------------

_OUT = "--results_dir=run"
_ROUNDS = (f"--rounds={ROUNDS}", "--rounds_per_evaluation=2", _OUT)
_EACH = "--rounds_per_checkpoint=1"
_DATA = "--data_dir=data"


def _federated(*flags: str) -> tuple[str, ...]:
    of_all = "--warm_start_epochs=0 --runtime=in_process".split()
    return (
        *of_all,
        *_ROUNDS,
        _EACH,
        "--num_negatives=5",
        "--clients_per_round=3",
        *flags,
    )


# Those of a small training, which tests/experiments have, too.
PARTIAL_FC = (
    "--num_strata=4 --sample_rate=0.5 --embedding_dim=6 --batch_size=8 "
    "--steps_per_round=2"
).split()
RF_SOFTMAX = (
    "--task=ptb --num_negatives=5 --num_units=8 --batch_size=2 --num_steps=4 "
    "--num_frequencies=10 --embedding_dim=6 --steps_per_round=3"
).split()
LEAP = (
    "--dataset=mnist --student=lenet --embedding=lenet --embedding_dim=4 --in_turn "
    "--clusters_per_class=2 --clusters_per_batch=3 --examples_per_cluster=4 "
    "--embedding_learning_rate=0.003 --batch_size=8 --learning_rate=0.02 "
    "--learning_rate_drops=9,15 --steps_per_round=3"
).split()
MOCO = (
    "--dataset=cifar10 --image_size=16 --batch_size=8 --queue_size=20 --num_clusters=2"
).split()


def _partial_fc(*flags: str) -> tuple[str, ...]:
    return (*PARTIAL_FC, "--num_devices=1", *_ROUNDS, _EACH, *flags)


_LABELS = (
    "--task=extreme --sampler=exp --num_negatives=4 --embedding_dim=6 "
    "--steps_per_round=3"
)
_GLYPHS = "--dataset=glyphs:num_classes=40"

PROGRAMS = {
    "train": Program("experiments.fedss.train", _federated(_GLYPHS), name="fedss"),
    "train_photographs": Program(
        "experiments.fedss.train",
        _federated(
            "--dataset=tiny_imagenet",
            _DATA,
            "--partition=dirichlet:clients=3",
            "--image_size=16",
            "--num_negatives=2",
            "--clients_per_round=2",
        ),
        tiny_imagenet,
        "fedss",
    ),
    "compare": Program(
        "experiments.fedss.compare",
        _federated(_GLYPHS, "--methods=fedss,pos_only"),
        name="fedss",
    ),
    "rf_softmax": Program(
        "experiments.rf_softmax.train",
        (*RF_SOFTMAX, _DATA, *_ROUNDS, _EACH),
        text,
        "rff",
    ),
    "rf_softmax_labels": Program(
        "experiments.rf_softmax.train",
        (*_LABELS.split(), _DATA, *_ROUNDS, _EACH),
        labelled_rows,
        "exp",
    ),
    "partial_fc": Program(
        "experiments.partial_fc.train",
        _partial_fc("--num_classes=90"),
        name="pprn_0.5",
    ),
    "partial_fc_faces": Program(
        "experiments.partial_fc.train",
        _partial_fc("--dataset=faces", _DATA, "--model=small_cnn", "--image_size=16"),
        faces,
        "pprn_0.5",
    ),
    "leap": Program(
        "experiments.leap.train",
        (*LEAP, _DATA, *_ROUNDS, _EACH),
        labelled_blobs.write,
        "leap",
    ),
    "moco": Program(
        "experiments.moco.train",
        (*MOCO, f"--epochs={ROUNDS}", "--epochs_per_evaluation=2", _DATA, _OUT),
        image_folders,
        "moco",
    ),
    **{
        name: Program(f"experiments.{module}")
        for name, module in {
            "demo": "fedss.demo",
            "describe": "fedss.describe",
            "figures": "fedss.figures",
            "run_table": "common.sweep",
            "sampler_quality": "rf_softmax.sampler_quality",
        }.items()
    },
    **{
        name: Program(f"data.{name}")
        for name in ("partition_sop", "prepare_imagenet21k", "prepare_landmarks")
    },
}


# Those that train: each has a results folder and checkpoints.
TRAINING = ("train", "rf_softmax", "partial_fc", "leap", "moco")
