"""What every run has from `Run`."""

import pytest

from tff_fedss.training import Metrics, Run


class Algorithm:
    """Adds up numbers."""

    def __init__(self):
        self.state = 0

    @property
    def weights(self):
        return -self.state

    def set_state(self, state):
        self.state = state


class Numbers:
    """A task whose batches are 1, 2, 3, ..."""

    def batches(self, num_done):
        return iter(range(num_done + 1, 1000))


class AddingRun(Run):
    """Two numbers a round."""

    fails_in = None

    def __init__(self):
        super().__init__("adding", Numbers(), Algorithm())

    def _train_round(self, round_num):
        for number in self._next_batches(2 * (round_num - 1), 2):
            self._algorithm.state += number
        if round_num == self.fails_in:
            raise ValueError("lost")
        return Metrics(sum=self._algorithm.state)


def test_a_run_that_resumes_does_as_the_other_would_have():
    whole, resumed = AddingRun(), AddingRun()
    sums = [whole.run_round()["sum"] for _ in range(4)]
    assert sums == [3, 10, 21, 36]
    for _ in range(2):  # Also one that has done rounds before.
        resumed.resume(10, 2)
        assert [resumed.run_round()["sum"] for _ in range(2)] == sums[2:]
        assert resumed.round_num == 4
        assert resumed.state == whole.state and resumed.weights == whole.weights


def test_a_state_can_be_read_until_the_next_round_begins():
    run = AddingRun()
    run.run_round()
    read_state = run.state_reader()
    assert read_state() == read_state() == 3
    run.run_round()
    assert read_state() is None and run.state_reader()() == 10


def test_a_round_that_fails_does_not_count_and_leaves_nothing_to_read():
    run = AddingRun()
    run.run_round()
    read_state, run.fails_in = run.state_reader(), 2
    with pytest.raises(ValueError, match="lost"):
        run.run_round()
    assert run.round_num == 1 and read_state() is None
    run.resume(3, 1)
    run.fails_in = None
    assert run.run_round() == {"sum": 10}
