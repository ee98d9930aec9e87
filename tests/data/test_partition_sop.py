"""The program that writes which client has which image of SOP."""

import collections
import csv

import numpy as np
import pytest

from data import partition_sop
from tests import sop_archive
from tff_fedss.datasets import stanford_online_products as sop
from tff_fedss.errors import InvalidInputError


def _run(data_dir, output, **options):
    partition_sop.main(partition_sop.Config(str(data_dir), str(output), **options))


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


def test_the_papers_clients(original_size, tmp_path, capsys):
    folder, rows = original_size
    output = tmp_path / "new" / "clients.csv"
    _run(folder, output)
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "596 clients, 59,551 images of 11,318 classes",
        "images per client:  min 51, median 100, mean 99.92, max 100",
        *[line for line in printed.splitlines() if line.startswith("classes per")],
        f"Written to {output}",
    ]
    with output.open() as file:
        written = list(csv.DictReader(file))
    class_of = {str(image_id): str(class_id - 1) for image_id, class_id, *_ in rows}
    assert {row["image_id"]: row["class"] for row in written} == class_of
    assert len(written) == len(rows) == 59_551
    sizes = collections.Counter(row["user_id"] for row in written)
    assert collections.Counter(sizes.values()) == {100: 595, 51: 1}
    assert sizes[written[-1]["user_id"]] == 51
    pairs = {(row["user_id"], row["class"]) for row in written}
    # A class is with a second client only where a cut goes through it: not at the
    # 19 % of places where it would be between two products.
    assert f"{len(pairs) / 596:.1f}" == "19.8"
    assert f"mean {len(pairs) / 596:.2f}" in printed

    # The same bytes again, here without the program.
    train = sop.read_train_listing(folder)
    again = sop.to_split(train, sop.make_partition(train))
    lines = [
        f"{client},{image_id},{label}\n"
        for client, image_id, label in zip(*(again[i] for i in (2, 0, 1)))
    ]
    assert "user_id,image_id,class\n" + "".join(lines) == output.read_text()


def test_bad_input_is_named_and_nothing_is_written(tmp_path):
    listing = tmp_path / "Ebay_train.txt"
    listing.write_text(f"{sop_archive.HEADER}\n1 1 1 a.JPG\n")
    good = tmp_path / "out.csv"
    for arguments, message in (
        ((tmp_path / "none", good), "does not exist"),
        ((tmp_path, f"{listing}/out.csv"), "cannot be created: Not a directory"),
        ((tmp_path, "/"), "it is no regular file"),
        ((tmp_path, tmp_path), "cannot be written: it is no regular file"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            _run(*arguments)
    for options in ({"images_per_client": 0}, {"seed": -1}):
        ((name, value),) = options.items()
        with pytest.raises(InvalidInputError, match=f"{name}={value}"):
            _run(tmp_path, good, **options)
    with pytest.raises(InvalidInputError, match="`data_dir` must name"):
        partition_sop.main(partition_sop.Config(None, str(good)))
    assert not good.exists()
