import contextlib
import os
import signal
import threading

import pytest

from tff_fedss import stopping
from tff_fedss.stopping import stop_if_asked


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
        done.append("went on")
        ask(signal.SIGTERM)
        done.append("was not stopped")
    assert done == ["went on"]


def test_a_request_in_the_last_round_stops_after_it():
    with pytest.raises(KeyboardInterrupt), stopping.deferred("round"):
        ask(signal.SIGINT)


def test_a_round_without_progress_stops_in_its_middle():
    done = []
    with pytest.raises(KeyboardInterrupt), stopping.deferred("round"):
        stop_if_asked()
        ask(signal.SIGINT)
        done.append("went on")
        stop_if_asked()
        done.append("was not stopped")
    assert done == ["went on"]
    stop_if_asked()


def test_without_a_request_nothing_happens():
    with stopping.deferred("round"):
        stop_if_asked()


def test_ignored_signals_stay_ignored():
    with signal_ignored(signal.SIGINT), stopping.deferred("round"):
        ask(signal.SIGINT)
        stop_if_asked()


@contextlib.contextmanager
def signal_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    yield
    signal.signal(number, before)


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
