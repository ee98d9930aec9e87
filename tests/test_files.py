"""Files that are files, and files that are whole or not there."""

import errno
import os
import pathlib

import pytest

from tff_fedss import files
from tff_fedss.errors import InvalidInputError, RunStoppedError


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x"
    for content in (b"old", b"new"):
        files.write(path, content)
        assert path.read_bytes() == content

    def full(self, content):
        with open(self, "wb") as file:
            file.write(content[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    with pytest.raises(RunStoppedError, match="x cannot be written: No space left"):
        files.write(path, b"newer")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a" * 300, "File name too long"),
        ("none/x", "No such file"),
        ("file/x", "Not a directory"),
        ("folder", "it is no regular file"),
        ("pipe", "it is no regular file"),
        ("loop/x", "Too many levels of symbolic links"),
    ],
)
def test_a_path_that_cannot_be_written_is_bad_input(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInputError, match=f"cannot be written: {reason}"):
        files.write(tmp_path / name, b"x")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["", ".", "/", ".."])
def test_what_is_no_name_of_a_file(name):
    with pytest.raises(InvalidInputError, match="it is no regular file"):
        files.write(name, b"x")


def test_folders(tmp_path):
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    for name in ("file", "file/x"):
        with pytest.raises(InvalidInputError, match="Not a directory"):
            files.make_folder(tmp_path / name)


def test_what_stops_a_run_and_what_is_bad_input():
    full = OSError(errno.ENOSPC, "No space left on device", "/x/.tmp")
    assert str(files.io_error(full, "/x", "cannot be written")) == (
        "/x cannot be written: No space left on device; free some space, then give the "
        "same command again."
    )
    for number, kind in (
        (errno.ENOSPC, RunStoppedError),
        (errno.EROFS, RunStoppedError),
        (errno.EACCES, RunStoppedError),
        (errno.EFBIG, RunStoppedError),
        (errno.ENOTDIR, InvalidInputError),
        (errno.ENAMETOOLONG, InvalidInputError),
    ):
        assert type(files.io_error(OSError(number, "y"), "x", "z")) is kind


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a  b\nc."), "a b c"),
        (KeyError(), "KeyError"),
        (OSError(errno.ENOENT, "No such file", "/x"), "No such file"),
        ("a text.", "a text"),
    ],
)
def test_the_text_of_an_error_is_one_line(error, text):
    assert files.error_text(error) == text


def test_lines_of_a_text(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffä\r\nb\u2028c\n\nd".encode())
    assert files.read_lines(path) == ["ä", "b\u2028c", "", "d"]
    assert files.read_text(path) == "ä\r\nb\u2028c\n\nd"
    path.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(InvalidInputError, match="x.txt:3: this is not UTF-8"):
        files.read_lines(path)
    with pytest.raises(InvalidInputError, match="y cannot be read: No such file"):
        files.read_lines(tmp_path / "y")
    assert files.read_text(tmp_path / "y") is None


def test_a_csv_file_with_a_header():
    content = '\ufeffa, b\r\n1,2\r\n\r\n"3\n3",4\r\n'.encode()
    rows = list(files.csv_table(content, "x.csv", ["b"]))
    assert rows == [
        ("x.csv:2", {"a": "1", "b": "2"}),
        ("x.csv:5", {"a": "3\n3", "b": "4"}),
    ]
    assert list(files.csv_rows(b"1 2\n", "x", " ")) == [("x:1", ["1", "2"])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x:1: expected the columns a,b, once each; found nothing"),
        (b"a,c\n", "x:1: expected the columns a,b, once each; found a,c"),
        (b"a,b,b\n", "x:1: expected the columns a,b, once each; found a,b,b"),
        (b"a,b\n1,2\n1\n", "x:3: found 1 fields; the header has 2"),
        (b'a,b\n1,"2"3\n', "x:2: .*expected after"),
        (b"a,b\n1,\xff\n", "x:2: this is not UTF-8"),
    ],
)
def test_a_damaged_csv_file_is_named_with_the_line(content, message):
    with pytest.raises(InvalidInputError, match=message):
        list(files.csv_table(content, "x", ["a", "b"]))
