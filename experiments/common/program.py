"""The start of every program, and its reports of errors."""

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import app, flags, logging

from experiments.common import cells, config, option_words, runtime_config
from experiments.common.config import EXIT_STOPPED, fail, with_flags
from tff_fedss import files, runtime
from tff_fedss.errors import InvalidInputError, RunStoppedError
from tff_fedss.runtime.errors import describe

_CELL = "cell"
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
        paper: The paper whose cells the program trains, see `flags_of`.

    Raises:
        SystemExit: Always, with the exit code.
    """
    own = flags_of(defaults, paper)

    def guarded(arguments: Sequence[str]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_EXIT_TERMINATED))
        if not flags.FLAGS["verbosity"].present:
            # TFF and TensorFlow report every file that they write.
            logging.set_verbosity(logging.WARNING)
        try:
            if paper is not None:
                _set_cell(paper)
            values = config.read(own, flags.FLAGS)
            values.pop(_CELL, None)
            asked = dataclasses.replace(defaults, **values)
            runtime_config.configure_gpus(asked)
            main(asked, *([list(arguments[1:])] if takes_arguments else []))
            sys.stdout.flush()  # Flushed here, where an error can still be reported.
        except InvalidInputError as error:
            fail(with_flags(str(error), own))
        except (RunStoppedError, runtime.ExecutionError) as error:
            fail(with_flags(str(error), own), EXIT_STOPPED)
        except BrokenPipeError:
            config.end_with_broken_pipe()
        except OSError as error:
            # Writers of files name their file; this one is standard output.
            where = os.fsdecode(error.filename or "standard output")
            config.discard_output()
            fail(f"{where}: {files.error_text(error)}.", EXIT_STOPPED)
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            fail(f"out of memory: {error or 'Python could not get any'}", EXIT_STOPPED)
        except tf.errors.OpError as error:  # Such as a file that was damaged meanwhile.
            fail(f"TensorFlow: {describe(error)}", EXIT_STOPPED)
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            sys.exit(_EXIT_INTERRUPTED)

    # TFF's default context prints an error if a program ends without using it.
    runtime.set_in_process_context()
    arguments = sys.argv if argv is None else argv
    if config.asks_for_help(arguments[1:]):
        config.print_help(config.help_of(sys.modules["__main__"].__doc__, own))
    # Not at the import, since programs have flags of the same names.
    config.define(own, flags.FLAGS)
    try:
        app.run(
            guarded,
            arguments,
            flags_parser=lambda given: config.parse_arguments(given, takes_arguments),
        )
    finally:
        for name in own:
            delattr(flags.FLAGS, name)


def flags_of(defaults: config.Config, paper: str | None) -> dict[str, config.Flag]:
    """Returns the flags of a program, with --cell if it trains a paper's cells."""
    own = defaults.flags()
    if paper is not None:
        own[_CELL] = config.Flag(
            help=f"TABLE/SCALE/CELL of experiments/{paper}/cells.py: its flags are the "
            "defaults of this run.",
            group="A published run",
            name=_CELL,
        )
    return own


def _set_cell(paper: str) -> None:
    """Sets the flags of the cell of --cell, except those that the user has given.

    Raises:
        InvalidInputError: If the paper has no such cell.
    """
    name = flags.FLAGS[_CELL].value
    if name is None:
        return
    settings = option_words.as_texts(cells.find(paper, name).settings)
    # To reproduce published numbers. CPUs do so anyway.
    if tf.config.list_physical_devices("GPU"):
        settings["deterministic"] = "true"
    for flag, text in settings.items():
        if not flags.FLAGS[flag].present:
            flags.FLAGS[flag].parse(text)
