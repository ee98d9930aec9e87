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
import sys

from absl.testing import flagsaver

from experiments import program


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
