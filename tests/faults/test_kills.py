"""Twenty kills of each program at random moments: the bytes of an uninterrupted run."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests import waiting
from tests.faults import harness, programs

# Twenty kills: four at any time after a start, four while a checkpoint is written, and
# twelve at any time after the first round.
KINDS = [*("start", "round", "checkpoint", "round", "round") * 4]

# Long enough for these kills: flags after the usual ones.
_LONG = {
    "train": ["--rounds=800"],
    "rf_softmax": ["--rounds=1500", "--rounds_per_evaluation=50"],
    "partial_fc": ["--rounds=600", "--rounds_per_evaluation=50", "--num_devices=2"],
    "leap": ["--rounds=600", "--rounds_per_evaluation=50"],
    "moco": ["--epochs=250", "--epochs_per_evaluation=50"],
}
# What a checkpoint is called that is being written.
_UNFINISHED = "checkpoints/*/.round_*.tmp"
# A moment is a function of the process: whether it has come. It is asked again and
# again; the process is stopped when it says so, until it is killed.
_Moment = Callable[[subprocess.Popen], bool]


def kill_repeatedly(place: harness.Place, flags: Sequence[str], log) -> None:
    """Kills attempt after attempt of a run with SIGKILL; the next one resumes it."""
    generator = np.random.default_rng(0)
    for kill, kind in enumerate(KINDS):
        seconds = generator.uniform(0.0, 0.8)
        if kind == "start":
            moment = _after(seconds)
        elif kind == "checkpoint":
            moment = _in_a_checkpoint(place.out)
        else:
            moment = _after(seconds, _a_row_in(place.out / "metrics.csv"))
        code = attempt(place, flags, log, moment)
        assert code is None, f"the run ended after {kill} kills: give it more rounds"


def attempt(
    place: harness.Place, flags: Sequence[str], log, moment: _Moment | None = None
) -> int | None:
    """Runs the place's program; returns its exit code, or None if it was killed."""
    options = {"stdout": log, "stderr": subprocess.STDOUT}
    with place.start(place.program, *flags, **options) as process:
        if moment is None:
            return process.wait(timeout=waiting.LIMIT)
        while process.poll() is None:
            if moment(process):
                process.kill()
                process.wait()
                time.sleep(0.5)  # What it has started ends with it.
                return None
            time.sleep(0.001)
        return process.returncode


def _after(seconds: float, event: _Moment = lambda _: True) -> _Moment:
    """A number of seconds after an event."""
    deadline: float | None = None

    def has_come(process: subprocess.Popen) -> bool:
        nonlocal deadline
        if deadline is None and event(process):
            deadline = time.monotonic() + seconds
        return deadline is not None and time.monotonic() >= deadline

    return has_come


def _a_row_in(metrics: pathlib.Path) -> _Moment:
    """When the process has appended to its metrics."""
    # At its start a run replaces the file; after that, it only grows.
    old = metrics.stat().st_ino if metrics.exists() else None
    size: int | None = None

    def has_come(_: subprocess.Popen) -> bool:
        nonlocal size
        with contextlib.suppress(FileNotFoundError):
            found = metrics.stat()
            if found.st_ino != old:
                size = found.st_size if size is None else size
                return found.st_size > size
        return False

    return has_come


def _in_a_checkpoint(folder: pathlib.Path) -> _Moment:
    """While the process writes a checkpoint, after its first round."""
    # What a killed attempt has left is cleared away before that.
    has_begun = _a_row_in(folder / "metrics.csv")
    old: set[tuple[pathlib.Path, int]] | None = None

    def has_come(process: subprocess.Popen) -> bool:
        nonlocal old
        if old is None:
            if has_begun(process):
                old = _unfinished(folder)
            return False
        if not _unfinished(folder) - old:
            return False
        # It may be whole by now; only a stopped process leaves it as it is.
        process.send_signal(signal.SIGSTOP)
        ended_or_stopped = os.WEXITED | os.WSTOPPED | os.WNOWAIT
        os.waitid(os.P_PID, process.pid, ended_or_stopped)
        if _unfinished(folder) - old:
            return True
        process.send_signal(signal.SIGCONT)
        return False

    return has_come


def _unfinished(folder: pathlib.Path) -> set[tuple[pathlib.Path, int]]:
    """Returns the checkpoints that are being written, and when they last changed."""
    found = set()
    for path in folder.glob(_UNFINISHED):
        with contextlib.suppress(FileNotFoundError):
            found.add((path, path.stat().st_ctime_ns))
    return found


@pytest.mark.parametrize(
    "program, more",
    [
        *(pytest.param(name, [], id=name) for name in programs.TRAINING),
        pytest.param("train", ["--keep=best"], id="train_keep_best"),
    ],
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(
    program, more, place
):
    place.begin(program, "new")
    flags = [*_LONG[program], *more]
    unbroken = place.root / "uninterrupted"
    with (place.root / "output.txt").open("a+", errors="replace") as log:
        assert attempt(place, [*flags, f"--results_dir={unbroken}"], log) == 0
        kill_repeatedly(place, flags, log)
        code = attempt(place, flags, log)
        log.seek(0)
        said = log.read()
    assert code == 0 and "Traceback" not in said, said[-2000:]
    names = ["metrics.csv", *sorted(path.name for path in unbroken.glob("*.npz"))]
    assert len(names) > 1
    for name in names:
        assert (place.out / name).read_bytes() == (unbroken / name).read_bytes(), name
