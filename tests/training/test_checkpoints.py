import asyncio
import collections
import pathlib

import numpy as np
import pytest

from tff_fedss.training import Checkpoints, checkpoints, train


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
    path = checkpoint / "variables" / "variables.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    # In the values of the first array.
    at = content.index(state_after(3)[0][0].tobytes()) + 5
    content[at] ^= 1
    path.write_bytes(content)


def cut_values(checkpoint: pathlib.Path):
    path = checkpoint / "variables" / "variables.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:20])


def cut_graph(checkpoint: pathlib.Path):
    path = checkpoint / "saved_model.pb"
    path.write_bytes(path.read_bytes()[:100])


def remove_graph(checkpoint: pathlib.Path):
    (checkpoint / "saved_model.pb").unlink()


@pytest.mark.parametrize("damage", [flip_a_byte, cut_values, cut_graph, remove_graph])
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


def test_one_of_another_model_is_not_taken(saved, capsys):
    assert Checkpoints(saved).restore([np.zeros(3)]) is None
    assert capsys.readouterr().err.count("is damaged") == 3


def test_what_a_kill_left_half_written_is_cleared_away(saved):
    (saved / "round_4_temp4711").mkdir()
    _, round_num = Checkpoints(saved).restore(state_after(0))
    assert round_num == 3 and not (saved / "round_4_temp4711").exists()


class CountingRun:
    """Counts rounds, and stops in the middle of one."""

    name, metric, metric_title = "counting", "top1", "top-1"
    format_metric = "{:.3f}".format

    def __init__(self, stop_in=None):
        self.round_num, self.task, self.weights = 0, self, None
        self._stop_in = stop_in

    @property
    def state(self):
        return [np.asarray(self.round_num)]

    def evaluate(self, weights):
        return {"top1": 0.0}

    def run_round(self):
        if self.round_num + 1 == self._stop_in:
            raise KeyboardInterrupt
        self.round_num += 1
        return {"loss": 1.0, "num_examples": 1}


def saved_rounds(folder):
    return sorted(int(path.name.rpartition("_")[2]) for path in folder.iterdir())


def test_training_saves_now_and_then_and_at_the_end(tmp_path):
    places = {"counting": Checkpoints(tmp_path, keep=10)}
    train([CountingRun()], 7, 100, lambda *_: None, places, rounds_per_checkpoint=3)
    assert saved_rounds(tmp_path) == [3, 6, 7]


def test_an_interrupt_saves_the_last_whole_round(tmp_path):
    places = {"counting": Checkpoints(tmp_path, keep=10)}
    with pytest.raises(KeyboardInterrupt):
        train([CountingRun(stop_in=6)], 7, 9, lambda *_: None, places, 3)
    assert saved_rounds(tmp_path) == [3, 5]


def test_a_round_that_was_not_released_is_not_saved(tmp_path):
    def release(metrics, speed):
        if metrics["round"] == 5:
            raise OSError("disk full")

    places = {"counting": Checkpoints(tmp_path, keep=10)}
    with pytest.raises(OSError, match="disk full"):
        train([CountingRun()], 7, 9, release, places, 3)
    # The one before is, which was released but not due.
    assert saved_rounds(tmp_path) == [3, 4]


def test_a_digest_tells_dtype_and_shape_apart():
    zeros = [np.zeros(4, np.float32), np.zeros([2, 2], np.float32), np.zeros(4, "i4")]
    assert len({checkpoints._digest([zero]).tobytes() for zero in zeros}) == 3
