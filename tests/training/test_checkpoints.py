import asyncio
import collections
import errno
import io
import os
import pathlib
import signal

import numpy as np
import pytest

from tff_fedss.errors import InvalidInputError, RunStoppedError
from tff_fedss.training import Checkpoints, Run, checkpoints, train


def state_after(round_num):
    rng = np.random.default_rng(round_num)
    return (
        (rng.normal(size=[3, 4]).astype(np.float32), np.float32(round_num)),
        collections.OrderedDict(b=np.arange(5), a=[np.int32(round_num)]),
    )


def assert_same(a, b):
    (a0, a1), a2 = a
    (b0, b1), b2 = b
    np.testing.assert_array_equal(a0, b0)
    assert a0.dtype == b0.dtype and a1 == b1
    np.testing.assert_array_equal(a2["b"], b2["b"])
    assert a2["a"] == b2["a"]


@pytest.fixture
def saved(tmp_path):
    """A folder with the states after rounds 1, 2 and 3."""
    folder = Checkpoints(tmp_path / "checkpoints")
    for round_num in (1, 2, 3):
        folder.save(state_after(round_num), round_num)
    return tmp_path / "checkpoints"


def test_the_newest_state_comes_back(saved):
    state, round_num = Checkpoints(saved).restore(state_after(0))
    assert round_num == 3
    assert_same(state, state_after(3))


def test_only_the_newest_are_kept(saved):
    folder = Checkpoints(saved, keep=2)
    folder.save(state_after(4), 4)
    assert sorted(path.name for path in saved.iterdir()) == ["round_3", "round_4"]


def test_the_event_loop_of_the_thread_stays(saved):
    # `tff.simulation.run_training_process`, for one, asks for it.
    loop = asyncio.get_event_loop_policy().get_event_loop()
    Checkpoints(saved).save(state_after(4), 4)
    assert asyncio.get_event_loop_policy().get_event_loop() is loop


def test_nothing_to_restore(tmp_path):
    assert Checkpoints(tmp_path / "none").restore(state_after(0)) is None
    (tmp_path / "empty").mkdir()
    assert Checkpoints(tmp_path / "empty").restore(state_after(0)) is None


def flip_a_byte(checkpoint: pathlib.Path):
    path = checkpoint / "arrays.npz"
    content = bytearray(path.read_bytes())
    # In the values of the first array.
    at = content.index(state_after(3)[0][0].tobytes()) + 5
    content[at] ^= 1
    path.write_bytes(content)


def cut_values(checkpoint: pathlib.Path):
    path = checkpoint / "arrays.npz"
    path.write_bytes(path.read_bytes()[:20])


def remove_values(checkpoint: pathlib.Path):
    (checkpoint / "arrays.npz").unlink()


def cut_manifest(checkpoint: pathlib.Path):
    path = checkpoint / "manifest.json"
    path.write_bytes(path.read_bytes()[:100])


def change_manifest(checkpoint: pathlib.Path):
    path = checkpoint / "manifest.json"
    path.write_text(path.read_text().replace("arrays.npz", "arrays.npy"))


def remove_manifest(checkpoint: pathlib.Path):
    (checkpoint / "manifest.json").unlink()


DAMAGES = (
    flip_a_byte,
    cut_values,
    remove_values,
    cut_manifest,
    change_manifest,
    remove_manifest,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_taken(saved, capsys, damage):
    damage(saved / "round_3")
    folder = Checkpoints(saved)
    state, round_num = folder.restore(state_after(0))
    assert round_num == 2
    assert_same(state, state_after(2))
    said = capsys.readouterr().err
    assert f"Checkpoint {saved / 'round_3'} is damaged" in said
    # The round is done again, and saved again.
    folder.save(state_after(3), 3)
    assert_same(Checkpoints(saved).restore(state_after(0))[0], state_after(3))


def test_what_was_put_aside_is_never_deleted(saved):
    for _ in range(2):
        cut_values(saved / "round_3")
        folder = Checkpoints(saved)
        folder.restore(state_after(0))
        folder.save(state_after(3), 3)
    folder.clear()
    names = sorted(path.name for path in saved.iterdir())
    assert names == ["damaged_round_3", "damaged_round_3_2"]


def test_only_damaged_ones_are_no_reason_to_begin_anew(saved, capsys):
    for checkpoint in list(saved.iterdir()):
        cut_values(checkpoint)
    for _ in range(2):  # Also when they have been put aside.
        with pytest.raises(InvalidInputError, match="all checkpoints are damaged"):
            Checkpoints(saved).restore(state_after(0))
    assert len(list(saved.glob("damaged_*"))) == 3


def listing(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in paths}


def test_one_of_another_model_stops_the_run_and_stays(saved):
    before = listing(saved)
    for state, message in (
        ([np.zeros(3)], "4 arrays, not 1"),
        (((np.zeros([3, 5]), 0.0), {"a": [0], "b": np.zeros(5)}), r"\(3, 4\), not"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            Checkpoints(saved).restore(state)
    assert listing(saved) == before


@pytest.mark.parametrize("name", ["arrays.npz", "manifest.json"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_one_that_cannot_be_read_stops_the_run_and_stays(
    saved, monkeypatch, name, number
):
    before = listing(saved)
    opened = io.open

    def open_most(path, *args, **kwargs):
        if os.fspath(path).endswith(f"round_3/{name}"):
            raise OSError(number, os.strerror(number), os.fspath(path))
        return opened(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(io, "open", open_most)
        patched.setattr("builtins.open", open_most)
        with pytest.raises(RunStoppedError, match=f"round_3.*{os.strerror(number)}"):
            Checkpoints(saved).restore(state_after(0))
    assert listing(saved) == before
    assert Checkpoints(saved).restore(state_after(0))[1] == 3


@pytest.mark.parametrize("file", ["saved_model.pb", "manifest.json"])
def test_one_of_an_earlier_version_is_named(tmp_path, file):
    (tmp_path / "round_3").mkdir()
    (tmp_path / "round_3" / file).write_text('{"matrices": {}, "sha256": {}}')
    with pytest.raises(InvalidInputError, match="earlier state of version 0.1.0"):
        Checkpoints(tmp_path).restore(state_after(0))
    assert (tmp_path / "round_3" / file).exists()


def test_a_save_that_fails_leaves_what_is_there(saved, monkeypatch):
    before = listing(saved)

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = Checkpoints(saved)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.files, "write_npz", fail)
        with pytest.raises(
            RunStoppedError, match="round_4 cannot be written: No space"
        ):
            folder.save(state_after(4), 4)
    assert listing(saved) == before
    folder.save(state_after(4), 4)  # Once there is space.
    assert Checkpoints(saved).restore(state_after(0))[1] == 4


def test_what_a_kill_left_half_written_is_cleared_away(saved):
    (saved / "round_4_temp4711").mkdir()
    _, round_num = Checkpoints(saved).restore(state_after(0))
    assert round_num == 3 and not (saved / "round_4_temp4711").exists()


class CountingRun(Run):
    """Counts rounds in place, and stops in the middle of one."""

    metric, metric_title = "top1", "top-1"
    format_metric = "{:.3f}".format
    weights = None

    def __init__(self, stop_in=None):
        super().__init__("counting", task=self)
        self._stop_in = stop_in
        self._count = self.num_reads = 0

    @property
    def state(self):
        self.num_reads += 1
        return [np.asarray(self._count)]

    def evaluate(self, weights):
        return {"top1": 0.0}

    def _train_round(self, round_num):
        self._count = round_num
        if round_num == self._stop_in:
            raise KeyboardInterrupt
        return {"loss": 1.0, "num_examples": 1}


class CopyingRun(CountingRun):
    """Makes a new state in a round, as a `FederatedRun` does."""

    def state_reader(self):
        state = self.state
        return lambda: state


def saved_rounds(folder):
    """The rounds that are saved; each with its own state."""
    rounds = sorted(int(path.name.rpartition("_")[2]) for path in folder.iterdir())
    for round_num in rounds:
        with np.load(folder / f"round_{round_num}/arrays.npz") as saved:
            assert saved["00000"] == round_num
    return rounds


def test_training_saves_now_and_then_and_at_the_end(tmp_path):
    places = {"counting": Checkpoints(tmp_path, keep=10)}
    run = CountingRun()
    train([run], 7, 100, lambda *_: None, places, rounds_per_checkpoint=3)
    assert saved_rounds(tmp_path) == [3, 6, 7]
    assert run.num_reads == 3  # To read it copies it.


@pytest.mark.parametrize("kind, saved", [(CopyingRun, [3, 5]), (CountingRun, [3])])
def test_an_interrupt_saves_the_last_whole_round_if_it_is_there(tmp_path, kind, saved):
    places = {"counting": Checkpoints(tmp_path, keep=10)}
    with pytest.raises(KeyboardInterrupt):
        train([kind(stop_in=6)], 7, 9, lambda *_: None, places, 3)
    assert saved_rounds(tmp_path) == saved


def test_an_interrupt_between_rounds_saves_the_last_one(tmp_path):
    def release(metrics, speed):
        if metrics["round"] == 5:
            os.kill(os.getpid(), signal.SIGINT)

    places = {"counting": Checkpoints(tmp_path, keep=10)}
    # A shell starts what runs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train([CountingRun()], 7, 9, release, places, 3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert saved_rounds(tmp_path) == [3, 5]


@pytest.mark.parametrize("kind, saved", [(CopyingRun, [3, 4]), (CountingRun, [3])])
def test_a_round_that_was_not_released_is_not_saved(tmp_path, kind, saved):
    def release(metrics, speed):
        if metrics["round"] == 5:
            raise OSError("disk full")

    places = {"counting": Checkpoints(tmp_path, keep=10)}
    with pytest.raises(OSError, match="disk full"):
        train([kind()], 7, 9, release, places, 3)
    # The one before is, which was released but not due, if its state is still there.
    assert saved_rounds(tmp_path) == saved


def test_a_state_with_a_float_that_is_not_finite_is_told():
    good = [np.float32(1e30) * np.ones(9, np.float32), np.arange(3), np.float64(np.inf)]
    assert checkpoints.is_finite(good)  # Though the sum of their squares is not.
    for bad in (np.nan, np.inf, -np.inf):
        assert not checkpoints.is_finite([*good, np.array([0.0, bad])])
