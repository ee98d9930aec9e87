"""Texts, tables and lists that cannot be: each ends in one line that says where."""

import zipfile

import pytest

from tests.datasets.damaged import refused, write
from tff_fedss.datasets.central import extreme, penn_treebank
from tff_fedss.datasets.imagenet21k import shards

XMC = "3 5 4\n1,3 0:1.5 4:-2\n 2:0.5\n0\n"


def _text(folder):
    for part in ("train", "valid", "test"):
        write(folder / f"ptb.{part}.txt", "a b c\n" * 50)


# Text.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a b \0 c\n" * 9, "ptb.valid.txt is not UTF-8 text: a zero byte"),
        ("a b c\n".encode("utf-16"), "is not UTF-8 text"),
        ("a <eos> c\n" * 9, "has the word <eos>"),
        (" \n\n", "ptb.valid.txt is empty"),
        ("a z c\n", "has the word 'z'"),
    ],
)
def test_texts_that_cannot_be(tmp_path, content, message):
    _text(tmp_path)
    write(tmp_path / "ptb.valid.txt", content)
    refused(penn_treebank.load, tmp_path, message)


def test_a_mark_at_the_start_of_a_text_is_no_word(tmp_path):
    _text(tmp_path)
    path = tmp_path / "ptb.train.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert sorted(penn_treebank.load(tmp_path).words) == ["<eos>", "a", "b", "c"]


def test_two_copies_of_a_text_in_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "ptb.zip", "w") as zipped:
        for folder in "ab":
            for part in ("train", "valid", "test"):
                zipped.writestr(f"{folder}/ptb.{part}.txt", "a b\n")
    refused(penn_treebank.load, tmp_path, "twice; expected one copy")


# Sparse rows.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1,3 ", "-1,3 "),
        ("1,3 ", "1,3, "),
        ("1,3 ", ",, "),
        ("1,3 ", "1.0 "),
        ("1,3 ", "1_0 "),
        ("1,3 ", "٣ "),
        ("1,3 ", "9" * 20 + " "),
        ("1,3 ", "9" * 5000 + " "),
        ("0:1.5", "-1:1.5"),
        ("0:1.5", "9" * 20 + ":1"),
        ("0:1.5", "0:1e39"),
        ("0:1.5", "0:1e400"),
        ("0:1.5", "0:inf"),
        ("0:1.5", "0:1:5"),
        ("0:1.5", "0:"),
        ("0:1.5", ":1"),
        ("0:1.5", "0:\0"),
        ("4:-2", "0:-2"),
        ("3 5 4", "3 5 4 1"),
        ("3 5 4", "3.0 5 4"),
        ("3 5 4", "-3 5 4"),
        ("3 5 4", "3 5 " + "9" * 20),
        ("3 5 4", "3 5_0 4"),
        ("3 5 4", "3 5 0"),
        (XMC, "1 5 1\n0 0:1\n"),
        (XMC, "1 5 4\n 0:1\n"),
    ],
)
def test_sparse_rows_that_cannot_be(tmp_path, old, new):
    write(tmp_path / "train.txt", XMC.replace(old, new, 1))
    refused(extreme.read, tmp_path / "train.txt", "train.txt")


def test_one_label_and_one_file_for_both_parts(tmp_path):
    write(tmp_path / "x.txt", "1 5 1\n0 0:1\n")
    refused(extreme.read, tmp_path / "x.txt", "has 1 label; expected two or m")
    write(tmp_path / "train_test.txt", XMC)
    refused(extreme.load, tmp_path, "both 'train' and 'test' in its name")


def test_a_mark_at_the_start_of_sparse_rows(tmp_path):
    write(tmp_path / "x.txt", "\ufeff" + XMC.replace("\n", "\r\n"))
    assert extreme.read(tmp_path / "x.txt")[1:] == (5, 4)


ARFF = """@relation few
@attribute word {0,1}
@attribute TAG_a {0,1}
@attribute TAG_c {0,1}
@data
{0 1, 1 1}
{2 1}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{0 1,", "{0 nan,", "line 6: a value is not a finite number"),
        ("{0 1,", "{0 1e60,", "line 6: a value is not a finite number"),
        ("{0 1,", "{0 ?,", "line 6: expected '{index value, ...}'"),
        ("{2 1}", "{2 nan}", "line 7: a label's value is neither 0 nor 1"),
        ("{2 1}", "{2 0.5}", "line 7: a label's value is neither 0 nor 1"),
        ("{2 1}", "{2 1, 2 0}", "line 7: an index is there twice"),
        ("{2 1}", "{-1 1}", "line 7: an index is not in 0..2"),
        ("{2 1}", "{" + "9" * 20 + " 1}", "line 7: an index is not in 0..2"),
        ("{2 1}", "{2 1 1}", "line 7: expected '{index value, ...}'"),
        ("{2 1}", "{2 1", "line 7: expected a sparse row"),
        ("{2 1}", "0,0,1", "line 7: expected a sparse row"),
        ("TAG_c", "TAG_a", "line 4: the attribute 'TAG_a' is there twice"),
        ("TAG_c", "c", "has 1 label; expected two or more"),
    ],
)
def test_arff_that_cannot_be(tmp_path, old, new, message):
    write(tmp_path / "x.arff", ARFF.replace(old, new, 1))
    refused(extreme.read, tmp_path / "x.arff", message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "l.xml is unreadable or damaged"),
        ("<labels></labels>", "must list the labels as <label name=...>; found none"),
        ("<labels><label/></labels>", "found one without a name"),
        ('<?xml version="1.0" encoding="foo"?><labels/>', "unreadable or damaged"),
    ],
)
def test_lists_of_labels_that_cannot_be(tmp_path, content, message):
    write(tmp_path / "x.arff", ARFF)
    write(tmp_path / "l.xml", content)
    refused(extreme.read, tmp_path / "x.arff", message)


# CSV files; those of splits are in federated/test_split_csv.py.


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
