"""Two starts at once, readers who go away, no cluster: processes of their own."""

import os
import signal
import subprocess
import sys

import portpicker
import pytest

from tests.experiments import program_server
from tests.faults import harness, processes, programs
from tests.faults.harness import Case
from tests.faults.programs import TRAINING

_BROKEN_PIPE = 141  # 128 + SIGPIPE, as shells count


@pytest.mark.parametrize("program", TRAINING)
def test_of_two_starts_at_once_one_is_refused(program, place):
    place.begin(program, "new")
    with (
        processes.start(place, program, "--seed=0") as first,
        processes.start(place, program, "--seed=1") as second,
    ):
        ends = [processes.end(first), processes.end(second)]
    assert sorted(e.code for e in ends) == [0, 2], ends
    seed = [e.code for e in ends].index(0)
    refused = ends[1 - seed]
    case = Case(
        "refused",
        program,
        # The other may have finished before this one has looked.
        says=[("in use by another process", f"--seed={seed} there")],
    )
    harness.judge(case, refused)
    assert f"--seed={seed}\n" in (place.out / "flags.txt").read_text()
    # The folder is whole, and of the one that says so.
    again = place.run(Case("again", program, [f"--seed={seed}"]))
    assert again.code == 0 and "Done before" in again.output
    if seed == 0:
        harness.expect_same_bytes(program, place)


@pytest.mark.parametrize("program", TRAINING)
def test_of_two_equal_starts_one_is_refused_or_finds_it_done(program, place):
    place.begin(program, "new")
    with (
        processes.start(place, program) as first,
        processes.start(place, program) as second,
    ):
        ends = [processes.end(first), processes.end(second)]
    assert min(e.code for e in ends) == 0, ends
    for outcome in ends:
        if outcome.code:
            says = [("in use by another process", "has just finished")]
            harness.judge(Case("refused", program, says=says), outcome)
        assert "Traceback" not in outcome.output + outcome.errors
    harness.expect_same_bytes(program, place)


def _with_reader(place, program, flags, take, usual=()):
    """Runs a program whose output is read for some lines only."""
    module = programs.PROGRAMS[program].module
    command = program_server.command(module, [*usual, *flags])
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    lines = [process.stdout.readline() for _ in range(take)]
    process.stdout.close()
    errors = process.stderr.read()
    return process.wait(processes.SECONDS), lines, errors


# The slowest imports are the same for all: a few stand for all of them.
@pytest.mark.parametrize("program", ["train", "moco", "run_table", "prepare_landmarks"])
def test_help_into_head(program, place):
    code, (line,), errors = _with_reader(place, program, ["--help"], 1)
    assert line and errors == ""
    assert code in (0, _BROKEN_PIPE)  # It may have been written as a whole before.


@pytest.mark.parametrize("program", TRAINING)
def test_a_run_into_head_stops_or_finishes(program, place):
    """Nobody reads what comes of it: it must not go on for hours without a word."""
    place.begin(program, "new")
    usual = programs.PROGRAMS[program].flags
    code, (line,), errors = _with_reader(place, program, [], 1, usual)
    assert line, errors
    assert code == _BROKEN_PIPE, errors
    assert "Traceback" not in errors and "BrokenPipe" not in errors
    # What was done is kept, and the same command finishes it.
    again = place.run(Case("again", program))
    assert again.code == 0, again
    harness.expect_same_bytes(program, place)


@pytest.mark.parametrize("program", TRAINING)
def test_output_to_a_full_device_is_named(program, place):
    place.begin(program, "new")
    with (
        open("/dev/full", "w") as full,
        processes.start(place, program, stdout=full) as process,
    ):
        outcome = processes.end(process)
    assert outcome.code == 1, outcome
    assert "Traceback" not in outcome.errors, outcome.errors
    assert "error: " in outcome.errors and "No space left" in outcome.errors
    again = place.run(Case("again", program))
    assert again.code == 0, again
    harness.expect_same_bytes(program, place)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("program", TRAINING)
def test_a_run_that_gets_a_signal_resumes_later(program, number, code, place):
    place.begin(program, "new")
    metrics = place.out / "metrics.csv"
    with processes.start(
        place,
        program,
        # A shell starts what runs in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        processes.wait_until(
            lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, process
        )
        process.send_signal(number)
        outcome = processes.end(process)
    # It may have been at its end.
    assert outcome.code in (0, code), outcome
    assert "Traceback" not in outcome.errors, outcome.errors
    again = place.run(Case("again", program))
    assert again.code == 0, again
    harness.expect_same_bytes(program, place)


def test_no_cluster_at_an_address_is_named(place):
    address = f"ray://localhost:{portpicker.pick_unused_port()}"
    with processes.start(place, "train", f"--cluster={address}") as process:
        outcome = processes.end(process)
    case = Case("none", "train", says=[f"--cluster={address}", "refused"])
    harness.judge(case, outcome)


def test_demo_writes_where_it_can(place):
    """The demo's own folder is below where it is started."""
    (place.root / "results").write_text("not a folder")
    with processes.start(place, "demo", "--rounds=1") as process:
        outcome = processes.end(process)
    harness.judge(Case("demo", "demo", code=harness.EITHER, says=["results"]), outcome)
