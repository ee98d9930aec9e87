"""What reports and benchmarks leave: the old file or the whole new one."""

import errno
import os
import pathlib

import pytest

from experiments.common import output_files
from tff_fedss.errors import InvalidInputError, RunStoppedError


def test_csv_has_a_header_and_empty_cells_for_what_is_missing(tmp_path):
    path = tmp_path / "a.csv"
    output_files.write_csv(path, [{"a": 1, "b": "x, y"}, {"a": None}])
    assert path.read_text() == 'a,b\n1,"x, y"\n,\n'
    output_files.write_csv(path, (), ["a", "b"])
    assert path.read_text() == "a,b\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_what_the_machine_refuses_stops_the_program(tmp_path, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    path = tmp_path / "a.md"
    output_files.write_text(path, "old")
    monkeypatch.setattr(pathlib.Path, "write_bytes", refuse)
    with pytest.raises(RunStoppedError, match=f"a.md cannot.*{os.strerror(number)}"):
        output_files.write_text(path, "new")
    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(RunStoppedError, match="--results_dir=.*/b cannot be created"):
        output_files.create_folder(tmp_path / "b", "results_dir")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_is_bad_input(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name in ("folder", "x" * 300):
        with pytest.raises(InvalidInputError, match="cannot be written"):
            output_files.write_text(tmp_path / name, "text")
    with pytest.raises(InvalidInputError, match="--output_dir=.*x cannot be created"):
        output_files.create_folder(tmp_path / ("x" * 300))
    with pytest.raises(InvalidInputError, match="--output_dir=.*cannot be created"):
        output_files.create_folder(tmp_path / "file" / "folder")
    with pytest.raises(InvalidInputError, match="a.md cannot be written"):
        output_files.write_text(tmp_path / "file" / "a.md", "text")
