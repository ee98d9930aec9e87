"""The start of every program, and its reports of errors."""

import dataclasses
import os
import re
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import app, flags, logging

from experiments.common import cells, command_line, config, runtime_config
from experiments.common.command_line import fail, with_flags
from tff_fedss import files, runtime
from tff_fedss.errors import InvalidInputError, RunStoppedError

EXIT_STOPPED = 1
_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_EXIT_TERMINATED = 143  # 128 + SIGTERM


def run(
    main: Callable[..., None],
    defaults: config.Config,
    argv: Sequence[str] | None = None,
    *,
    takes_arguments: bool = False,
    paper: str | None = None,
) -> None:
    """Sets the TFF context, parses the flags, sets up GPUs and calls `main`.

    Bad input (a flag that does not parse, or an `InvalidInputError`) ends the program
    with one line and exit code 2. Other errors end it with one line and exit code 1: a
    `RunStoppedError`, an `ExecutionError` (a computation failed, or its workers), an
    `OSError` (a full disk, a forbidden file) or insufficient memory. SIGTERM unwinds
    the program like Ctrl-C, so that files are closed and workers end.

    Args:
        main: The program. It takes a `config.Config`.
        defaults: The flags of the program with their defaults. They are defined while
            the program runs.
        argv: Its name and flags; by default those of the command line.
        takes_arguments: Whether `main` also takes a list of the other arguments of the
            command line, such as all after `--`. If not, there must be none.
        paper: The paper whose cells the program trains: --cell=CELL sets a cell's
            flags.

    Raises:
        SystemExit: Always, with the exit code.
    """
    own = defaults.flags()

    def guarded(arguments: Sequence[str]) -> None:
        reader = _Reader()
        signal.signal(
            signal.SIGTERM,
            lambda *_: sys.exit(
                command_line.EXIT_BROKEN_PIPE if reader.is_gone else _EXIT_TERMINATED
            ),
        )
        if not flags.FLAGS["verbosity"].present:
            # TFF and TensorFlow report every file that they write.
            logging.set_verbosity(logging.WARNING)
        try:
            asked = dataclasses.replace(defaults, **config.read(own, flags.FLAGS))
            runtime_config.configure_gpus(asked)
            main(asked, *([list(arguments[1:])] if takes_arguments else []))
            sys.stdout.flush()  # Flushed here, where an error can still be reported.
        except InvalidInputError as error:
            fail(with_flags(str(error), own))
        except (RunStoppedError, runtime.ExecutionError) as error:
            fail(with_flags(str(error), own), EXIT_STOPPED)
        except BrokenPipeError:
            command_line.end_with_broken_pipe()
        except OSError as error:
            # Writers of files name their file; this one is standard output.
            where = os.fsdecode(error.filename or "standard output")
            command_line.discard_output()
            fail(f"{where}: {files.error_text(error)}.", EXIT_STOPPED)
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            fail(f"out of memory: {error or 'Python could not get any'}", EXIT_STOPPED)
        except tf.errors.OpError as error:  # Such as a file that was damaged meanwhile.
            fail(f"TensorFlow: {files.error_text(error.message)[:500]}", EXIT_STOPPED)
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            sys.exit(_EXIT_INTERRUPTED)

    # TFF's default context prints an error if a program ends without using it.
    runtime.set_in_process_context()
    arguments = sys.argv if argv is None else argv
    if paper is not None:
        try:
            arguments = _with_cell(arguments, paper)
        except InvalidInputError as error:
            fail(error)
    if command_line.asks_for_help(arguments[1:]):
        docstring = sys.modules["__main__"].__doc__
        command_line.print_help(help_of(docstring, defaults, paper))
    # Not at the import, since programs have flags of the same names.
    config.define(own, flags.FLAGS)
    try:
        app.run(
            guarded,
            arguments,
            flags_parser=lambda given: command_line.parse(
                flags.FLAGS, given, takes_arguments
            ),
        )
    finally:
        for name in own:
            delattr(flags.FLAGS, name)


def _with_cell(arguments: Sequence[str], paper: str) -> list[str]:
    """Inserts the flags of the cell of --cell before all others, which override them.

    Raises:
        InvalidInputError: If the paper has no such cell.
    """
    named = [x for x in arguments[1:] if re.match("--?cell=", x)]
    if not named:
        return list(arguments)
    cell = cells.find(paper, named[-1].partition("=")[2])
    own = cells.as_arguments(cell.settings)
    # To reproduce published numbers. CPUs do so anyway.
    if tf.config.list_physical_devices("GPU"):
        own.append("--deterministic")
    return [arguments[0], *own, *(x for x in arguments[1:] if x not in named)]


def help_of(docstring: str | None, defaults: config.Config, paper: str | None) -> str:
    """Returns the docstring of a program and its flags, by topic."""
    parts = [(docstring or "").strip()]
    if paper is not None:
        parts.append(
            "A published run:\n  --cell=TABLE/SCALE/CELL\n      The flags of a cell "
            f"of experiments/{paper}/cells.py, such as\n      "
            f"--cell={cells.example(paper)}. Flags after it override them."
        )
    return "\n\n".join([*parts, *config.help_of(defaults)])


class _Reader:
    """Watches whether the program's output is still read.

    A training prints little: without this, one before `| head` would run for hours
    after its reader has ended.

    Attributes:
        is_gone: Whether the reader has ended. The program then gets SIGTERM.
    """

    def __init__(self):
        self.is_gone = False
        try:
            output = sys.stdout.fileno()
            is_pipe = stat.S_ISFIFO(os.fstat(output).st_mode)
        except (OSError, ValueError, AttributeError):  # Not a system file.
            return
        if is_pipe:
            threading.Thread(target=self._watch, args=(output,), daemon=True).start()

    def _watch(self, output: int) -> None:
        poll = select.poll()
        poll.register(output, 0)  # Errors are always reported.
        while not any(event & select.POLLERR for _, event in poll.poll()):
            pass
        self.is_gone = True
        os.kill(os.getpid(), signal.SIGTERM)
