"""Command line: flags, requests for help, and errors in one line.

This module and its imports are quick to import; see `answers`.
"""

import itertools
import os
import re
import sys
from collections.abc import Iterable, Sequence

from absl import flags

EXIT_BAD_INPUT = 2
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, the shells' convention
_HELP = frozenset({"--help", "-help", "-h", "--helpshort"})


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Returns whether the arguments, without the program's name, ask for --help."""
    return bool(_HELP & set(itertools.takewhile(lambda a: a != "--", arguments)))


def parse(
    flag_values: flags.FlagValues, arguments: Sequence[str], takes_arguments: bool
) -> Sequence[str]:
    """Parses a program's name and flags; returns the name and other arguments.

    Raises:
        SystemExit: If a flag is wrong, or an argument unexpected, after a line about
            it.
    """
    try:
        # Deprecated by name only; `app.run` itself uses it.
        rest = flag_values(arguments)
    except flags.Error as error:
        fail(error)
    except UnicodeDecodeError as error:
        fail(f"--flagfile: the file is not UTF-8: {error}")
    if len(rest) > 1 and not takes_arguments:
        fail(f"unexpected argument {rest[1]!r}; flags look like --name=value")
    return rest


def with_flags(message: str, flag_names: Iterable[str]) -> str:
    """Writes --name for a message's arguments in backticks (see `InvalidInputError`).

    The programs' flags have the names of the library's arguments.
    """
    names = "|".join(flag_names)
    message = re.sub(rf"(?<![\w\-/.=:'\"])({names})=", r"--\1=", message)
    return re.sub(rf"`({names})`", r"--\1", message)


def fail(error: object, code: int = EXIT_BAD_INPUT) -> None:
    """Ends the program with a line about an error.

    Raises:
        SystemExit: Always, with the exit code.
    """
    line = " ".join(str(error).split())
    print(f"error: {line}", file=sys.stderr)
    sys.exit(code)


def print_help(text: str) -> None:
    """Prints what --help asks for, and ends the program.

    Raises:
        SystemExit: Always.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        end_with_broken_pipe()
    sys.exit(0)


def end_with_broken_pipe() -> None:
    """Ends quietly: the reader of our output, such as `head`, has closed it."""
    discard_output()
    sys.exit(EXIT_BROKEN_PIPE)


def discard_output() -> None:
    """Discards output that cannot be written.

    Python would report the error again when it closes stdout.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
