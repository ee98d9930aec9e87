"""Programs in processes of their own, for what cannot be tried in another."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from tests.experiments import program_server
from tests.faults import programs
from tests.faults.harness import Place

# How long a condition may take on a busy machine.
SECONDS = 600


@contextlib.contextmanager
def start(
    place: Place, program: str, *flags: str, **options
) -> Iterator[subprocess.Popen]:
    """Starts a program in the place, with its usual flags; kills it at the end."""
    known = programs.PROGRAMS[program]
    process = subprocess.Popen(
        program_server.command(known.module, [*known.flags, *flags]),
        **{
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "cwd": place.root,
            "env": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            **options,
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Waits for a condition, as long as the process is there."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end(process: subprocess.Popen) -> program_server.Outcome:
    """Waits for the end of a process."""
    output, errors = process.communicate(timeout=SECONDS)
    return program_server.Outcome(process.returncode, output or "", errors or "")
