import collections
import errno
import io
import os
import pathlib
import signal

import numpy as np
import pytest

from tests.datasets.images.own_images import contents
from tests.refusals import refused
from tff_fedss import models, runtime
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
    """A folder with the states after rounds 2 and 3."""
    folder = Checkpoints(tmp_path / "checkpoints")
    for round_num in (1, 2, 3):
        folder.save(state_after(round_num), round_num)
    return tmp_path / "checkpoints"


def test_the_newest_are_kept_and_the_newest_of_all_comes_back(saved):
    assert {path.name for path in saved.iterdir()} == {"round_2.npz", "round_3.npz"}
    state, round_num = Checkpoints(saved).restore(state_after(0))
    assert round_num == 3
    assert_same(state, state_after(3))
    Checkpoints(saved, keep=2).save(state_after(10), 10)
    assert {path.name for path in saved.iterdir()} == {"round_3.npz", "round_10.npz"}


def test_nothing_to_restore(tmp_path):
    assert Checkpoints(tmp_path / "none").restore(state_after(0)) is None
    (tmp_path / "empty").mkdir()
    assert Checkpoints(tmp_path / "empty").restore(state_after(0)) is None


def test_more_arrays_than_a_byte_counts(tmp_path):
    """MobileNetV3 has more than 255."""
    state = [np.float32(i) for i in range(300)]
    Checkpoints(tmp_path).save(state, 1)
    assert Checkpoints(tmp_path).restore(state) == (state, 1)


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


# In the values of the first array, and what is left of a file.
DAMAGES = {
    "one_bit": lambda c: flipped(c, c.index(state_after(3)[0][0].tobytes()) + 5),
    "start": lambda c: c[:20],
    "almost_all": lambda c: c[:-1],
    "nothing": lambda c: b"",
    "zeros": lambda c: bytes(len(c)),
}


def damage(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_taken(saved, capsys, change):
    damage(saved / "round_3.npz", change)
    folder = Checkpoints(saved)
    state, round_num = folder.restore(state_after(0))
    assert round_num == 2
    assert_same(state, state_after(2))
    said = capsys.readouterr().err
    assert f"Checkpoint {saved / 'round_3.npz'} is damaged" in said
    # The round is done again, and saved again.
    folder.save(state_after(3), 3)
    assert_same(Checkpoints(saved).restore(state_after(0))[0], state_after(3))


def test_no_flipped_bit_gives_a_wrong_state(saved):
    path = saved / "round_3.npz"
    whole = path.read_bytes()
    num_damaged = 0
    for at in range(len(whole)):
        path.write_bytes(flipped(whole, at))
        state, round_num = Checkpoints(saved).restore(state_after(0))
        assert_same(state, state_after(round_num))
        num_damaged += round_num == 2
        for aside in saved.glob("damaged_*"):
            aside.unlink()
    assert num_damaged > len(whole) / 2  # The others are times and versions.


def test_what_was_put_aside_is_never_deleted(saved):
    for _ in range(2):
        damage(saved / "round_3.npz", DAMAGES["start"])
        folder = Checkpoints(saved)
        folder.restore(state_after(0))
        folder.save(state_after(3), 3)
    folder.clear()
    names = sorted(path.name for path in saved.iterdir())
    assert names == ["damaged_2_round_3.npz", "damaged_round_3.npz"]


def test_only_damaged_ones_are_no_reason_to_start_again(saved):
    for checkpoint in list(saved.iterdir()):
        damage(checkpoint, DAMAGES["start"])
    for _ in range(2):  # Also after they have been renamed.
        with pytest.raises(InvalidInputError, match="all checkpoints are damaged"):
            Checkpoints(saved).restore(state_after(0))
    assert len(list(saved.glob("damaged_*"))) == 2


def test_one_of_another_model_stops_the_run_and_stays(saved):
    before = contents(saved)
    for state, message in (
        ([np.zeros(3)], "4 arrays, not 1"),
        (((np.zeros([3, 5]), 0.0), {"a": [0], "b": np.zeros(5)}), r"\(3, 4\), not"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            Checkpoints(saved).restore(state)
    assert contents(saved) == before


def failing(number):
    """A function that fails as the operating system does."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_one_that_cannot_be_read_stops_the_run_and_stays(saved, monkeypatch, number):
    before = contents(saved)
    opened = io.open

    def open_most(path, *args, **kwargs):
        if os.fspath(path).endswith("round_3.npz"):
            failing(number)()
        return opened(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(io, "open", open_most)
        patched.setattr("builtins.open", open_most)
        with pytest.raises(RunStoppedError, match=f"round_3.*{os.strerror(number)}"):
            Checkpoints(saved).restore(state_after(0))
    assert contents(saved) == before
    assert Checkpoints(saved).restore(state_after(0))[1] == 3


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_read_is_no_empty_one(saved, monkeypatch, number):
    monkeypatch.setattr(os, "listdir", failing(number))
    with pytest.raises(RunStoppedError, match=f"checkpoints.*{os.strerror(number)}"):
        Checkpoints(saved).restore(state_after(0))


def test_a_save_that_fails_leaves_what_is_there(saved, monkeypatch):
    before = contents(saved)
    folder = Checkpoints(saved)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.files, "write_npz", failing(errno.ENOSPC))
        with refused("round_4.npz cannot be written: No space", RunStoppedError):
            folder.save(state_after(4), 4)
    assert contents(saved) == before
    folder.save(state_after(4), 4)  # Once there is space.
    assert Checkpoints(saved).restore(state_after(0))[1] == 4


def test_what_a_kill_left_half_written_is_cleared_away(saved):
    half = saved / ".round_4.npz.tmp"
    half.write_bytes(b"PK")
    _, round_num = Checkpoints(saved).restore(state_after(0))
    assert round_num == 3 and not half.exists()


def test_another_start_may_clear_it_away_first(saved, monkeypatch):
    gone = saved / ".round_4.npz.tmp"
    monkeypatch.setattr(pathlib.Path, "glob", lambda *_: [gone])
    assert Checkpoints(saved).restore(state_after(0))[1] == 3


class CountingRun(Run):
    """Counts rounds in place, and stops in the middle of one."""

    metric, metric_title = "top1", "top-1"
    format_metric = "{:.3f}".format
    weights = None

    def __init__(self, name="counting", stop_in=None, lost=None):
        super().__init__(name, task=self)
        self._stop_in, self._lost = stop_in, lost
        self._count = self.num_reads = 0

    @property
    def state(self):
        self.num_reads += 1
        return [np.asarray(self._count)]

    def evaluate(self, weights):
        assert weights is None
        return {"top1": self.round_num / 10}

    def train_top1(self, weights):
        return 0.9

    def _train_round(self, round_num):
        self._count = round_num
        if round_num == self._stop_in:
            raise KeyboardInterrupt
        if round_num == self._lost:
            return {"rejected_clients": 1, "num_examples": 0}
        return {"loss": float(round_num), "num_examples": 1}


@pytest.fixture
def folders(tmp_path):
    return {"counting": Checkpoints(tmp_path, keep=10)}


class CopyingRun(CountingRun):
    """Makes a new state in a round, as a `FederatedRun` does."""

    def state_reader(self):
        state = self.state
        return lambda: state


def saved_rounds(folder):
    """The rounds that are saved; each with its own state."""
    rounds = sorted(int(path.stem.rpartition("_")[2]) for path in folder.iterdir())
    for round_num in rounds:
        with np.load(folder / f"round_{round_num}.npz") as saved:
            assert saved["00000"] == round_num
    return rounds


def test_training_saves_now_and_then_and_at_the_end(tmp_path, folders):
    run = CountingRun()
    train([run], 7, 100, lambda *_: None, folders, rounds_per_checkpoint=3)
    assert saved_rounds(tmp_path) == [3, 6, 7]
    assert run.num_reads == 3  # To read it copies it.


def test_a_round_without_an_update_is_not_saved(tmp_path, folders):
    train([CopyingRun(lost=6)], 7, 100, lambda *_: None, folders, 3)
    assert saved_rounds(tmp_path) == [3, 5, 7]


def test_weights_that_are_not_finite_are_not_saved(tmp_path, folders):
    class Diverging(CountingRun):
        @property
        def state(self):
            return [np.array([self._count, np.inf if self._count > 4 else 0])]

    with refused("has diverged in round 6: a weight is not finite", RunStoppedError):
        train([Diverging()], 7, 100, lambda *_: None, folders, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["round_3.npz"]


@pytest.mark.parametrize("kind, saved", [(CopyingRun, [3, 5]), (CountingRun, [3])])
def test_an_interrupt_saves_the_last_whole_round_if_it_is_there(
    tmp_path, folders, kind, saved
):
    with pytest.raises(KeyboardInterrupt):
        train([kind(stop_in=6)], 7, 9, lambda *_: None, folders, 3)
    assert saved_rounds(tmp_path) == saved


def test_an_interrupt_between_rounds_saves_the_last_one(tmp_path, folders):
    def release(metrics, speed):
        if metrics["round"] == 5:
            os.kill(os.getpid(), signal.SIGINT)

    # A shell starts what runs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train([CountingRun()], 7, 9, release, folders, 3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert saved_rounds(tmp_path) == [3, 5]


@pytest.mark.parametrize("kind, saved", [(CopyingRun, [3, 4]), (CountingRun, [3])])
def test_a_round_that_was_not_released_is_not_saved(tmp_path, folders, kind, saved):
    def release(metrics, speed):
        if metrics["round"] == 5:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        train([kind()], 7, 9, release, folders, 3)
    # The one before is, which was released but not due, if its state is still there.
    assert saved_rounds(tmp_path) == saved


def test_a_run_that_cannot_be_saved_keeps_no_other_from_it(tmp_path):
    class Full(Checkpoints):
        def save(self, state, round_num):
            raise OSError("disk full")

    folders = {"first": Full(tmp_path / "1"), "second": Checkpoints(tmp_path / "2")}
    runs = [CountingRun("first"), CountingRun("second")]
    with pytest.raises(OSError, match="disk full"):
        train(runs, 2, 9, lambda *_: None, folders, 9)
    assert saved_rounds(tmp_path / "2") == [2]


# --- Matrices in shards -----------------------------------------------------------

N, D = 150_001, 3  # Several blocks of rows, and shards that cut them.


def matrix(num_shards, seed=None, rows=N):
    bounds = runtime.balanced_bounds(rows, num_shards)
    built = models.ShardedMatrix(["/CPU:0"] * num_shards, bounds, D)
    if seed is not None:
        built.draw_normal(1.0, seed)
    return built


def whole(matrix):
    return matrix.read(0, matrix.shape[0])


def test_rows_do_not_depend_on_the_shards():
    one = whole(matrix(1, seed=1))
    assert one.std() == pytest.approx(1.0, abs=0.01)
    assert len(np.unique(one)) > 0.99 * one.size
    for num_shards in (3, 8):
        np.testing.assert_array_equal(whole(matrix(num_shards, seed=1)), one)
    assert (whole(matrix(1, seed=2)) != one).all(1).any()
    part = matrix(3, seed=1).read(49_990, 120_007)
    np.testing.assert_array_equal(part, one[49_990:120_007])
    assert matrix(2).read(5, 5).shape == (0, D)


@pytest.mark.parametrize("num_shards", [1, 2, 4, 8])
def test_what_four_shards_have_saved_goes_to_any_number_of_shards(tmp_path, num_shards):
    state = [np.asarray(7), np.full([2, 2], 5.0), matrix(4, seed=1), matrix(4, seed=9)]
    Checkpoints(tmp_path).save(state, 3)
    with np.load(tmp_path / "round_3.npz") as saved:
        np.testing.assert_array_equal(saved["00002"], whole(state[2]))

    fresh = [np.asarray(0), np.zeros([2, 2]), matrix(num_shards), matrix(num_shards)]
    restored, round_num = Checkpoints(tmp_path).restore(fresh)
    assert round_num == 3
    for mine, theirs in zip(restored[:2], state[:2]):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(restored[2].read(7, 9), state[2].read(7, 9))
    for ours, mine, theirs in zip(fresh[2:], restored[2:], state[2:]):
        ours.copy_from(mine)
        np.testing.assert_array_equal(whole(ours), whole(theirs))


def test_a_matrix_of_another_shape_is_refused(tmp_path):
    Checkpoints(tmp_path).save([matrix(2, 1, rows=50)], 1)
    with pytest.raises(InvalidInputError, match=r"\(50, 3\), not \(51, 3\)"):
        Checkpoints(tmp_path).restore([matrix(2, rows=51)])
    assert (tmp_path / "round_1.npz").exists()
