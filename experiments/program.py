"""How every program here starts, and how it tells a user what went wrong."""

import functools
import itertools
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

from absl import app, flags, logging

from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError

EXIT_BAD_INPUT = 2
_EXIT_NO_WORKER = 1
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
) -> None:
    """Sets the TFF context, parses the flags and calls `main`.

    Bad input (a flag that does not parse, or an `InvalidInputError`) ends the program
    with one line and exit code 2; a `WorkerError`, when no worker is left to compute
    on, with one line and exit code 1. SIGTERM unwinds the program like Ctrl-C does, so
    that files are closed and the worker ends.

    Args:
        main: The program.
        argv: Its name and flags; by default those of the command line.
        takes_arguments: Whether `main` takes a list of what else is on the command
            line, such as everything after `--`. Else there must be nothing else.
        groups: How `--help` orders the flags: names of flags, by topic. Flags of the
            program that are in no group come first.

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
        except runtime.WorkerError as error:
            _fail(error, _EXIT_NO_WORKER)
        except BrokenPipeError:  # `| head` has seen enough.
            # Python would complain about it once more when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(_EXIT_BROKEN_PIPE)
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            sys.exit(_EXIT_INTERRUPTED)

    # TFF's own default context complains when a program ends without having used it.
    runtime.set_native_context()
    arguments = sys.argv if argv is None else argv
    if _HELP & set(itertools.takewhile(lambda a: a != "--", arguments[1:])):
        print(_help(groups or {}))
        sys.exit(0)
    app.run(
        guarded,
        argv,
        flags_parser=functools.partial(_parse_flags, takes_arguments=takes_arguments),
    )


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


def _help(groups: Mapping[str, Sequence[str]]) -> str:
    """The docstring of the program and its flags, by topic."""
    own = {flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])}
    grouped = {name for names in groups.values() for name in names}
    parts = [(sys.modules["__main__"].__doc__ or "").strip()]
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
    if len(rest) > 1 and not takes_arguments:
        _fail(f"unexpected argument {rest[1]!r}; flags look like --name=value")
    return rest


def _fail(error: object, code: int = EXIT_BAD_INPUT) -> None:
    line = " ".join(str(error).split())
    print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
