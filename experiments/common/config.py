"""The flags of a program: a frozen dataclass, with a field for each.

    @dataclasses.dataclass(frozen=True)
    class Config(config.Config):
        rounds: int = config.flag(40, "How many rounds.", low=1)
        data_dir: str | None = config.flag(None, "Where the data are.")

    def main(config: Config) -> None: ...

    program.run(main, Config())

The annotation is the flag's type: int, float, str, bool or a list of one of these,
such as tuple[int, ...], with `| None` if it may be unset. The fields are in the order
of --help, within a topic, and of flags.txt: a class's own before inherited ones. This
module and its imports are quick to import; see `answers`.
"""

import contextlib
import csv
import dataclasses
import itertools
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from absl import flags

from experiments.common import option_words
from tff_fedss import files
from tff_fedss.errors import InvalidInputError

EXIT_STOPPED = 1
EXIT_BAD_INPUT = 2
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, the shells' convention
_HELP = frozenset({"--help", "-help", "-h", "--helpshort"})

_LARGEST = 2**31 - 1  # The largest int32, TensorFlow's type of counts.
_KEY = "flag"
# Types of flags in --help.
_PLACEHOLDERS = {int: "INT", float: "FLOAT", str: "STRING"}
# A comma between words, not between options: `a,b:x=1,y=2` has two words.
_BETWEEN_WORDS = re.compile(r",(?![^,:]*=)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag(option_words.Option):
    """A declared flag, see `flag`; of a list, kind and bounds are the elements'.

    Attributes:
        name: The name of its field.
        default: Its value in a `Config`: the default, when flags are defined.
        high: The maximum; by default, of whole numbers, the largest int32.
        is_list: Whether it has several values.
        group: Its topic in --help, also of the following flags of the class up to one
            with another topic. Flags without a topic come first, by name.
        words: The allowed words, with their options, see `option_words`.
        decides: Whether it decides a run's results, so that flags.txt has it and a
            results folder belongs to its value.
        off: The value that means unset (None).
        needed: Set if the flag is required: the message after `--name=`, such as
            "DIR is needed.".
    """

    name: str = ""
    is_list: bool = False
    group: str | None = None
    words: Mapping[str, option_words.Word] | None = None
    decides: bool = True
    off: str | bool | None = None
    needed: str | None = None

    def parse(self, text: str) -> Any:
        """Returns the value of a text.

        Raises:
            ValueError: If it has none; the message has the allowed values.
        """
        if self.is_list and self.words:
            return tuple(_BETWEEN_WORDS.split(text)) if text else ()
        texts = [text]
        try:
            if self.is_list:
                texts = [item.strip() for row in csv.reader([text]) for item in row]
            values = tuple(map(super().parse, texts))
            if not values and self.default and (self.choices or self.kind is not str):
                raise ValueError
        except (ValueError, csv.Error):
            several = ", or several with commas" if self.is_list else ""
            raise ValueError(f"expected {self.expected}{several}") from None
        return values if self.is_list else values[0]


def flag(default: Any, help: str, **options: Any) -> Any:
    """Declares a flag with its default, as the field of a dataclass; see `Flag`."""
    declared = Flag(help=help, **options)
    return dataclasses.field(default=default, metadata={_KEY: declared})


@dataclasses.dataclass(frozen=True)
class Config:
    """The base class of programs' flags."""

    def flags(self) -> dict[str, Flag]:
        """Returns the flags by name: a class's own before inherited ones."""
        fields = {field.name: field for field in dataclasses.fields(self)}
        hints = typing.get_type_hints(type(self))
        result = {}
        for owner in type(self).__mro__:
            group = None
            for name in owner.__dict__.get("__annotations__", {}):
                declared = fields[name].metadata[_KEY]
                group = declared.group or group
                kind, is_list = _kind(hints[name])
                value = getattr(self, name)
                if kind is float and type(value) is int:
                    value = float(value)
                own = dataclasses.replace(
                    declared,
                    name=name,
                    default=value,
                    kind=kind,
                    high=min(declared.high, _LARGEST) if kind is int else declared.high,
                    is_list=is_list,
                    group=group,
                )
                result.setdefault(name, own)
        return result

    def deciding(self) -> dict[str, str]:
        """Returns the flags that decide results, as in flags.txt.

        Unset ones (None) are left out.
        """
        return option_words.as_texts(
            {
                name: own.default
                for name, own in self.flags().items()
                if own.decides and own.default is not None
            }
        )

    def chosen(self, name: str) -> option_words.Chosen:
        """Returns the word of a flag, and the word's options.

        If the flag is unset, it is the first word.

        Raises:
            InvalidInputError: If it is no such word.
        """
        own = self.flags()[name]
        return option_words.parse(name, own.default or next(iter(own.words)), own.words)

    def filled(self, settings: Mapping[str, Any]) -> Self:
        """Returns a copy in which unset flags have the values of settings."""
        is_open = {
            name: settings[name]
            for name, own in self.flags().items()
            if own.default is None and name in settings
        }
        return dataclasses.replace(self, **is_open)


_ConfigT = TypeVar("_ConfigT", bound=Config)


class _Parser(flags.ArgumentParser):
    """absl's parser of a flag that is none of its booleans."""

    def __init__(self, own: Flag):
        self._own = own

    def parse(self, argument: Any) -> Any:
        return self._own.parse(argument) if isinstance(argument, str) else argument


def define(own_flags: Mapping[str, Flag], flag_values: flags.FlagValues) -> None:
    """Defines the flags of a program for absl."""
    for name, own in own_flags.items():
        # --helpfull lists them as flags of the program, not of this module.
        options = {"flag_values": flag_values, "module_name": sys.argv[0]}
        if own.kind is bool:
            flags.DEFINE_bool(name, own.default, own.help, **options)
        else:
            flags.DEFINE(_Parser(own), name, own.default, own.help, **options)


def read(
    own_flags: Mapping[str, Flag], flag_values: flags.FlagValues
) -> dict[str, Any]:
    """Returns the values of flags defined by `define`.

    Raises:
        InvalidInputError: If a word or its options are wrong, or a required flag is
            missing.
    """
    values = {name: flag_values[name].value for name in own_flags}
    for name, own in own_flags.items():
        if own.words and values[name] is not None:
            values[name] = _parsed_words(own, values[name])
        if own.off is not None and values[name] == own.off:
            values[name] = None
    # Errors of wrong values come before those of missing ones.
    for name, own in own_flags.items():
        if own.needed and values[name] in (None, ""):
            raise InvalidInputError(f"--{name}={own.needed}")
    return values


def _parsed_words(own: Flag, value: str | Sequence[str]) -> str | tuple[str, ...]:
    """Checks a word, or a list of them, and writes it in the form of flags.txt."""
    if not own.is_list:
        return str(option_words.parse(own.name, value, own.words))
    words = [option_words.parse(own.name, text, own.words) for text in value]
    names = [word.name for word in words]
    if not words or len({*names}) < len(names):
        raise InvalidInputError(
            f"--{own.name}={','.join(value)}: expected distinct ones of "
            f"{', '.join(own.words)}."
        )
    return tuple(map(str, words))


def parse(defaults: _ConfigT, *arguments: str) -> _ConfigT:
    """Returns the values of a command line's flags, see `read`.

    Raises:
        absl.flags.Error: If one does not parse.
        InvalidInputError: See `read`.
    """
    flag_values, own_flags = flags.FlagValues(), defaults.flags()
    define(own_flags, flag_values)
    flag_values(["", *arguments])
    return dataclasses.replace(defaults, **read(own_flags, flag_values))


def help_of(docstring: str | None, own_flags: Mapping[str, Flag]) -> str:
    """Returns the docstring of a program and its flags, by topic."""
    own = own_flags.values()
    by_topic = {"Flags": sorted((f for f in own if not f.group), key=lambda f: f.name)}
    for declared in filter(lambda f: f.group, own):
        by_topic.setdefault(declared.group, []).append(declared)
    topics = [
        "\n".join([f"{topic}:", *map(_help_of, members)])
        for topic, members in by_topic.items()
        if members
    ]
    return "\n\n".join([(docstring or "").strip(), *topics])


def _help_of(own: Flag) -> str:
    value = _PLACEHOLDERS.get(own.kind)
    if own.is_list:
        value += "S"
    elif own.kind is str and (own.choices or own.words):
        value = "|".join(own.choices or own.words)
    if own.words and any(word.options for word in own.words.values()):
        value += ":OPTION=VALUE,..."
    name = f"--[no]{own.name}" if own.kind is bool else f"--{own.name}={value}"
    text = own.help
    if own.default not in (None, ()) and own.kind is not bool:
        # A program may have its own default.
        text = text.partition(" Default: ")[0]
        text += f" Default: {option_words.as_text(own.default)}."
    wrapped = textwrap.wrap(text, 80, initial_indent=" " * 6, subsequent_indent=" " * 6)
    lines = [*textwrap.wrap(name, 86, initial_indent="  "), *wrapped]
    return "\n".join([*lines, *option_words.help_of(own.name, own.words or {})])


def _kind(annotation: Any) -> tuple[type, bool]:
    """Returns the type of an annotation's values, and whether it is a list of them."""
    options = [annotation]
    if isinstance(annotation, types.UnionType):
        options = [o for o in typing.get_args(annotation) if o is not types.NoneType]
    (option,) = options
    is_list = typing.get_origin(option) is tuple
    return (typing.get_args(option)[0], True) if is_list else (option, False)


# --- The command line -------------------------------------------------------------


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Returns whether the arguments, without the program's name, ask for --help."""
    return bool(_HELP & set(itertools.takewhile(lambda a: a != "--", arguments)))


def parse_arguments(arguments: Sequence[str], takes_arguments: bool) -> Sequence[str]:
    """Parses a program's name and flags; returns the name and other arguments.

    Raises:
        SystemExit: If a flag is wrong, or an argument unexpected, after a line about
            it.
    """
    try:
        # Deprecated by name only; `app.run` itself uses it.
        rest = flags.FLAGS(arguments)
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
    message = re.sub(rf"(?<![\w\-/.=:,'\"])({names})=", r"--\1=", message)
    return re.sub(rf"`({names})`", r"--\1", message)


@contextlib.contextmanager
def naming(flag: str) -> Iterator[None]:
    """Converts a ValueError of the body into one whose message begins with the flag.

    Raises:
        InvalidInputError: Instead of the ValueError.
    """
    try:
        yield
    except ValueError as error:
        raise InvalidInputError(f"{flag}: {error}") from error


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
    except OSError as error:
        discard_output()
        fail(f"standard output: {files.error_text(error)}.", EXIT_STOPPED)
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
