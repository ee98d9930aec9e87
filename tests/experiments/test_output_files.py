"""What reports and benchmarks leave: the old file or the whole new one."""

import matplotlib.figure
import pytest

from experiments import output_files
from tff_fedss.errors import InvalidInputError


def test_csv_has_a_header_and_empty_cells_for_what_is_missing(tmp_path):
    path = tmp_path / "a.csv"
    output_files.write_csv(path, [{"a": 1, "b": "x, y"}, {"a": None}])
    assert path.read_text() == 'a,b\n1,"x, y"\n,\n'
    output_files.write_csv(path, (), ["a", "b"])
    assert path.read_text() == "a,b\n"
    assert list(tmp_path.iterdir()) == [path]


def test_png_is_a_picture(tmp_path):
    path = tmp_path / "a.png"
    output_files.write_png(path, matplotlib.figure.Figure())
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.md"
    output_files.write_text(path, "old")
    with pytest.raises(ZeroDivisionError), output_files.replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="--output_dir=.*cannot be created"):
        output_files.create_folder(tmp_path / "file" / "folder")
    with pytest.raises(InvalidInputError, match="a.md cannot be written"):
        output_files.write_text(tmp_path / "file" / "a.md", "text")
