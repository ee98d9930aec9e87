"""How every program here starts, and how it tells a user what went wrong."""

import functools
import os
import signal
import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging

from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError

EXIT_BAD_INPUT = 2
_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_EXIT_TERMINATED = 143  # 128 + SIGTERM
_EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def run(
    main: Callable[..., None],
    argv: Sequence[str] | None = None,
    *,
    takes_arguments: bool = False,
) -> None:
    """Sets the TFF context, parses the flags and calls `main`.

    Bad input (a flag that does not parse, or an `InvalidInputError`) ends the program
    with one line and exit code 2. SIGTERM unwinds the program like Ctrl-C does, so that
    files are closed and the worker ends.

    Args:
        main: The program.
        argv: Its name and flags; by default those of the command line.
        takes_arguments: Whether `main` takes a list of what else is on the command
            line, such as everything after `--`. Else there must be nothing else.

    Raises:
        SystemExit: Always, with the exit code.
    """

    def guarded(arguments: Sequence[str]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_EXIT_TERMINATED))
        if not flags.FLAGS["verbosity"].present:
            # TFF and TensorFlow report every file that they write.
            logging.set_verbosity(logging.WARNING)
        try:
            main(*([list(arguments[1:])] if takes_arguments else []))
        except InvalidInputError as error:
            _fail(error)
        except BrokenPipeError:  # `| head` has seen enough.
            # Python would complain about it once more when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(_EXIT_BROKEN_PIPE)
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            sys.exit(_EXIT_INTERRUPTED)

    # TFF's own default context complains when a program ends without having used it.
    runtime.set_native_context()
    app.run(
        guarded,
        argv,
        flags_parser=functools.partial(_parse_flags, takes_arguments=takes_arguments),
    )


def _parse_flags(argv: Sequence[str], takes_arguments: bool) -> Sequence[str]:
    try:
        # Deprecated by name only; it is what `app.run` itself uses.
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        _fail(error)
    if len(rest) > 1 and not takes_arguments:
        _fail(f"unexpected argument {rest[1]!r}; flags look like --name=value")
    return rest


def _fail(error: object) -> None:
    line = " ".join(str(error).split())
    print(f"error: {line}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT)
