"""The program that writes which client has which image of SOP."""

import collections
import csv
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from data import partition_sop
from tests import sop_archive
from tff_fedss.datasets import stanford_online_products as sop
from tff_fedss.errors import InvalidInputError

_ROOT = pathlib.Path(__file__).parents[2]


def _run(*flags):
    return subprocess.run(
        [sys.executable, "-P", "-m", "data.partition_sop", *flags],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.fixture(scope="module")
def original_size(tmp_path_factory):
    """A listing with the published counts: 59,551 images of 11,318 classes."""
    rng = np.random.default_rng(0)
    sizes = 2 + rng.multinomial(59_551 - 2 * 11_318, np.full(11_318, 1 / 11_318))
    rows, _ = sop_archive.listings(sop_archive.made_up_products(sizes.tolist()), [])
    folder = tmp_path_factory.mktemp("sop") / sop_archive.FOLDER
    folder.mkdir()
    (folder / "Ebay_train.txt").write_bytes(sop_archive.text(rows))
    return folder.parent, rows


def test_the_papers_clients(original_size, tmp_path):
    folder, rows = original_size
    output = tmp_path / "new" / "clients.csv"
    done = _run(f"--data_dir={folder}", f"--output={output}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "596 clients, 59,551 images of 11,318 classes",
        "images per client:  min 51, median 100, mean 99.92, max 100",
        *[line for line in done.stdout.splitlines() if line.startswith("classes per")],
        f"Written to {output}",
    ]
    with output.open() as file:
        written = list(csv.DictReader(file))
    class_of = {str(image_id): str(class_id - 1) for image_id, class_id, *_ in rows}
    assert {row["image_id"]: row["class"] for row in written} == class_of
    assert len(written) == len(rows) == 59_551
    sizes = collections.Counter(row["user_id"] for row in written)
    assert len(sizes) == 596
    pairs = {(row["user_id"], row["class"]) for row in written}
    assert len(pairs) / 596 == pytest.approx(19.99, abs=0.35)
    assert f"mean {len(pairs) / 596:.2f}" in done.stdout

    # The same bytes again, here without the program.
    train = sop.read_train_listing(folder)
    again = sop.to_split(train, sop.make_partition(train))
    lines = [
        f"{client},{image_id},{label}\n"
        for client, image_id, label in zip(*(again[i] for i in (2, 0, 1)))
    ]
    assert "user_id,image_id,class\n" + "".join(lines) == output.read_text()


def test_bad_input_is_named_and_nothing_is_written(tmp_path):
    output = str(tmp_path / "out.csv")
    with pytest.raises(InvalidInputError, match="--data_dir is missing"):
        partition_sop.write(None, output, 100, 0)
    with pytest.raises(InvalidInputError, match="does not exist"):
        partition_sop.write(str(tmp_path / "none"), output, 100, 0)
    with pytest.raises(InvalidInputError, match="found 0 files Ebay_train.txt"):
        partition_sop.write(str(tmp_path), output, 100, 0)

    folder = tmp_path / sop_archive.FOLDER
    folder.mkdir()
    listing = folder / "Ebay_train.txt"
    listing.write_text(f"{sop_archive.HEADER}\n1 0 1 a.JPG\n")
    with pytest.raises(InvalidInputError, match=r"train.txt:2: the class_id '0'"):
        partition_sop.write(str(tmp_path), output, 100, 0)
    listing.write_text(f"{sop_archive.HEADER}\n1 1 1 a.JPG\n")
    with pytest.raises(InvalidInputError, match="images_per_client=0"):
        partition_sop.write(str(tmp_path), output, 0, 0)
    with pytest.raises(InvalidInputError, match="cannot be created: Not a directory"):
        partition_sop.write(str(tmp_path), f"{listing}/out.csv", 100, 0)
    for output in ("", ".", "/", "..", str(tmp_path)):
        with pytest.raises(InvalidInputError, match="--output=.*name of a CSV file"):
            partition_sop.write(str(tmp_path), output, 100, 0)
    assert not (tmp_path / "out.csv").exists()


def test_the_summary_counts_clients_images_and_classes():
    train = sop.Listing(
        ["a", "b", "c", "d", "e"], np.array([0, 0, 1, 1, 1], np.int32), [], []
    )
    assert partition_sop.summary(
        sop.make_partition(train, 5), train.labels
    ).splitlines() == [
        "1 clients, 5 images of 2 classes",
        "images per client:  min 5, median 5, mean 5.00, max 5",
        "classes per client: min 2, median 2, mean 2.00, max 2",
    ]
