"""The modules of tff_fedss: files, memory, progress, seeds, tensors, stopping."""

import errno
import itertools
import os
import pathlib
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import errors, files, memory, progress, seeds, stopping, tensors
from tff_fedss.errors import InvalidInputError, RunStoppedError
from tff_fedss.stopping import stop_if_asked


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
        ("file/x", "Not a directory"),
        ("pipe", "it is no regular file"),
    ],
)
def test_a_path_that_cannot_be_written_is_bad_input(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInputError, match=f"cannot be written: {reason}"):
        files.write(tmp_path / name, b"x")
    assert sorted(tmp_path.iterdir()) == before


def test_what_stops_a_run_and_what_is_bad_input():
    full = OSError(errno.ENOSPC, "No space left on device", "/x/.tmp")
    assert str(files.io_error(full, "/x", "cannot be written")) == (
        "/x cannot be written: No space left on device; free some space, then run the "
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
    path.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(InvalidInputError, match="x.txt:3: this is not UTF-8"):
        files.read_lines(path)
    with pytest.raises(InvalidInputError, match="y cannot be read: No such file"):
        files.read_lines(tmp_path / "y")


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


GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes what Linux would say of a machine's memory."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")

    def write(ram, swap=0, groups="", limits=()):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "meminfo").write_text(
            f"MemTotal:       {ram * 2**20} kB\nMemFree:   1 kB\nHugePages_Total:   0\n"
            f"SwapTotal:      {swap * 2**20} kB\n"
        )
        (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
        for name, limit in dict(limits).items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{limit}\n")

    return write


@pytest.mark.parametrize(
    "options, expected",
    [
        (dict(ram=16, swap=4), 20),
        # Version 2: the smallest limit of a group and those above it.
        (
            dict(
                ram=16,
                groups="0::/jobs/7\n",
                limits={"jobs/7/memory.max": "max", "jobs/memory.max": 8 * GIB},
            ),
            8,
        ),
        # In a container, the name may be the host's.
        (dict(ram=16, groups="0::/docker/a\n", limits={"memory.max": 2 * GIB}), 2),
        # Version 1, whose "no limit" is a huge number.
        (
            dict(
                ram=16,
                groups="9:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n",
                limits={
                    "memory/a/b/memory.limit_in_bytes": 2**63 - 4096,
                    "memory/a/memory.limit_in_bytes": 5 * GIB,
                    "cpu/a/memory.limit_in_bytes": GIB,
                },
            ),
            5,
        ),
        (dict(ram=16, swap=1, groups="0::/\n", limits={"memory.max": 3 * GIB}), 4),
    ],
)
def test_the_memory_is_the_machines_or_its_groups(machine, options, expected):
    machine(**options)
    assert memory.available_bytes() == expected * GIB


def test_what_fits_is_not_refused(machine):
    machine(ram=2)
    memory.check({"a": GIB, "b": GIB})
    memory.check({})
    with pytest.raises(errors.InvalidInputError):
        memory.check({"a": GIB, "b": GIB + 1})


def test_a_refusal_has_every_part_and_the_sum():
    with pytest.raises(errors.InvalidInputError) as error:
        memory.check(
            {"rows": 3 * GIB, "crumbs": 100},
            device_needs={"W": 2_000 * GIB},
            memory=4 * GIB,
        )
    text = str(error.value)
    assert "at least 2,003.0 GiB" in text and "this machine has 4.0 GiB" in text
    assert text.endswith("W 2,000.0 GiB; rows 3.0 GiB.")


def test_what_is_on_gpus_does_not_count(monkeypatch):
    monkeypatch.setattr(memory.tf.config, "get_visible_devices", lambda kind: ["0"])
    memory.check({"rows": GIB}, device_needs={"W": 9 * GIB}, memory=2 * GIB)
    with pytest.raises(errors.InvalidInputError):
        memory.check({"rows": 3 * GIB}, device_needs={"W": 1}, memory=2 * GIB)


def test_generators_follow_from_both_numbers():
    keys = [(0, 1), (1, 0), (1, 1), (2**33, 1)]
    draws = [seeds.generator(*key).integers(2**63, size=4) for key in keys]
    for a, b in itertools.combinations(draws, 2):
        assert (a != b).any()
    for key, draw in zip(keys, draws, strict=True):
        np.testing.assert_array_equal(
            seeds.generator(*key).integers(2**63, size=4), draw
        )


ARRAYS = {
    "image": np.arange(24, dtype=np.uint8).reshape(4, 3, 2),
    "name": np.array([b"a", b"bc", b"", b"d"], object),
    "parts": (np.arange(4.0), tf.range(4)),
}


def test_slices_are_those_of_tensorflow():
    found = tensors.slices(ARRAYS)
    expected = tf.data.Dataset.from_tensor_slices(ARRAYS)
    assert found.element_spec == expected.element_spec
    for a, b in zip(found, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, a, b)


@pytest.fixture(autouse=True)
def handlers():
    """SIGTERM raises, as it does in our programs, and Ctrl-C as in any."""

    def terminate(*_):
        raise SystemExit(143)

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ours = {number: signal.getsignal(number) for number in before}
    yield
    assert {number: signal.getsignal(number) for number in before} == ours
    for number, handler in before.items():
        signal.signal(number, handler)


def ask(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "number, expected",
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
)
def test_the_first_request_waits_for_the_end_of_the_round(number, expected, capsys):
    done = []
    with pytest.raises(expected), stopping.deferred("epoch"):
        for i in range(3):
            if i == 1:
                ask(number)
            done.append(i)
            stop_if_asked()
    assert done == [0, 1]
    assert "Stopping after this epoch" in capsys.readouterr().err


def test_the_second_request_stops_at_once():
    done = []
    with pytest.raises(SystemExit), stopping.deferred("round"):
        ask(signal.SIGINT)
        done.append("continued")
        ask(signal.SIGTERM)
        done.append("was not stopped")
    assert done == ["continued"]


def test_a_request_in_the_last_round_stops_after_it():
    with pytest.raises(KeyboardInterrupt), stopping.deferred("round"):
        ask(signal.SIGINT)


@pytest.mark.parametrize("seconds", [1.0, 100.0])
def test_progress_in_a_log_is_lines(seconds, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", seconds)
    monkeypatch.setattr("tqdm.std.time", itertools.count(1.0).__next__)
    assert list(progress.bar("Reading", unit="files", items=range(2))) == [0, 1]
    with progress.bar("Counting") as bar:
        bar.update(3)
    lines = [line.partition("  ETA")[0] for line in capsys.readouterr().err.split("\n")]
    read = ["Reading  1/2 files", "Reading  2/2 files"]
    assert lines == ([] if seconds > 1 else [*read, "Counting  3/? images"]) + [""]


def test_a_round_without_progress_stops_in_its_middle():
    done = []
    with pytest.raises(KeyboardInterrupt), stopping.deferred("round"):
        stop_if_asked()
        ask(signal.SIGINT)
        done.append("continued")
        stop_if_asked()
        done.append("was not stopped")
    assert done == ["continued"]
    stop_if_asked()


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stopping.deferred("round"):
        ask(signal.SIGINT)
        stop_if_asked()
    signal.signal(signal.SIGINT, before)


def test_other_threads_are_let_be():
    outcome = []

    def work():
        with stopping.deferred("round"):
            stop_if_asked()
            outcome.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == ["done"]
