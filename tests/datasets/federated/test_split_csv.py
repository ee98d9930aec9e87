"""The split's CSV files: what is read, and every way in which they can be wrong."""

import numpy as np
import pytest

from tests.refusals import refused
from tff_fedss.datasets.federated import split_csv

TRAIN = "user_id,image_id,class\n7,aa,0\n12,bb,5\n7,cc,1\n"


def test_the_published_test_file(test_data, tmp_path):
    path = test_data / "landmarks-user-160k" / "test.csv"
    split = split_csv.read(path, num_classes=2028, with_clients=False)
    assert len(split.image_ids) == 19_526
    assert split.image_ids[0] == "3e0a3dd44b426720" and split.classes[0] == 0
    assert split.image_ids[-1] == "1ff085b893c2cf00" and split.classes[-1] == 2027
    assert len(np.unique(split.classes)) == 2025
    # What is written is what was published, byte for byte.
    split_csv.write(tmp_path / "test.csv", split)
    assert (tmp_path / "test.csv").read_bytes() == path.read_bytes()


def test_awkward_ids_survive(tmp_path):
    split = split_csv.Split(
        ['a,b"c', "dir/x_0.JPG"], np.array([1, 0], np.int32), ["O'Brien, Zoë", "b c"]
    )
    split_csv.write(tmp_path / "x.csv", split)
    again = split_csv.read(tmp_path / "x.csv")
    assert again.image_ids == split.image_ids and again.clients == split.clients


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user_id,image_id,class\n", "found no row"),
        (TRAIN.replace("bb,5", "bb,6"), r":3: the class '6' is not in 0\.\.5"),
        (TRAIN.replace("cc", "aa"), r":4: the image_id 'aa' is already in .*csv:2"),
        *(
            (TRAIN.replace("12", bad), ":3: the user_id .* cannot be the name of")
            for bad in ("", "..", "a/b")
        ),
    ],
)
def test_bad_file(tmp_path, content, message):
    path = tmp_path / "split.csv"
    path.write_text(content)
    with refused(f"^{path}.*{message}"):
        split_csv.read(path, num_classes=6)
