"""A system that fails, or is used by others, too.

Disks, folders, clocks, memory, signals, two starts at once, readers who go away.
"""

import os
import resource
import shutil
import signal

import pytest

from tests import waiting
from tests.faults import harness
from tests.faults.harness import EITHER, Case, of_each
from tests.faults.programs import TRAINING

_SPACE = ("No space left", "disk is full", "free some space", "free space")
_LIMIT = ("File too large", "ulimit")
_BROKEN_PIPE = 141  # 128 + SIGPIPE, as shells count


# --- Disks and folders ------------------------------------------------------------


def small_disk(size):
    """The results folder is a disk of its own."""
    return lambda place: place.mount(place.out, f"size={size},mode=0777")


def read_only_after_a_stop(place):
    """The disk of a stopped run is read-only now."""
    keep = place.out.rename(place.root / "keep")
    place.mount(place.out, "size=100m,mode=0777")
    shutil.copytree(keep, place.out, dirs_exist_ok=True)
    shutil.rmtree(keep)
    place.remount(place.out, "ro")


def make_theirs(place):
    """A folder of somebody else's."""
    (place.root / "theirs").mkdir()
    (place.root / "theirs").chmod(0o555)


def forbid_run(place):
    """The stopped run is somebody else's."""
    for path in [place.out, *place.out.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


FULL = of_each(
    # Nothing fits; the flags do; a few rounds do; all but the end.
    *(
        Case(
            f"a_disk_of_{size}",
            arrange=small_disk(size),
            cure=lambda place: place.remount(place.out, "size=100m"),
            code=1,
            says=["run", _SPACE],
            writes=None,
        )
        for size in ("4k", "12k", "24k", "40k", "64k")
    ),
    *(
        Case(
            f"files_of_{size}_at_most",
            # What Numba compiles is in its cache by then.
            prepare=lambda place: place.templates.get(place.program, "finished"),
            limits={"FSIZE": size},
            cure=True,
            code=1,
            says=["run", _LIMIT],
            writes=None,
        )
        for size in (0, 100, 600, 2000, 10_000)
    ),
    *(
        Case(
            f"files_of_{size}_at_most_from_a_stop_on",
            start="stopped",
            limits={"FSIZE": size},
            cure=True,
            code=1,
            says=["run", _LIMIT],
            writes=None,
            # What was saved before is still there.
            keeps=["run/flags.txt", "run/data.json"],
        )
        for size in (0, 300, 5000)
    ),
)

FORBIDDEN = of_each(
    Case(
        "a_read_only_disk",
        flags=["--results_dir=disk/run"],
        arrange=lambda place: place.mount(place.root / "disk", "ro"),
        code=EITHER,
        says=["disk/run", "ead-only file system"],
    ),
    Case(
        "a_disk_that_became_read_only",
        start="stopped",
        arrange=read_only_after_a_stop,
        cure=lambda place: place.remount(place.out, "rw"),
        code=EITHER,
        says=["run", "ead-only file system"],
    ),
    Case(
        "somebody_else_s_folder",
        flags=["--results_dir=theirs/run"],
        arrange=make_theirs,
        code=EITHER,
        says=["theirs/run", "ermission denied"],
        as_nobody=True,
    ),
    Case(
        "somebody_else_s_run",
        start="stopped",
        arrange=forbid_run,
        cure=True,
        code=EITHER,
        says=["run", "ermission denied"],
        as_nobody=True,
    ),
    *(
        Case(label, flags=[f"--results_dir={path}"], code=EITHER, says=[path])
        for label, path in (
            ("no_folder_can_be_here", "/proc/run"),
            ("a_device_for_a_folder", "/dev/null/run"),
        )
    ),
)


_RENAMED = ("round_3.npz", "flags.txt", "fedss.npz", "done.json")
# The library's functions fail with errors of the system.
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
FAILING = [
    Case(
        f"{error}_of_{where}",
        "train",
        code=1,
        says=[where, text],
        writes=None,
        cure=True,
        patch=_BEGIN + code.format(end=where, error=error),
    )
    for error, text, code, *places in (
        (
            "EIO",
            "Input/output error",
            "os.fsync = lambda _: fail(errno.EIO)",
            "checkpoints",
        ),
        ("EIO", "Input/output error", _APPEND, "metrics.csv"),
        (
            "ENOLCK",
            "No locks available",
            "fcntl.flock = lambda *_: fail(errno.ENOLCK)",
            "run",
        ),
        ("ESTALE", "Stale file handle", _REPLACE, *_RENAMED),
        ("EXDEV", "Invalid cross-device link", _REPLACE, *_RENAMED),
    )
    for where in places
]


@harness.params([*FULL, *FORBIDDEN, *FAILING])
def test_what_cannot_be_written_is_named_and_the_run_resumes(case, place):
    harness.try_case(case, place)


# --- The clock, memory ------------------------------------------------------------

_CLOCK = """
import time
now, now_ns = time.time, time.time_ns
time.time = lambda: now() - {seconds}
time.time_ns = lambda: now_ns() - {seconds} * 10**9
"""
_YEAR = 365 * 24 * 3600


@pytest.mark.parametrize("seconds", [-_YEAR, _YEAR], ids=["forward", "back"])
def test_a_clock_that_is_set_changes_nothing(seconds, place):
    patch = _CLOCK.format(seconds=seconds)
    says = ["resumes after"]
    case = Case("", "train", start="stopped", code=0, says=says, patch=patch)
    harness.try_case(case, place)
    columns = [x.split(",") for x in (place.out / "speed.csv").read_text().splitlines()]
    measured = [float(x) for row in columns[1:] for x in row[1:] if x[:1].isdigit()]
    assert measured and not any("-" in x for row in columns[1:] for x in row)


@pytest.mark.parametrize("gib", [1, 2, 3])
def test_too_little_memory_loses_nothing(gib, place):
    """Where it is missing depends on the libraries: a crash of theirs has no line."""
    place.begin("train", "stopped")

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (gib * 2**30, gib * 2**30))

    with place.start("train", preexec_fn=limit) as process:
        outcome = harness.end(process)
    assert outcome.code or gib > 1
    expect_finished_by("train", place)


# --- Other processes --------------------------------------------------------------


def expect_finished_by(program, place):
    """The same command finishes the run, with the bytes of an uninterrupted one."""
    again = place.run(Case("again", program))
    assert again.code == 0, again
    harness.expect_same_bytes(program, place)


@pytest.mark.parametrize("other_seed", [1, 0], ids=["other_flags", "equal_flags"])
@pytest.mark.parametrize("program", TRAINING)
def test_of_two_starts_at_once_one_is_refused(program, other_seed, place):
    """Or finds the run done."""
    place.begin(program, "new")
    seeds = [0, other_seed]
    with (
        place.start(program, f"--seed={seeds[0]}") as first,
        place.start(program, f"--seed={seeds[1]}") as second,
    ):
        ends = [harness.end(first), harness.end(second)]
    codes = [outcome.code for outcome in ends]
    assert 0 in codes, ends
    seed = seeds[codes.index(0)]
    says = [("in use by another process", "has just finished", f"--seed={seed} there")]
    for outcome in ends:
        if outcome.code:
            harness.judge(Case("refused", program, says=says), outcome)
        assert "Traceback" not in outcome.output + outcome.errors
    assert any(codes) or not other_seed
    # The folder is whole, and of the one that says so.
    assert f"--seed={seed}\n" in (place.out / "flags.txt").read_text()
    again = place.run(Case("again", program, [f"--seed={seed}"]))
    assert again.code == 0 and "Already done" in again.output
    if seed == 0:
        harness.expect_same_bytes(program, place)


def _read_a_line(process):
    """Reads the first line of a program's output, and goes away."""
    line = process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    # What else is there to be read at its end.
    process.stdout = None
    return process.wait(waiting.LIMIT), line, errors


@pytest.mark.parametrize("program", TRAINING)
def test_a_run_into_head_finishes(program, place):
    """Its last lines have no reader; its files also have them."""
    place.begin(program, "new")
    with place.start(program) as process:
        code, line, errors = _read_a_line(process)
    assert line and code == _BROKEN_PIPE, errors
    assert "Traceback" not in errors and "BrokenPipe" not in errors
    expect_finished_by(program, place)


@pytest.mark.parametrize("program", TRAINING)
def test_output_to_a_full_device_is_named(program, place):
    place.begin(program, "new")
    with open("/dev/full", "w") as full, place.start(program, stdout=full) as process:
        outcome = harness.end(process)
    assert outcome.code == 1, outcome
    assert "Traceback" not in outcome.errors, outcome.errors
    assert "error: " in outcome.errors and "No space left" in outcome.errors
    expect_finished_by(program, place)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("program", TRAINING)
def test_a_run_that_gets_a_signal_resumes_later(program, number, code, place):
    place.begin(program, "new")
    metrics = place.out / "metrics.csv"
    with place.start(
        program,
        preexec_fn=waiting.take_ctrl_c,
    ) as process:
        waiting.wait_until(
            lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, process
        )
        process.send_signal(number)
        outcome = harness.end(process)
    # It may have been at its end.
    assert outcome.code in (0, code), outcome
    assert "Traceback" not in outcome.errors, outcome.errors
    expect_finished_by(program, place)


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
