"""Tables of class sizes that cannot be used: one line that says where."""

import pytest

from tests.datasets.damaged import refused, write
from tff_fedss.datasets.imagenet21k import shards


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("n1,-4,1", ":2: found n1,-4,1; expected each wnid once, and two numbers"),
        ("n1,4,1\nn1,4,1", ":3: found n1,4,1; expected each wnid once"),
    ],
)
def test_class_sizes_that_cannot_be(tmp_path, row, message):
    write(tmp_path / "class_sizes.csv", f"wnid,train,test\n{row}\n")
    refused(shards.read_class_sizes, tmp_path, message)
