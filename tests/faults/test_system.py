"""A system that fails: clocks, disks, networks, too little memory."""

import os
import resource
import signal
import sys

import pytest

from tests import waiting
from tests.faults import harness
from tests.faults.harness import Case
from tests.faults.test_environment import expect_finished_by

_GIB = 2**30

# What Python runs before a program: `fail(number)` raises the system's error.
_BEGIN = """
import builtins, errno, fcntl, io, os, time
def fail(number):
    raise OSError(number, os.strerror(number))
"""
_REPLACE = """
replace = os.replace
def failing(source, target, **kwargs):
    if str(target).endswith({end!r}):
        fail(errno.{error})
    return replace(source, target, **kwargs)
os.replace = failing
"""
_FLOCK = """
def failing(*_):
    fail(errno.ENOLCK)
fcntl.flock = failing
"""
_FSYNC = """
def failing(_):
    fail(errno.EIO)
os.fsync = failing
"""
_APPEND = """
class Failing(io.FileIO):
    def write(self, data):
        super().write(data[:3])
        fail(errno.EIO)
opens = open
def failing(path, mode="r", *args, **kwargs):
    if str(path).endswith("metrics.csv") and mode == "ab":
        return Failing(path, mode)
    return opens(path, mode, *args, **kwargs)
builtins.open = failing
"""
_CLOCK = """
now, now_ns = time.time, time.time_ns
time.time = lambda: now() - {seconds}
time.time_ns = lambda: now_ns() - {seconds} * 10**9
"""
_YEAR = 365 * 24 * 3600

# For each the code, and what the one line says.
ERRORS = {
    "EIO_of_a_checkpoint": (_FSYNC, "checkpoints", "Input/output error"),
    "EIO_of_a_row": (_APPEND, "metrics.csv", "Input/output error"),
    "ENOLCK_of_the_folder": (_FLOCK, "run", "No locks available"),
    **{
        f"{error}_of_{end}": (_REPLACE.format(end=end, error=error), end, text)
        for error, text in (
            ("ESTALE", "Stale file handle"),
            ("EXDEV", "Invalid cross-device link"),
        )
        for end in ("round_3.npz", "flags.txt", "fedss.npz", "done.json")
    },
}


def run_with(place, code, start="new", program="train"):
    """Runs a program in which some functions of Python's are replaced."""
    place.begin(program, start)
    (place.root / "patched").mkdir()
    (place.root / "patched" / "sitecustomize.py").write_text(_BEGIN + code)
    path = [str(place.root / "patched"), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    with place.start(program, env=environment) as process:
        return harness.end(process)


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_the_system_is_named_and_the_run_resumes(error, place):
    code, *says = ERRORS[error]
    outcome = run_with(place, code)
    harness.judge(Case(error, "train", code=1, says=says), outcome)
    expect_finished_by("train", place)


@pytest.mark.parametrize("seconds", [-_YEAR, _YEAR], ids=["forward", "back"])
def test_a_clock_that_is_set_changes_nothing(seconds, place):
    outcome = run_with(place, _CLOCK.format(seconds=seconds), "stopped")
    harness.judge(Case("clock", "train", code=0, says=["resumes after"]), outcome)
    harness.expect_same_bytes("train", place)
    columns = [x.split(",") for x in (place.out / "speed.csv").read_text().splitlines()]
    measured = [float(x) for row in columns[1:] for x in row[1:] if x[:1].isdigit()]
    assert measured and not any("-" in x for row in columns[1:] for x in row)


def test_a_run_that_is_stopped_for_a_while_goes_on(place):
    place.begin("train", "new")
    metrics = place.out / "metrics.csv"
    with place.start("train") as process:
        waiting.wait_until(metrics.exists, process)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        # No other run gets the folder meanwhile.
        case = Case("second", "train", says=[("in use", "has just finished")])
        harness.judge(case, place.run(case))
        process.send_signal(signal.SIGCONT)
        outcome = harness.end(process)
    assert outcome.code == 0, outcome
    harness.expect_same_bytes("train", place)


@pytest.mark.parametrize("gib", [1, 2, 3])
def test_too_little_memory_loses_nothing(gib, place):
    """Where it is missing depends on the libraries: a crash of theirs has no line."""
    place.begin("train", "stopped")

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (gib * _GIB, gib * _GIB))

    with place.start("train", preexec_fn=limit) as process:
        outcome = harness.end(process)
    assert outcome.code or gib > 1
    expect_finished_by("train", place)
