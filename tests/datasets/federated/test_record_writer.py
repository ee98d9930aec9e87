"""Files that are written whole, a ledger of them, and what ends the work early."""

import fcntl
import os
import threading

import pytest
import tensorflow as tf

from tff_fedss.datasets.federated import record_writer
from tff_fedss.errors import InvalidInputError, RunStoppedError

RUN = {"split.csv": b"a,b\n", "seed.txt": b"0"}


def _open(folder, **changes):
    arguments = dict(
        ledger="finished.csv",
        scratch=".unfinished",
        run=RUN,
        refusal=lambda file: f"{file} is of another run.",
    )
    return record_writer.open_folder(folder, **{**arguments, **changes})


def _records(path):
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_entered_is_not_written_again(tmp_path):
    with _open(tmp_path / "out") as writer:
        assert writer.write("a", [b"one", b"three"]) == [3, 5]
        writer.enter("a", 2, "digest of a")
        writer.write("b", [])
    folder = tmp_path / "out"
    assert _records(folder / "a") == [b"one", b"three"] and not _records(folder / "b")
    size = (folder / "a").stat().st_size
    assert (folder / "finished.csv").read_text() == (
        f"file,images,bytes,rows_md5\na,2,{size},digest of a\n"
    )
    with _open(folder) as writer:
        assert writer.is_finished("a", "digest of a")
        assert not writer.is_finished("a", "another")  # It is to hold something else.
        assert not writer.is_finished("b", "digest of b")  # Not entered.
    (folder / "a").write_bytes(b"short")
    with _open(folder) as writer:
        assert not writer.is_finished("a", "digest of a")
        writer.write("a", [b"one", b"three"])
        writer.enter("a", 2, "digest of a")
        writer.finish(["a", "not entered"])
    assert _names(folder) == ["a", "b", "finished.csv", "seed.txt", "split.csv"]
    assert len((folder / "finished.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("damage", "keeps"),
    [
        (lambda text: text + "b,7", True),  # As a kill leaves it.
        (lambda text: text + 'b,"7', True),
        (lambda text: text + "b\0,1,1,x\n", True),
        (lambda text: text + "b,1,1,\udcff\n", True),
        (lambda text: text + '"' + "x" * 200_000 + "\n", False),
        (lambda text: "", False),
    ],
)
def test_a_damaged_ledger_is_mended(tmp_path, damage, keeps):
    with _open(tmp_path) as writer:
        for name in "ab":
            writer.write(name, [b"one"])
            if name == "a":
                writer.enter(name, 1, name)
    path = tmp_path / "finished.csv"
    text = damage(path.read_text())
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with _open(tmp_path) as writer:
        assert not writer.is_finished("b", "x")
        writer.enter("b", 1, "b")
    with _open(tmp_path) as writer:
        assert writer.is_finished("b", "b")
        assert writer.is_finished("a", "a") == keeps


def test_no_file_of_records_that_end_in_an_error(tmp_path):
    def payloads():
        yield b"one"
        raise KeyError("the second")

    with _open(tmp_path) as writer:
        writer.write("a", [b"before"])
        with pytest.raises(KeyError):
            writer.write("a", payloads())
        assert _names(tmp_path / ".unfinished") == []
    assert _records(tmp_path / "a") == [b"before"]


def test_joined_files_are_one_file_of_records(tmp_path):
    with _open(tmp_path) as writer:
        for name, payloads in {"1": [b"a", b"b"], "2": [], "3": [b"c"]}.items():
            writer.write(name, payloads)
        assert writer.join("all", ["1", "2", "3"])
        assert not writer.join("none", ["2", "2"])
    assert _records(tmp_path / "all") == [b"a", b"b", b"c"]
    assert not (tmp_path / "none").exists()


def test_another_run_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "seed.txt").write_bytes(b"1")
    with (
        pytest.raises(InvalidInputError, match=r"^seed.txt is of another run\.$"),
        _open(tmp_path),
    ):
        pass
    assert _names(tmp_path) == ["seed.txt"]
    # Whoever knows better may say that it is the same.
    with _open(tmp_path, refusal=lambda file: None):
        pass
    assert (tmp_path / "seed.txt").read_bytes() == b"1"


def test_one_program_at_a_time(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(InvalidInputError, match="Another program"), _open(tmp_path):
        pass
    os.close(descriptor)
    assert _names(tmp_path) == []
    with _open(tmp_path):
        pass


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    message = "--output_dir=x cannot be created: Not a directory"
    with (
        pytest.raises(InvalidInputError, match=message),
        _open(tmp_path / "file" / "out", name="--output_dir=x"),
    ):
        pass


def test_file_that_cannot_be_written(tmp_path):
    with _open(tmp_path) as writer:
        (tmp_path / ".unfinished").rmdir()
        with pytest.raises(RunStoppedError, match=r"a cannot be written: "):
            writer.write("a", [b"one"])


def test_all_pieces_are_done_and_taken_only_when_there_is_room(tmp_path):
    taken, done = [], []

    def pieces():
        for piece in range(20):
            taken.append(piece)
            assert len(taken) - len(done) <= 4  # Three threads, and one is taken.
            yield piece

    with _open(tmp_path) as writer:
        for piece, result in writer.run(lambda piece: piece**2, pieces(), 3):
            assert result == piece**2
            done.append(piece)
    assert sorted(done) == list(range(20))


def test_an_error_ends_the_other_threads_without_a_file(tmp_path):
    began, failed = threading.Event(), threading.Event()

    def work(piece):
        if piece == "fails":
            began.wait()
            failed.set()
            raise InvalidInputError("This one.")

        def payloads():
            began.set()
            failed.wait()
            while True:  # Ends by being told to.
                yield b"more"

        return writer.write(piece, payloads())

    with (
        _open(tmp_path) as writer,
        pytest.raises(InvalidInputError, match="This one"),
    ):
        list(writer.run(work, ["endless", "fails", "never begun"], 2))
    assert _names(tmp_path / ".unfinished") == []
    assert not (tmp_path / "endless").exists()
    assert not (tmp_path / "never begun").exists()


def test_a_user_who_stops_ends_the_threads(tmp_path):
    def work(piece):
        if piece == 0:
            return None
        return writer.write(str(piece), iter(lambda: b"endless", None))

    with _open(tmp_path) as writer, pytest.raises(KeyboardInterrupt):
        for _ in writer.run(work, range(9), 2):
            raise KeyboardInterrupt
    assert _names(tmp_path) == [".unfinished", "finished.csv", *sorted(RUN)]
