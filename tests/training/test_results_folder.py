import csv
import errno
import json
import os
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.datasets.images.own_images import contents
from tests.refusals import message_of, refused
from tff_fedss import training
from tff_fedss.errors import RunStoppedError
from tff_fedss.training import ResultsFolder, provenance, run_files

FLAGS = {"rounds": "3", "dataset": "glyphs"}
COLUMNS = ("loss", "num_examples", "top1")


def row(method, round_num, **metrics):
    return {"method": method, "round": round_num, **metrics}


def started(path, rounds_done=()):
    """A folder that records."""
    folder = ResultsFolder(path, FLAGS, COLUMNS)
    folder.open()
    folder.start(dict(rounds_done))
    return folder


def test_rows_are_in_the_files_at_once(tmp_path):
    ResultsFolder(tmp_path / "run", FLAGS, COLUMNS)
    assert not (tmp_path / "run").exists()  # Nothing is written before `open`.
    folder = started(tmp_path / "run")
    for round_num in range(3):
        folder.release(
            row("fedss", round_num, loss=0.5), row("fedss", round_num, round_seconds=2)
        )
        rows = list(csv.DictReader((tmp_path / "run/metrics.csv").open()))
        assert len(rows) == round_num + 1
        assert rows[-1]["round"] == str(round_num)
        assert rows[-1]["loss"] == "0.5" and rows[-1]["top1"] == ""
        speed = list(csv.DictReader((tmp_path / "run/speed.csv").open()))
        assert speed[-1]["round_seconds"] == "2"
    (board,) = (tmp_path / "run/tensorboard/fedss").glob("events.out.*")
    records = tf.data.TFRecordDataset(str(board)).as_numpy_iterator()
    events = map(tf.compat.v1.Event.FromString, records)
    shown = [(event.step, v.tag) for event in events for v in event.summary.value]
    assert shown == [(i, tag) for i in range(3) for tag in ("loss", "round_seconds")]


def test_rows_are_on_the_disk_before_a_checkpoint_of_their_round(tmp_path, monkeypatch):
    """After a power failure a checkpoint without its rows could not be resumed."""
    flush, flushed = os.fdatasync, []

    def fdatasync(descriptor):
        flushed.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        flush(descriptor)

    folder = ResultsFolder(tmp_path, FLAGS, COLUMNS)
    folder.open()
    new = types.SimpleNamespace(name="fedss", round_num=0, state=[np.zeros(2)])
    checkpoints = folder.resume([new])
    folder.release(row("fedss", 0), row("fedss", 0))
    folder.release(row("fedss", 1), row("fedss", 1))
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    checkpoints["fedss"].save(new.state, 1)
    *rows, checkpoint = flushed
    assert sorted(rows) == ["metrics.csv", "speed.csv"]
    assert checkpoint == ".round_1.npz.tmp"


def test_a_restart_drops_the_rounds_that_will_be_run_again(tmp_path):
    folder = started(tmp_path)
    released = [
        row(method, i, loss=1e300 * i, num_examples=10**12, top1=1e-7)
        for i in range(4)
        for method in ("fedss", "pos_only", "centralized")
    ]
    for metrics in released:
        folder.release(metrics, row(metrics["method"], metrics["round"]))
    before = (tmp_path / "metrics.csv").read_bytes()
    with (tmp_path / "metrics.csv").open("a") as half:
        half.write("fedss,2,0.")
    folder.close()  # As the end of the process would.

    again = started(tmp_path, {"fedss": 2, "pos_only": 1})
    assert again.rows == [
        metrics
        for metrics in released
        if metrics["round"] <= {"fedss": 2, "pos_only": 1}.get(metrics["method"], -1)
    ]
    # Methods that resumed from different rounds end in the order of an uninterrupted
    # run.
    for metrics in released:
        if metrics not in again.rows:
            again.release(metrics, row(metrics["method"], metrics["round"]))
    again.finish({"top1": 0.5})
    assert (tmp_path / "metrics.csv").read_bytes() == before
    assert again.result == {"top1": 0.5}
    assert ResultsFolder(tmp_path, FLAGS).result == {"top1": 0.5}


def test_methods_end_in_the_order_of_the_runs(tmp_path):
    """Also if the first one begins again, and its rows come last."""
    folder = started(tmp_path)
    for method in ("centralized", "fedss"):
        folder.release(row(method, 0), row(method, 0))
    folder.close()
    again = ResultsFolder(tmp_path, FLAGS, COLUMNS)
    again.open()
    again.resume(
        [
            types.SimpleNamespace(name=name, state=[], round_num=0)
            for name in ("centralized", "fedss")
        ]
    )
    for method in ("fedss", "centralized"):
        again.release(row(method, 0), row(method, 0))
    again.finish({})
    rows = csv.DictReader((tmp_path / "metrics.csv").open())
    assert [found["method"] for found in rows] == ["centralized", "fedss"]


def test_run_json_describes_the_command(tmp_path, monkeypatch):
    program = pathlib.Path(training.__file__).parents[2] / "experiments/fedss/train.py"
    monkeypatch.setattr("sys.argv", [str(program), "--seed=1"])
    started(tmp_path)
    assert (tmp_path / "flags.txt").read_text() == "--rounds=3\n--dataset=glyphs\n"
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["versions"]["tensorflow_federated"] == tff.__version__
    assert described["flags"] == FLAGS and len(described["fingerprint"]) == 64
    assert described["machine"]["cpus"] >= 1 and described["machine"]["memory_gib"] > 0
    assert described["command"] == ["experiments/fedss/train.py", "--seed=1"]


def test_other_flags_are_refused_with_the_difference(tmp_path):
    ResultsFolder(tmp_path, FLAGS).open()
    before = sorted(p.name for p in tmp_path.iterdir())
    others = {"rounds": "4", "seed": "1", "dataset": "glyphs"}
    message = message_of(ResultsFolder, tmp_path, others)
    assert "--rounds=3 there, --rounds=4 here" in message
    assert "--seed=(unset) there, --seed=1 here" in message
    assert "dataset" not in message
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_weights_come_back(tmp_path):
    folder = ResultsFolder(tmp_path, FLAGS)
    folder.open()
    w = [np.arange(3.0), np.ones((2, 2)), np.full((5, 2), 7.0)]
    folder.write_weights("fedss.npz", tff.learning.models.ModelWeights(w, []))
    with np.load(tmp_path / "fedss.npz") as loaded:
        assert sorted(loaded) == ["W", "phi_000", "phi_001"]
        np.testing.assert_array_equal(loaded["phi_001"], w[1])
        np.testing.assert_array_equal(loaded["W"], w[2])


def test_a_second_start_with_other_flags_writes_nothing(tmp_path):
    # Both saw an empty folder, then both wanted it.
    first = ResultsFolder(tmp_path, FLAGS)
    second = ResultsFolder(tmp_path, {**FLAGS, "seed": "1"})
    first.open()
    before = contents(tmp_path)
    with refused("in use by another process"):
        second.open()
    assert contents(tmp_path) == before
    first.close()
    with refused(r"--seed=\(unset\) there, --seed=1 here"):
        second.open()
    assert contents(tmp_path) == before


def test_a_run_that_another_process_has_just_finished_is_not_run_again(tmp_path):
    late = ResultsFolder(tmp_path, FLAGS)
    folder = started(tmp_path)
    folder.release(row("fedss", 0), row("fedss", 0))
    folder.finish({"top1": 0.5})
    before = contents(tmp_path)
    with refused("has just finished"):
        late.open()
    assert contents(tmp_path) == before
    (tmp_path / "metrics.csv").unlink()
    with refused("metrics.csv is missing"):
        _ = ResultsFolder(tmp_path, FLAGS).result


@pytest.mark.parametrize(
    "leftovers", [[".lock"], [".flags.txt.tmp"], [".lock", ".flags.txt.tmp"]]
)
def test_what_a_kill_in_the_first_write_leaves_is_free(tmp_path, leftovers):
    for name in leftovers:
        (tmp_path / name).write_text("--rou")
    ResultsFolder(tmp_path, FLAGS).open()
    assert (tmp_path / "flags.txt").exists()


def test_other_data_are_refused_with_the_difference(tmp_path):
    data = {"data": {"training images": 1900, "clients": 99, "sample": "aa"}}
    folder = ResultsFolder(tmp_path, FLAGS)
    folder.open(data)
    folder.close()
    before = contents(tmp_path)
    other = {
        "data": {"training images": 1920, "clients": 99, "sample": "bb", "seed": 1},
        "pretrained": {"--pretrained": "cc"},
    }
    message = message_of(ResultsFolder(tmp_path, FLAGS).open, other)
    assert "training images: 1,900 there, 1,920 here" in message
    assert "sample: aa there, bb here" in message
    assert "seed: nothing there, 1 here" in message
    assert "--pretrained: nothing there, cc here" in message
    assert "clients" not in message
    assert contents(tmp_path) == before
    ResultsFolder(tmp_path, FLAGS).open(data)


def test_a_resumed_run_keeps_how_it_began(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_now", iter("123").__next__)
    for _ in range(3):
        started(tmp_path).close()
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["started"] == "1"
    assert [again["started"] for again in described["continued"]] == ["2", "3"]


def saved_rows(tmp_path, text):
    folder = started(tmp_path)
    for i in range(3):
        folder.release(row("fedss", i, loss=0.5), row("fedss", i))
    folder.close()
    path = tmp_path / "metrics.csv"
    if text is None:
        path.unlink()
    else:
        path.write_text(text(path.read_text()))


@pytest.mark.parametrize(
    "change, message",
    [
        (None, "the rounds 0 to 2 of fedss, .* found 0"),
        (lambda text: text.replace("fedss,1", "fedss,7"), "found 2 rows"),
        (lambda text: text + "fedss,2" + "," * 3 + "\n", "found 4 rows"),
        # Other damage to a line: tests/experiments/common/test_results.py.
        (
            lambda text: text.replace("fedss,1", "fedss,\0"),
            "metrics.csv:3: (round is|line contains NUL)",
        ),
    ],
)
def test_lost_or_damaged_rows_of_saved_rounds_are_refused(tmp_path, change, message):
    saved_rows(tmp_path, change)
    before = contents(tmp_path)
    with refused(message):
        started(tmp_path, {"fedss": 2})
    assert contents(tmp_path) == before


# The other damages: tests/experiments/common/test_results.py.
def test_damaged_files_are_named(tmp_path):
    ResultsFolder(tmp_path, FLAGS).open()
    (tmp_path / "metrics.csv").write_text("")
    (tmp_path / "done.json").write_text("")
    with refused("done.json:1: not JSON: Expecting"):
        _ = ResultsFolder(tmp_path, FLAGS).result
    (tmp_path / "flags.txt").write_bytes(b"--rounds=\xff\n")
    with refused("flags.txt:1: this is not UTF-8"):
        ResultsFolder(tmp_path, FLAGS)


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\udcffb"])
def test_a_flag_that_no_flagfile_can_hold_is_refused(tmp_path, value):
    with refused("--data_dir=.*flags.txt"):
        ResultsFolder(tmp_path / "run", {"data_dir": value})
    assert not (tmp_path / "run").exists()


def test_a_row_that_cannot_be_written_is_not_there_by_half(tmp_path):
    folder = started(tmp_path)
    folder.release(row("fedss", 0), row("fedss", 0))
    before = (tmp_path / "speed.csv").read_bytes()

    class Full:
        """A file on a disk that has room for three bytes more."""

        def __init__(self, file):
            self._file, self._room = file, 3
            self.seek, self.truncate = file.seek, file.truncate

        def write(self, data):
            if not self._room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._room = 0
            return self._file.write(data[:3])

    appended = folder._files["speed.csv"]
    appended._file = Full(appended._file)
    with pytest.raises(RunStoppedError, match="speed.csv cannot be written: No space"):
        folder.release(row("fedss", 1), row("fedss", 1))
    assert (tmp_path / "speed.csv").read_bytes() == before


def test_csv_keeps_all_digits_and_leaves_empty_what_is_missing():
    rows = [
        {"n": 1, "x": 0.1 + 0.2, "text": 'a, "b"'},
        {"n": None, "x": np.float64(1e-17)},
        {"n": 10**15, "x": float("nan"), "text": True},
    ]
    assert run_files.as_csv(["n", "x", "text"], rows) == (
        'n,x,text\n1,0.30000000000000004,"a, ""b"""\n,1e-17,\n'
        "1000000000000000,nan,True\n"
    )
    assert run_files.as_csv(["a", "b"], []) == "a,b\n"
