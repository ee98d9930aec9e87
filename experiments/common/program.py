"""How every program here starts, and how it tells a user what went wrong."""

import functools
import itertools
import math
import os
import select
import signal
import stat
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf
from absl import app, flags, logging

from experiments.common import cells
from tff_fedss import files, runtime
from tff_fedss.errors import InvalidInputError, RunStoppedError

EXIT_BAD_INPUT = 2
EXIT_STOPPED = 1
_LARGEST = 2**31 - 1  # TensorFlow counts in int32.
_HELP = frozenset({"--help", "-help", "-h", "--helpshort"})
_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_EXIT_TERMINATED = 143  # 128 + SIGTERM
_EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def run(
    main: Callable[..., None],
    argv: Sequence[str] | None = None,
    *,
    takes_arguments: bool = False,
    groups: Mapping[str, Sequence[str]] | None = None,
    paper: str | None = None,
) -> None:
    """Sets the TFF context, parses the flags and calls `main`.

    Bad input (a flag that does not parse, a float that is not finite, or an
    `InvalidInputError`) ends the program with one line and exit code 2. What stops a
    run whose input is good ends it with one line and exit code 1: a `RunStoppedError`,
    an `ExecutionError` (a computation failed, or no worker is left), an `OSError` (a
    full disk, a forbidden file) or memory that does not suffice. SIGTERM unwinds the
    program like Ctrl-C does, so that files are closed and workers end.

    Args:
        main: The program.
        argv: Its name and flags; by default those of the command line.
        takes_arguments: Whether `main` takes a list of what else is on the command
            line, such as everything after `--`. Else there must be nothing else.
        groups: How `--help` orders the flags: names of flags, by topic. Flags of the
            program that are in no group come first.
        paper: Whose cells the program trains: --cell names one of them, for its flags.

    Raises:
        SystemExit: Always, with the exit code.
    """

    def guarded(arguments: Sequence[str]) -> None:
        reader = _Reader()
        signal.signal(
            signal.SIGTERM,
            lambda *_: sys.exit(
                _EXIT_BROKEN_PIPE if reader.is_gone else _EXIT_TERMINATED
            ),
        )
        if not flags.FLAGS["verbosity"].present:
            # TFF and TensorFlow report every file that they write.
            logging.set_verbosity(logging.WARNING)
        try:
            main(*([list(arguments[1:])] if takes_arguments else []))
            sys.stdout.flush()  # Here, where an error can still be told.
        except InvalidInputError as error:
            _fail(error)
        except (RunStoppedError, runtime.ExecutionError) as error:
            _fail(error, EXIT_STOPPED)
        except BrokenPipeError:
            _end_with_broken_pipe()
        except OSError as error:
            # Writers of files name theirs; what is left is what is printed.
            where = os.fsdecode(error.filename or "standard output")
            _discard_output()
            _fail(f"{where}: {files.reason(error)}.", EXIT_STOPPED)
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            _fail(f"out of memory: {error or 'Python could not get any'}", EXIT_STOPPED)
        except tf.errors.OpError as error:  # A file that was damaged meanwhile, say.
            _fail(f"TensorFlow: {files.one_line(error.message)[:500]}", EXIT_STOPPED)
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            sys.exit(_EXIT_INTERRUPTED)

    # TFF's own default context complains when a program ends without having used it.
    runtime.set_in_process_context()
    arguments = sys.argv if argv is None else argv
    if paper is not None:
        try:
            arguments = _with_cell(arguments, paper)
        except InvalidInputError as error:
            _fail(error)
    if _HELP & set(itertools.takewhile(lambda a: a != "--", arguments[1:])):
        try:
            print(_help(groups or {}, paper), flush=True)
        except BrokenPipeError:
            _end_with_broken_pipe()
        sys.exit(0)
    app.run(
        guarded,
        arguments,
        flags_parser=functools.partial(_parse_flags, takes_arguments=takes_arguments),
    )


def _with_cell(arguments: Sequence[str], paper: str) -> list[str]:
    """Puts the flags of a cell in the place of --cell; flags after it win.

    Raises:
        InvalidInputError: If the paper has no such cell.
    """
    expanded: list[str] = []
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and equals and name == "cell":
            expanded += cells.as_arguments(cells.find(paper, value).settings)
        else:
            expanded.append(argument)
    return expanded


def as_texts(own: Iterable[flags.FlagHolder | flags.Flag]) -> dict[str, str]:
    """Writes flags as a flagfile takes them.

    Args:
        own: The flags; those without a value are left out.

    Returns:
        Name to value.
    """
    return {flag.name: _as_text(flag) for flag in own if flag.value is not None}


def _as_text(flag: flags.FlagHolder | flags.Flag) -> str:
    if isinstance(flag.value, bool):  # Serialized as --flag or --noflag.
        return str(flag.value).lower()
    return flags.FLAGS[flag.name].serialize().partition("=")[2]


def _help(groups: Mapping[str, Sequence[str]], paper: str | None) -> str:
    """The docstring of the program and its flags, by topic."""
    own = {flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])}
    grouped = {name for names in groups.values() for name in names}
    parts = [(sys.modules["__main__"].__doc__ or "").strip()]
    if paper is not None:
        parts.append(
            "A published run:\n  --cell=TABLE/SCALE/CELL\n      The flags of a cell of "
            f"experiments/{paper}/cells.py, such as\n      "
            f"--cell={cells.example(paper)}. Flags after it win."
        )
    for topic, names in {"Flags": sorted(own - grouped), **groups}.items():
        texts = [_help_of(flags.FLAGS[name]) for name in names if name in own]
        if texts:
            parts.append("\n".join([f"{topic}:", *texts]))
    return "\n\n".join(parts)


def _help_of(flag: flags.Flag) -> str:
    choices = getattr(flag.parser, "enum_values", None)
    value = "|".join(choices) if choices else flag.flag_type().split()[-1].upper()
    names = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}={value}"
    text = flag.help.removeprefix(f"<{'|'.join(choices or [])}>: ")
    if flag.default is not None and not flag.boolean:
        text += f" Default: {flag.default_as_str.strip(chr(39))}."
    wrapped = textwrap.wrap(text, 80, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join([*textwrap.wrap(names, 86, initial_indent="  "), *wrapped])


def _parse_flags(argv: Sequence[str], takes_arguments: bool) -> Sequence[str]:
    try:
        # Deprecated by name only; it is what `app.run` itself uses.
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        _fail(error)
    except UnicodeDecodeError as error:
        _fail(f"--flagfile: the file is not UTF-8: {error}")
    if len(rest) > 1 and not takes_arguments:
        _fail(f"unexpected argument {rest[1]!r}; flags look like --name=value")
    for flag in _own_flags():
        # The bounds of absl let NaN pass, and infinity where there is no upper one.
        if isinstance(flag.value, float) and not math.isfinite(flag.value):
            _fail(f"flag --{flag.name}={flag.value}: expected a finite number")
        # Seeds may have more: some of them go to NumPy.
        is_integer = isinstance(flag.value, int)
        if is_integer and abs(flag.value) > _LARGEST and flag.name != "seed":
            _fail(f"flag --{flag.name}={flag.value}: expected at most {_LARGEST}")
    return rest


def _own_flags() -> list[flags.Flag]:
    """Returns the flags that the program's --help shows."""
    by_module = flags.FLAGS.flags_by_module_dict()
    return [
        flag
        for module, own in by_module.items()
        if not module.startswith("absl.")
        for flag in own
    ]


class _Reader:
    """Watches whether somebody still reads what the program prints.

    A training prints little: without this, one behind `| head` would go on for hours
    after its reader has gone.

    Attributes:
        is_gone: Nobody does. The program is then told to end by SIGTERM.
    """

    def __init__(self):
        self.is_gone = False
        try:
            output = sys.stdout.fileno()
            is_pipe = stat.S_ISFIFO(os.fstat(output).st_mode)
        except (OSError, ValueError, AttributeError):  # Not a file of the system's.
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


def _end_with_broken_pipe() -> None:
    """Ends quietly: the reader of our output, such as `head`, has seen enough."""
    _discard_output()
    sys.exit(_EXIT_BROKEN_PIPE)


def _discard_output() -> None:
    """Lets go of output that cannot be written.

    Python would complain about it once more when it closes stdout.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: object, code: int = EXIT_BAD_INPUT) -> None:
    line = " ".join(str(error).split())
    print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
