"""Files that are written whole, by one program at a time, in threads."""

import fcntl
import os
import pathlib

import pytest
import tensorflow as tf

from tff_fedss.datasets.federated import record_writer
from tff_fedss.errors import InvalidInputError, RunStoppedError

RUN = {"split.csv": b"a,b\n", "seed.txt": b"0"}


def _records(path):
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_records_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a"
    assert record_writer.write_records(path, [b"one", b"three"]) == [3, 5]
    assert _records(path) == [b"one", b"three"]

    def payloads():
        yield b"one"
        raise KeyError("the second")

    with pytest.raises(KeyError):
        record_writer.write_records(path, payloads())
    assert _records(path) == [b"one", b"three"] and _names(tmp_path) == ["a"]


def test_another_run_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "seed.txt").write_bytes(b"1")
    with (
        pytest.raises(InvalidInputError, match=r"seed\.txt is of another run"),
        record_writer.open_folder(tmp_path, RUN),
    ):
        pass
    assert _names(tmp_path) == ["seed.txt"]
    (tmp_path / "seed.txt").write_bytes(b"0")
    with record_writer.open_folder(tmp_path, RUN):
        assert (tmp_path / "split.csv").read_bytes() == b"a,b\n"


def test_one_program_at_a_time(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with (
        pytest.raises(InvalidInputError, match="Another program"),
        record_writer.open_folder(tmp_path, RUN),
    ):
        pass
    os.close(descriptor)
    assert _names(tmp_path) == []


def test_folder_and_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    message = "--output_dir=x cannot be created: Not a directory"
    folder = tmp_path / "file" / "out"
    with (
        pytest.raises(InvalidInputError, match=message),
        record_writer.open_folder(folder, RUN, "--output_dir=x"),
    ):
        pass
    with pytest.raises(RunStoppedError, match=r"full/a cannot be written: "):
        record_writer.write_records(pathlib.Path("/dev/full/a"), [b"one"])


def test_all_items_are_done_and_taken_only_when_there_is_room():
    taken, done = [], []

    def items():
        for item in range(20):
            taken.append(item)
            assert len(taken) - len(done) <= 4  # Three threads, and one is taken.
            yield item

    for item, result in record_writer.in_threads(lambda item: item**2, items(), 3):
        assert result == item**2
        done.append(item)
    assert sorted(done) == list(range(20))


def test_an_error_or_a_user_ends_the_threads():
    begun = []

    def work(item):
        begun.append(item)
        if item == 1:
            raise InvalidInputError("This one.")

    with pytest.raises(InvalidInputError, match="This one"):
        list(record_writer.in_threads(work, range(1, 99), 1))
    assert begun == [1]
    begun.clear()
    with pytest.raises(KeyboardInterrupt):
        for _ in record_writer.in_threads(begun.append, range(99), 2):
            raise KeyboardInterrupt
    assert len(begun) <= 3
