"""What people hand over by mistake: one line each, and nothing written."""

import shutil
import tarfile

import pytest

from tests.datasets.images import own_images
from tff_fedss.datasets import images
from tff_fedss.errors import InvalidInputError

GOOD = own_images.images("a/1.png", "a/2.png", "b/1.png", "b/2.png")
PNG = GOOD["a/1.png"]


def folder(**changes):
    def make(root):
        return own_images.write(root / "data", GOOD | changes.get("more", {}))

    return make


def table(text, encoding="utf-8"):
    def make(root):
        content = text if isinstance(text, bytes) else text.encode(encoding)
        return own_images.write(root / "data", GOOD | {"images.csv": content})

    return make


def only(contents):
    def make(root):
        (root / "data").mkdir()
        return own_images.write(root / "data", contents)

    return make


def archive(kind, change):
    def make(root):
        source = own_images.write(root / "source", GOOD)
        path = shutil.make_archive(root / "data", kind, source)
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "wb") as file:
            file.write(change(content))
        return path

    return make


def link_to_nowhere(root):
    path = folder()(root)
    (path / "a/3.png").symlink_to(root / "nowhere")
    return path


def linked_tar(root):
    path = root / "data.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("a/1.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    return path


def encrypted_zip(root):
    path = own_images.zipped(root / "data.zip", GOOD)
    content = bytearray(path.read_bytes())
    for start in (b"PK\x03\x04", b"PK\x01\x02"):
        at = content.find(start)
        content[at + (6 if start[2] == 3 else 8)] |= 1
    path.write_bytes(content)
    return path


CASES = {
    "missing": (lambda root: root / "nowhere", "nowhere does not exist"),
    "missing table": (lambda root: root / "x.csv", "x.csv is no file"),
    "a text": (
        lambda root: own_images.write(root, {"a.txt": b"x"}) / "a.txt",
        "is a file; expected a folder or an archive",
    ),
    "empty folder": (only({}), "found no image, no file; expected"),
    "no images": (only({"a/x.txt": b""}), "no image, 'a/x.txt'; expected CLASS/image"),
    "no class folders": (only({"1.png": PNG}), "1.png lies in no folder; expected"),
    "half of them in folders": (
        folder(more={"x.png": PNG}),
        "x.png lies in no folder; expected",
    ),
    "one class": (only({"a/1.png": PNG}), "all images are of one class"),
    "a cut image": (folder(more={"b/3.png": PNG[:80]}), "b/3.png is cut off"),
    "a link to nowhere": (link_to_nowhere, "unreadable or damaged: No such file"),
    "train, test and more": (
        only(own_images.images("train/a/1.png", "test/a/1.png", "extra/a/1.png")),
        "found the folder extra beside test and train",
    ),
    "clients or classes": (
        only(own_images.images("x/a/1.png", "y/a/1.png")),
        "x/a and y/a may be one class of two clients, or two classes",
    ),
    "training images without a class": (
        only(own_images.images("train/1.png", "train/a/2.png", "test/a/1.png")),
        "train/ is not the folder of a class",
    ),
    "no zip": (archive("zip", lambda c: b"x" * 100), "unreadable or damaged"),
    "an encrypted zip": (encrypted_zip, "is encrypted, password required"),
    "a link in a tar": (linked_tar, "a/1.png is a link; expected a file"),
    "table: no label": (
        table("path,class\na/1.png,x\n"),
        ":1: expected the columns path,label",
    ),
    "table: no such file": (
        table("path,label\na/1.png,x\na/9.png,y\n"),
        ":3: there is no file 'a/9.png'",
    ),
    "table: outside": (table("path,label\n../x.png,x\n"), ":2: there is no file"),
    "table: twice": (
        table("path,label\na/1.png,x\n\n./a/1.png,y\n"),
        ":4: the path 'a/1.png' is already in .*:2",
    ),
    "table: no class": (table("path,label\na/1.png, \n"), ":2: .*expected a label"),
    "table: split": (
        table("path,label,split\na/1.png,x,trian\n"),
        ":2: .*'trian'.*expected a label and a client, and as split train",
    ),
    "table: one class": (
        table("path,label\na/1.png,x\n"),
        "all images are of one",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_what_is_wrong(name, tmp_path):
    make, message = CASES[name]
    path = make(tmp_path)
    cache = tmp_path / "cache"
    with pytest.raises(InvalidInputError, match=message) as caught:
        images.load_index(path, cache_dir=cache)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    assert not list(cache.glob(".*"))
