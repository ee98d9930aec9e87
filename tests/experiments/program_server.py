"""Runs one program of experiments/ again and again, for tests.

    python tests/experiments/program_server.py experiments.NAME

Programs whose flags have the same names cannot be in one process, and a process for
every run would be slow to start. Each line of standard input is a JSON list of flags;
each line of standard output is [exit code, stdout, stderr] of the run.
"""

import contextlib
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator

from absl.testing import flagsaver

from experiments import program


@contextlib.contextmanager
def serve(module: str) -> Iterator[Callable[..., list]]:
    """Starts a server; yields a function: flags -> [exit code, stdout, stderr]."""
    with subprocess.Popen(
        [sys.executable, __file__, module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def run(*flags: str) -> list:
            print(json.dumps(flags), file=server.stdin, flush=True)
            return json.loads(server.stdout.readline())

        yield run
        server.stdin.close()


def help_of(module: str) -> str:
    """Returns what `--help` of a program prints."""
    outcome = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def main() -> None:
    module = importlib.import_module(sys.argv[1])
    answers = sys.stdout
    for line in sys.stdin:
        flags = json.loads(line)
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with (
            flagsaver.flagsaver(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                program.run(module.main, [sys.argv[1], *flags])
            except SystemExit as end:
                code = end.code or 0
        print(
            json.dumps([code, out.getvalue(), err.getvalue()]), file=answers, flush=True
        )


if __name__ == "__main__":
    main()
