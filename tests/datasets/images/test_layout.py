"""What folders and tables say of images, and what people hand over by mistake."""

import os

import numpy as np
import pytest

from tests.datasets.images import own_images
from tests.refusals import refused
from tff_fedss.datasets import images
from tff_fedss.datasets.images import layout


def of(*names, folders="auto"):
    return layout.from_folders(sorted(names), "data_dir=X", folders)


def found(what, names):
    """By image: class, client, split."""
    names = sorted(names)
    return {
        names[k]: (
            what.class_names[what.labels[i]],
            what.client_names and what.client_names[what.clients[i]],
            None if what.splits is None else int(what.splits[i]),
        )
        for i, k in enumerate(what.files)
    }


@pytest.mark.parametrize(
    "folders, expected",
    [
        # A folder for each class, below what all share.
        ({"a/1.png": "a", "b/1.PNG": "b"}, None),
        ({"x/y/a/1.jpg": "a", "x/y/b/1.jpeg": "b"}, None),
        # As deep as people nest them.
        ({"cars/red/1.png": "cars/red", "cars/blue/1.png": "cars/blue"}, "shared"),
        ({"cars/red/1.png": "cars/red", "dogs/1.png": "dogs"}, None),
        # Folders that say nothing.
        ({"a/images/1.png": "a", "b/images/1.png": "b"}, None),
        # One class may be called so.
        ({"images/1.png": "images", "b/1.png": "b"}, None),
        ({"train/1.png": "train", "bus/1.png": "bus"}, None),
    ],
)
def test_folders_are_classes(folders, expected):
    what = of(*folders)
    if expected == "shared":  # `cars` is above all of them.
        folders = {name: label.split("/")[-1] for name, label in folders.items()}
    assert found(what, folders) == {k: (v, None, None) for k, v in folders.items()}


@pytest.mark.parametrize(
    "train, other, split",
    [
        ("train", "test", layout.TEST),
        ("train", "testing", layout.TEST),
        ("train", "valid", layout.VALIDATION),
        ("Train", "VAL", layout.VALIDATION),
        ("training", "validation", layout.VALIDATION),
    ],
)
@pytest.mark.parametrize("pattern", ["x/{}/{}/1.png", "{1}/{0}/1.png"])
def test_training_and_test_beside_each_other(pattern, train, other, split):
    names = [pattern.format(s, c) for s in (train, other) for c in "ab"]
    what = found(of(*names), names)
    for name in names:
        is_train = f"{train}/" in name
        label = "a" if "/a" in name or name.startswith("a/") else "b"
        assert what[name] == (label, None, layout.TRAIN if is_train else split)


def test_clients():
    names = ["ann/cat/1.png", "ann/dog/2.png", "bob/cat/1.png", "bob/big/dog/1.png"]
    what = found(of(*names, folders="client/class"), names)
    assert what == {
        "ann/cat/1.png": ("cat", "ann", None),
        "ann/dog/2.png": ("dog", "ann", None),
        "bob/cat/1.png": ("cat", "bob", None),
        "bob/big/dog/1.png": ("big/dog", "bob", None),
    }
    assert found(of(*names, folders="class"), names)["bob/cat/1.png"][0] == "bob/cat"
    with refused("cy/ is one folder; expected CLIENT/CLASS/image"):
        of(*names, "cy/1.png", folders="client/class")


def test_a_test_without_classes_is_left_out():
    names = ["train/a/1.png", "train/b/1.png", "test/images/1.png", "test/images/2.png"]
    what = of(*names, "README.md")
    assert len(what.labels) == 2 and what.splits is None
    assert "left out: 2 images of 'test/images'" in what.note
    assert "left out: 1 files that are no images, as 'README.md'" in what.note


def test_a_table_says_all():
    names = ["x/a b.png", "x/ü\n.png", "y.png", "z.png"]
    table = (
        "path,label,client,split\r\n"
        'x/a b.png,cat,ann,train\r\n\r\n"x/ü\n.png",dog,bob,Test\r\n'
        "./y.png, cat,bob , val\r\n"
    )
    what = layout.from_table(table.encode(), "images.csv", sorted(names), "data_dir=X")
    assert found(what, names) == {
        "x/a b.png": ("cat", "ann", layout.TRAIN),
        "x/ü\n.png": ("dog", "bob", layout.TEST),
        "y.png": ("cat", "bob", layout.VALIDATION),
    }
    assert what.note == "left out: 1 images that images.csv does not list"
    # A file without an image's ending is also listed.
    names = ["x.dat", "y.png"]
    what = layout.from_table(b"path,label\nx.dat,a\n", "images.csv", names, "X")
    assert what.note == "left out: 1 images that images.csv does not list"


@pytest.mark.parametrize(
    "names, folders",
    [
        (["1.png", "2.jpg"], "auto"),
        (["all/1.png", "all/2.png"], "none"),
        (["a/1.png", "b/2.png", "3.png"], "none"),
    ],
)
def test_images_may_have_no_classes(names, folders):
    what = layout.from_folders(names, "data_dir=X", folders, needs_labels=False)
    assert what.files.tolist() == list(range(len(names)))
    assert what.labels is None and what.class_names is None and what.splits is None


def test_a_table_may_have_no_labels():
    table = b"path\n2.png\n1.png\n"
    names = ["1.png", "2.png", "images.csv"]
    what = layout.from_table(table, "images.csv", names, "X", needs_labels=False)
    assert what.files.tolist() == [1, 0] and what.labels is None
    with refused("expected the columns path,label"):
        layout.from_table(table, "images.csv", names, "X")


def test_an_index_without_classes(tmp_path):
    data = own_images.write(tmp_path / "data", own_images.images("1.png", "2.png"))
    index = images.load_index(data, needs_labels=False)
    assert len(index) == 2 and index.labels is None and index.class_names is None
    assert index.image_name(1) == "2.png" and index.encoded(1)
    assert index.fingerprint(np.arange(2))["labels of images"] == "none"
    path = tmp_path / os.fsdecode(b"no UTF-8: \xfc")
    one_class = own_images.write(path, own_images.images("a/1.png"))
    index = images.load_index(one_class, needs_labels=False)
    assert index.class_names == ["a"] and index.name == "no UTF-8: \ufffd"
    with refused("one class or none"):
        images.load_index(data, folders="none")


GOOD = own_images.images("a/1.png", "a/2.png", "b/1.png", "b/2.png")
PNG = GOOD["a/1.png"]


def table(text):
    return GOOD | {"images.csv": text.encode()}


def link_to_nowhere(root):
    path = own_images.write(root / "data", GOOD)
    (path / "a/3.png").symlink_to(root / "nowhere")
    return path


def encrypted_zip(root):
    path = own_images.write(root / "data.zip", GOOD)
    content = bytearray(path.read_bytes())
    for start in (b"PK\x03\x04", b"PK\x01\x02"):
        at = content.find(start)
        content[at + (6 if start[2] == 3 else 8)] |= 1
    path.write_bytes(content)
    return path


def hidden_table(root):
    own_images.write(root / "data", GOOD | {".mine.csv": b"path,label\na/1.png,x\n"})
    return root / "data/.mine.csv"


def damaged_table(root):
    path = own_images.write(root / "data.zip", table("path,label\na/1.png,x\n"))
    content = bytearray(path.read_bytes())
    content[content.find(b"images.csv") + len("images.csv") + 3] ^= 255
    path.write_bytes(content)
    return path


CASES = {
    "empty folder": ({}, "found no image, no file; expected"),
    "no class folders": ({"1.png": PNG}, "1.png is not in a folder; expected"),
    "one class": ({"a/1.png": PNG}, "all images are of one class"),
    "a cut image": (GOOD | {"b/3.png": PNG[:80]}, "b/3.png is cut off"),
    "a link to nowhere": (link_to_nowhere, "unreadable or damaged: No such file"),
    "train, test and more": (
        own_images.images("train/a/1.png", "test/a/1.png", "extra/a/1.png"),
        "the folder extra beside test and train",
    ),
    "train and test of some classes only": (
        own_images.images("a/train/1.png", "a/test/1.png", "b/1.png"),
        "the folder b beside test and train",
    ),
    "clients or classes": (
        own_images.images("x/a/1.png", "y/a/1.png"),
        "x/a and y/a may be one class of two clients, or two classes",
    ),
    "training images without a class": (
        own_images.images("train/1.png", "train/a/2.png", "test/a/1.png"),
        "train/ is not a class's folder",
    ),
    "a file twice": (
        lambda root: own_images.write(root / "x.tar", GOOD | {"./a/1.png": PNG}),
        "it has a/1.png twice",
    ),
    "an encrypted zip": (encrypted_zip, "is encrypted, password required"),
    "table: no label": (
        table("path,class\na/1.png,x\n"),
        ":1: expected the columns path,label",
    ),
    "table: two": (
        table("path,label\na/1.png,x\n") | {"Images.csv": b""},
        r"found \['Images.csv', 'images.csv'\]; expected one of them",
    ),
    "table: no such file": (
        table("path,label\na/1.png,x\na/9.png,y\n"),
        ":3: there is no file 'a/9.png'",
    ),
    "table: twice": (
        table("path,label\na/1.png,x\n\n./a/1.png,y\n"),
        ":4: the path 'a/1.png' is already in .*:2",
    ),
    "table: no row": (table("path,label\n"), "images.csv has no row"),
    "table: of one class": (
        GOOD | {"a/images.csv": b"path,label\n1.png,x\n"},
        "a/images.csv must be above all images, such as b/1.png: move or rename it",
    ),
    "table: hidden": (hidden_table, "mine.csv is hidden; expected another name"),
    "table: damaged": (damaged_table, "images.csv is unreadable or damaged"),
    "table: split": (
        table("path,label,split\na/1.png,x,trian\n"),
        ":2: .*'trian'.*expected a label, a client, and the split train",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_what_is_wrong(name, tmp_path, cache):
    made, message = CASES[name]
    path = tmp_path / "data"
    path.mkdir()
    path = made(tmp_path) if callable(made) else own_images.write(path, made)
    with refused(message) as caught:
        images.load_index(path)
    assert len(str(caught.value)) < 400
    assert not list(cache.glob(".*"))
