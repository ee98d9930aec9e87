import itertools
import re

import numpy as np
import pytest

from tests.refusals import refused
from tff_fedss.datasets.central import extreme

XMC = """3 5 4
1,3 0:1.5 4:-2
 2:0.5
0
"""
ARFF = """% a comment
@relation 'few'
@attribute word {0,1}
@attribute "TAG_a b" {0,1}
@attribute other numeric
@attribute TAG_c {0,1}

@data
{0 1, 1 1, 2 2.5}
{3 1}
{0 1,3 0}
"""
XML = '<labels xmlns="x"><label name="other"/><label name="TAG_c"/></labels>'


def rows_of(rows):
    ids, values = rows.feature_ids.tolist(), rows.values.tolist()
    return [
        (dict(zip(ids[a:b], values[a:b])), rows.labels(i).tolist())
        for i, (a, b) in enumerate(itertools.pairwise(rows.feature_ends))
    ]


def test_xmc(tmp_path):
    (tmp_path / "train.txt").write_text(XMC)
    rows, num_features, num_labels, _ = extreme.read(tmp_path / "train.txt")
    assert (num_features, num_labels, len(rows)) == (5, 4, 3)
    assert rows_of(rows) == [({0: 1.5, 4: -2.0}, [1, 3]), ({2: 0.5}, []), ({}, [0])]
    assert rows.values.dtype == np.float32 and rows.label_ids.dtype == np.int32


@pytest.mark.parametrize("xml, value", [(None, 2.5), (XML, 1.0)])
def test_arff_with_and_without_a_list_of_labels(tmp_path, xml, value):
    # Lines of spaces are no rows.
    (tmp_path / "x.arff").write_text(ARFF.replace("2.5", str(value)) + " \n\n")
    if xml is not None:
        (tmp_path / "x.xml").write_text(xml)
    rows, num_features, num_labels, _ = extreme.read(tmp_path / "x.arff")
    assert (num_features, num_labels) == (2, 2)
    assert rows_of(rows) == [({0: 1.0, 1: value}, [0]), ({}, [1]), ({0: 1.0}, [])]


def test_a_row_may_have_neither_labels_nor_features(tmp_path):
    (tmp_path / "x.txt").write_text("2 3 2\n0 1:1\n \n\n")
    rows, *_ = extreme.read(tmp_path / "x.txt")
    assert rows_of(rows) == [({1: 1.0}, [0]), ({}, [])]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "x.txt:1: expected 'rows features labels', found ''"),
        ("1 5 4\n1,1 0:1.5\n", "x.txt:2: a label is repeated"),
        ("2 5 4\n1 0:1\n", "1 rows, not 2"),
        ("1 5 4\n1 0:1e39\n", "x.txt:2: a value is not a finite number"),
        (f"1 5 4\n1 {'9' * 5000}:1\n", "x.txt:2: expected 'label,label"),
    ],
)
def test_what_cannot_be_used_in_xmc_is_named(tmp_path, text, message):
    (tmp_path / "x.txt").write_text(text)
    with refused(message):
        extreme.read(tmp_path / "x.txt")


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("{3 1}", "{3}", "x.arff:10: expected {index value, ...}"),
        ("2 2.5}", "2 nan}", "x.arff:9: a value is not a finite number"),
        ("@attribute word {0,1}", "@attribute word", "x.arff:3: no valid attribute"),
    ],
)
def test_what_cannot_be_used_in_arff_is_named(tmp_path, old, new, message):
    (tmp_path / "x.arff").write_text(ARFF.replace(old, new, 1))
    with refused(re.escape(message)):
        extreme.read(tmp_path / "x.arff")


def test_labels_that_are_nowhere_are_named(tmp_path):
    (tmp_path / "x.arff").write_text(ARFF.replace("TAG_", ""))
    with refused("an XML file must name these"):
        extreme.read(tmp_path / "x.arff")
    (tmp_path / "x.xml").write_text("<labels>")
    with refused("x.xml: no element found"):
        extreme.read(tmp_path / "x.arff")
    (tmp_path / "x.xml").write_text(XML)
    with refused("x.xml: the label 'TAG_c' is no attribute of x.arff"):
        extreme.read(tmp_path / "x.arff")
    (tmp_path / "y.xml").write_text(XML)
    with refused("found x.xml, y.xml; expected one"):
        extreme.read(tmp_path / "x.arff")


def test_a_folder_needs_one_file_for_each_part(tmp_path):
    with refused("'train' in its name .* found none"):
        extreme.load(tmp_path)
    (tmp_path / "a_train.txt").write_text(XMC)
    (tmp_path / "a_test.txt").write_text(XMC.replace("3 5 4", "3 6 4"))
    with refused(r"5, 4\) for training and \(6, 4\)"):
        extreme.load(tmp_path)
    (tmp_path / "a_test.txt").write_text(XMC)
    data = extreme.load(tmp_path)
    assert (data.num_features, data.num_labels) == (5, 4)
    (tmp_path / "b_test.svm").write_text(XMC)
    with refused("found a_test.txt, b_test.svm"):
        extreme.load(tmp_path)


def test_both_parts_have_the_same_attributes(tmp_path):
    (tmp_path / "train.arff").write_text(ARFF)
    (tmp_path / "test.arff").write_text(ARFF)
    assert extreme.load(tmp_path).num_features == 2
    swapped = ARFF.replace("other numeric", "word numeric").replace("word {", "other {")
    (tmp_path / "test.arff").write_text(swapped)
    with refused("other names or another order"):
        extreme.load(tmp_path)


def test_one_label_is_too_few(tmp_path):
    for part in ("train", "test"):
        (tmp_path / f"{part}.txt").write_text("1 4 1\n0 2:1\n")
    with refused("data_dir=.* has n=1 labels; expected at least 2"):
        extreme.load(tmp_path)


def test_delicious(test_data):
    data = extreme.load(test_data / "delicious")
    assert (data.num_features, data.num_labels) == (500, 983)
    assert (len(data.train), len(data.test)) == (12_920, 3_185)
    # The first line: features 60 and 248, and the first label is attribute 577.
    np.testing.assert_array_equal(data.train.feature_ids[:2], [60, 248])
    assert data.train.labels(0)[0] == 577 - 500
    assert len(data.train.labels(0)) == 11
