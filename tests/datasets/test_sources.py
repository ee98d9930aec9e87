"""Folders and archives: every file is read, or an error says why not."""

import os
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

from tests.datasets.images import own_images
from tests.refusals import refused
from tff_fedss import errors
from tff_fedss.datasets import images, sources
from tff_fedss.errors import RunStoppedError

CONTENTS = own_images.images("a/1.png", "a/deep/2.png", "b/ü x.png", "b/new\nline.png")


@pytest.fixture(params=["folder", "zip", "tar", "gztar", "bztar", "xztar"])
def data_dir(request, tmp_path):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    own_images.write(folder, {".hidden/3.png": b"", "__MACOSX/4.png": b""})
    if request.param == "folder":
        return folder
    return shutil.make_archive(tmp_path / "packed", request.param, folder)


def test_every_kind_of_source_reads_the_same(data_dir):
    source = sources.open_source(data_dir)
    assert source.names == sorted(CONTENTS)
    for number, name in enumerate(source.names):
        assert source.read(number) == CONTENTS[name]
        assert source.sizes[number] == len(CONTENTS[name])


def test_a_zip_may_name_its_files_from_the_current_folder(tmp_path):
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("./", "./b/", "./b/1.png", "./a/2.png", "./.hidden/3.png"):
            file.writestr(name, "" if name.endswith("/") else name)
    source = sources.open_source(path)
    assert (source.names, source.folders) == (["a/2.png", "b/1.png"], ["b"])
    assert source.read(0) == b"./a/2.png"


def test_an_archive_beside_images_does_not_replace_them(tmp_path):
    own_images.write(tmp_path / "old.zip", CONTENTS)
    assert sources.open_source(tmp_path).names == sorted(CONTENTS)
    own_images.write(tmp_path, own_images.images("1.png"))
    assert sources.open_source(tmp_path).names == ["1.png", "old.zip"]


def test_a_compressed_tar_is_unpacked_and_listed_once(tmp_path, monkeypatch, cache):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    packed = shutil.make_archive(tmp_path / "packed", "gztar", folder)
    first = sources.open_source(packed)
    (unpacked,) = cache.glob("*.tar")
    before = unpacked.stat()
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_tar_members", None)
        again = sources.open_source(packed)
    assert unpacked.stat() == before and again.names == first.names
    # Another archive at the same place is another one.
    os.utime(packed, (1, 1))
    sources.open_source(packed)
    assert len(list(cache.glob("*.tar"))) == 2


def test_what_was_checked_is_not_checked_again(tmp_path, monkeypatch):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    checked = []
    check = images.index.formats.check
    monkeypatch.setattr(
        images.index.formats, "check", lambda *c: checked.append(c) or check(*c)
    )
    images.load_index(folder)
    assert len(checked) == 4
    images.load_index(folder)
    assert len(checked) == 4
    # A file that has changed, if only by its time, is.
    os.utime(folder / "a/1.png", (5, 5))
    images.load_index(folder)
    assert len(checked) == 8


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, cache):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    cache.write_text("in the way")
    assert len(images.load_index(folder)) == 4


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch, cache):
    images.load_index(own_images.write(tmp_path / "data", CONTENTS))
    assert len(list(cache.iterdir())) == 1
    monkeypatch.delenv("TFF_FEDSS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(sources.cache_folder()) == "/x/tff_fedss"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert str(sources.cache_folder()) == "/home/x/.cache/tff_fedss"


def test_an_image_that_vanishes_stops_the_run(tmp_path):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    index = images.load_index(folder)
    (folder / "a/1.png").unlink()
    with pytest.raises(RunStoppedError, match="a/1.png can no longer be read"):
        index.encoded(0)


_FILES = {
    "a/": b"",
    "a/first.bin": np.random.default_rng(0).bytes(1500),
    "a/empty.bin": b"",
    "b/second.bin": np.random.default_rng(1).bytes(700),
    "b/skipped.txt": b"not wanted",
}


def _read(path):
    source = sources.open_source(path, "--data_dir=x")
    return dict(source.read_all(lambda name: not name.endswith(".txt")))


@pytest.mark.parametrize("suffix", sources.SUFFIXES)
def test_cut_off_anywhere(tmp_path, suffix):
    path = own_images.write(tmp_path / f"files{suffix}", _FILES)
    content = path.read_bytes()
    if suffix == ".tar":
        # Two blocks of zeros end a tar, and more fill its last record.
        content = content[: len(content.rstrip(b"\0")) // 512 * 512 + 512]
    for length in [0, *np.linspace(1, len(content) - 1, 60).astype(int)]:
        path.write_bytes(content[:length])
        with refused(f"^--data_dir=x: files{suffix} is unreadable or damaged: "):
            _read(path)


@pytest.mark.parametrize("at", [512, 1024 + 2048])
def test_tar_cut_off_between_two_members(tmp_path, at):
    """What tarfile itself takes for the end of the archive."""
    path = own_images.write(tmp_path / "files.tar", _FILES)
    path.write_bytes(path.read_bytes()[:at])
    with tarfile.open(path) as tar:
        assert tar.getnames()  # no complaint
    with refused(f"at byte {at:,}"):
        _read(path)


_COMPRESSED = (".zip", ".tar.gz", ".tar.xz", ".tar.bz2")


@pytest.mark.parametrize(
    "name, at, flip, message",
    [
        ("files.tar", 512 + 3, 1, "at byte 512"),  # In the second member's name.
        *((f"files{s}", "third", 16, "damaged") for s in _COMPRESSED),
        ("files.tgz", -6, 1, "CRC"),  # The checksum at the end.
    ],
)
def test_flipped_bit(tmp_path, name, at, flip, message):
    path = own_images.write(tmp_path / name, _FILES)
    content = bytearray(path.read_bytes())
    content[len(content) // 3 if at == "third" else at] ^= flip
    path.write_bytes(content)
    with refused(message):
        _read(path)


def _images(path):
    index = images.load_index(path)
    return index.fingerprint(np.arange(len(index)))


_IMAGES = own_images.images("a/0.png", "a/1.png", "b/0.png", "b/1.png")


def test_a_damaged_name_in_a_zip_is_no_missing_image(tmp_path):
    path = own_images.write(tmp_path / "data.zip", _IMAGES)
    assert _images(path)["images"] == 4
    head, directory = path.read_bytes().rsplit(b"b/1.png", 1)
    path.write_bytes(head + b"b/1.pnk" + directory)
    with refused(r"data\.zip .*differ"):
        _images(path)


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_random_damage_to_an_archive_is_found(tmp_path, suffix):
    path = own_images.write(tmp_path / f"x{suffix}", _IMAGES)
    content, expected = path.read_bytes(), _images(path)
    generator = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[generator.integers(len(damaged))] ^= generator.integers(1, 256)
        path.write_bytes(damaged)
        try:
            found = _images(path)
        except errors.InvalidInputError:
            continue
        # Not every byte counts: a time, or an owner.
        assert found == expected
