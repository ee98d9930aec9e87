import os
import shutil

import pytest

from tests.datasets.images import own_images
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


def test_every_kind_of_source_reads_the_same(data_dir, tmp_path):
    source = sources.open_source(data_dir, cache_dir=tmp_path / "cache")
    assert source.names == sorted(CONTENTS)
    for number, name in enumerate(source.names):
        assert source.read(number) == CONTENTS[name]
        assert source.sizes[number] == len(CONTENTS[name])


def test_a_compressed_tar_is_unpacked_and_listed_once(tmp_path, monkeypatch):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    packed = shutil.make_archive(tmp_path / "packed", "gztar", folder)
    cache = tmp_path / "cache"
    first = sources.open_source(packed, cache_dir=cache)
    (unpacked,) = cache.glob("*.tar")
    before = unpacked.stat()
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_tar_members", None)
        again = sources.open_source(packed, cache_dir=cache)
    assert unpacked.stat() == before and again.names == first.names
    # Another archive at the same place is another one.
    os.utime(packed, (1, 1))
    sources.open_source(packed, cache_dir=cache)
    assert len(list(cache.glob("*.tar"))) == 2


def test_a_folder_with_one_archive_stands_for_it(tmp_path):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    shutil.make_archive(tmp_path / "outer" / "packed", "zip", folder)
    (tmp_path / "outer" / "README.md").write_text("about it")
    assert sources.open_source(tmp_path / "outer").names == sorted(CONTENTS)


def test_zips_without_compression_and_beyond_4_gib_of_offsets(tmp_path):
    path = own_images.zipped(tmp_path / "data.zip", CONTENTS, allowZip64=True)
    source = sources.open_source(path)
    assert [source.read(k) for k in range(4)] == [CONTENTS[n] for n in source.names]


def load(path, cache):
    return images.load_index(path, cache_dir=cache)


def test_what_was_checked_is_not_checked_again(tmp_path, monkeypatch):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    checked = []
    check = images.index.formats.check
    monkeypatch.setattr(
        images.index.formats, "check", lambda *c: checked.append(c) or check(*c)
    )
    load(folder, tmp_path / "cache")
    assert len(checked) == 4
    load(folder, tmp_path / "cache")
    assert len(checked) == 4
    # A file that has changed, if only by its time, is.
    os.utime(folder / "a/1.png", (5, 5))
    load(folder, tmp_path / "cache")
    assert len(checked) == 8


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    (tmp_path / "cache").write_text("in the way")
    assert len(load(folder, tmp_path / "cache")) == 4


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TFF_FEDSS_CACHE", str(tmp_path / "here"))
    load(own_images.write(tmp_path / "data", CONTENTS), None)
    assert len(list((tmp_path / "here").iterdir())) == 1
    monkeypatch.delenv("TFF_FEDSS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(sources.default_cache_dir()) == "/x/tff_fedss"


def test_an_image_that_vanishes_stops_the_run(tmp_path):
    folder = own_images.write(tmp_path / "data", CONTENTS)
    index = load(folder, tmp_path / "cache")
    (folder / "a/1.png").unlink()
    with pytest.raises(RunStoppedError, match="a/1.png can no longer be read"):
        index.encoded(0)
