"""The flags of a program: a frozen dataclass, with a field for each.

    @dataclasses.dataclass(frozen=True)
    class Config(config.Config):
        rounds: int = config.flag(40, "How many rounds.", low=1)
        data_dir: str | None = config.flag(None, "Where the data are.")

    def main(config: Config) -> None: ...

    program.run(main, Config())

The annotation says what a flag takes: int, float, str, bool or tuple[str, ...], with
`| None` where it may be left open. The fields are in the order of --help, within a
topic, and of flags.txt: those of a class before those that it inherits.
"""

import dataclasses
import math
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from absl import flags

from experiments.common import option_words
from tff_fedss.errors import InvalidInputError

_LARGEST = 2**31 - 1  # TensorFlow counts in int32.
_KEY = "flag"
# What a flag takes, as --help writes it.
_PLACEHOLDERS = {int: "INT", float: "FLOAT", str: "STRING", tuple: "STRINGS"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """A declared flag, see `flag`.

    Attributes:
        help: For --help.
        group: Its topic there; the flags after it in the class have it, too, up to one
            that names another. Flags of no topic come first, by name.
        low: The least number that it takes.
        high: The largest.
        choices: The words that it takes. A list takes one or more of them.
        words: The words that it takes, with their options, see `option_words`.
        decides: Whether it decides what comes out of a run, so that flags.txt has it
            and a results folder belongs to its value.
        off: The value that is the same as none: it is left open (None).
        needed: Says that it cannot be left open, and why: what follows `--name=`, such
            as "DIR is needed.".
        name: The name of its field.
        kind: The type of its values.
    """

    help: str
    group: str | None = None
    low: float | None = None
    high: float | None = None
    choices: Sequence[str] | None = None
    words: Mapping[str, option_words.Word] | None = None
    decides: bool = True
    off: str | bool | None = None
    needed: str | None = None
    name: str = ""
    kind: type = str


def flag(default: Any, help: str, **options: Any) -> Any:
    """Declares a flag with its default, as the field of a dataclass; see `Flag`."""
    return dataclasses.field(default=default, metadata={_KEY: Flag(help, **options)})


@dataclasses.dataclass(frozen=True)
class Config:
    """What a user asks of a program. The programs have subclasses."""

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Returns the flags by name: those of a class before those it inherits."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        hints = typing.get_type_hints(cls)
        result = {}
        for owner in cls.__mro__:
            group = None
            for name in owner.__dict__.get("__annotations__", {}):
                declared = fields[name].metadata[_KEY]
                group = declared.group or group
                own = dataclasses.replace(
                    declared, name=name, kind=_kind(hints[name]), group=group
                )
                result.setdefault(name, own)
        return result

    def deciding(self) -> dict[str, str]:
        """Returns the flags that decide results, as flags.txt has them.

        Those that are open (None) are left out.
        """
        return option_words.as_texts(
            {
                name: float(value) if own.kind is float else value
                for name, own in self.flags().items()
                if own.decides and (value := getattr(self, name)) is not None
            }
        )

    def chosen(self, name: str) -> option_words.Chosen:
        """Returns the word of a flag that takes one, and its options.

        Where the flag is open, that is the first word.

        Raises:
            InvalidInputError: If it is no such word.
        """
        words = self.flags()[name].words
        return option_words.parse(name, getattr(self, name) or next(iter(words)), words)

    def filled(self, settings: Mapping[str, Any]) -> Self:
        """Returns a copy in which flags that were open have the values of settings."""
        is_open = {
            name: value
            for name, value in settings.items()
            if name in self.flags() and getattr(self, name) is None
        }
        return dataclasses.replace(self, **is_open)


_ConfigT = TypeVar("_ConfigT", bound=Config)


def define(defaults: Config, flag_values: flags.FlagValues) -> None:
    """Defines the flags of a program for absl."""
    for name, own in defaults.flags().items():
        default = getattr(defaults, name)
        # For --helpfull they are flags of the program, not of this module.
        options = {"flag_values": flag_values, "module_name": sys.argv[0]}
        if own.kind in (int, float):
            define_number = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
            define_number[own.kind](
                name, default, own.help, own.low, own.high, **options
            )
        elif own.kind is bool:
            flags.DEFINE_bool(name, default, own.help, **options)
        elif own.kind is tuple:
            default = None if default is None else list(default)
            flags.DEFINE_list(name, default, own.help, **options)
            if own.choices:
                flags.register_validator(
                    name,
                    lambda words, known=frozenset(own.choices): (
                        words is None or (words and known.issuperset(words))
                    ),
                    f"value should be a list of <{'|'.join(own.choices)}>",
                    flag_values,
                )
        elif own.choices:
            flags.DEFINE_enum(name, default, list(own.choices), own.help, **options)
        else:
            flags.DEFINE_string(name, default, own.help, **options)


def undefine(defaults: Config, flag_values: flags.FlagValues) -> None:
    """Takes back what `define` has done, so that another program can follow."""
    for name in defaults.flags():
        delattr(flag_values, name)


def read(defaults: _ConfigT, flag_values: flags.FlagValues) -> _ConfigT:
    """Returns what the user asks for, by flags that `define` has defined.

    Raises:
        InvalidInputError: If a flag is missing that cannot be left open, or a number
            is not finite or too large.
    """
    values = {name: flag_values[name].value for name in defaults.flags()}
    for name, own in defaults.flags().items():
        value = values[name]
        # The bounds of absl let NaN pass, and infinity where there is no upper one.
        if own.kind is float and value is not None and not math.isfinite(value):
            raise InvalidInputError(f"flag --{name}={value}: expected a finite number")
        # Seeds may have more: some of them go to NumPy.
        if own.kind is int and abs(value or 0) > _LARGEST and name != "seed":
            raise InvalidInputError(
                f"flag --{name}={value}: expected at most {_LARGEST}"
            )
        if own.kind is tuple and value is not None:
            values[name] = tuple(value)
        if own.words and value is not None:
            values[name] = _parsed_words(own, value)
        if own.off is not None and values[name] == own.off:
            values[name] = None
    # Errors of wrong values come before those of missing ones.
    for name, own in defaults.flags().items():
        if own.needed and values[name] in (None, ""):
            raise InvalidInputError(f"--{name}={own.needed}")
    return dataclasses.replace(defaults, **values)


def _parsed_words(own: Flag, value: str | Sequence[str]) -> str | tuple[str, ...]:
    """Checks a word, or a list of them, and writes it as flags.txt has it."""
    if own.kind is not tuple:
        return str(option_words.parse(own.name, value, own.words))
    texts: list[str] = []
    for item in value:  # `a,b:x=1,y=2` has been split at each comma.
        if texts and ":" in texts[-1] and "=" in item and ":" not in item:
            texts[-1] += f",{item}"
        else:
            texts.append(item)
    words = [option_words.parse(own.name, text, own.words) for text in texts]
    twice = {w.name for w in words if [other.name for other in words].count(w.name) > 1}
    if twice or not words:
        raise InvalidInputError(
            f"--{own.name}={','.join(value)}: expected different ones of "
            f"{', '.join(own.words)}."
        )
    return tuple(map(str, words))


def parse(defaults: _ConfigT, *arguments: str) -> _ConfigT:
    """Returns what arguments of a command line ask for, see `read`.

    Raises:
        absl.flags.Error: If one does not parse.
        InvalidInputError: See `read`.
    """
    flag_values = flags.FlagValues()
    define(defaults, flag_values)
    flag_values(["", *arguments])
    return read(defaults, flag_values)


def help_of(defaults: Config) -> list[str]:
    """Writes what --help says of the flags: a text for each topic."""
    own = defaults.flags().values()
    by_topic = {"Flags": sorted((f for f in own if not f.group), key=lambda f: f.name)}
    for declared in filter(lambda f: f.group, own):
        by_topic.setdefault(declared.group, []).append(declared)
    return [
        "\n".join(
            [f"{topic}:", *(_help_of(f, getattr(defaults, f.name)) for f in members)]
        )
        for topic, members in by_topic.items()
        if members
    ]


def _help_of(own: Flag, default: Any) -> str:
    value = _PLACEHOLDERS.get(own.kind)
    if own.kind is str and (own.choices or own.words):
        value = "|".join(own.choices or own.words)
    if own.words and any(word.options for word in own.words.values()):
        value += ":OPTION=VALUE,..."
    name = f"--[no]{own.name}" if own.kind is bool else f"--{own.name}={value}"
    text = own.help
    if default not in (None, ()) and own.kind is not bool:
        text += f" Default: {option_words.as_text(own.kind(default))}."
    wrapped = textwrap.wrap(text, 80, initial_indent=" " * 6, subsequent_indent=" " * 6)
    lines = [*textwrap.wrap(name, 86, initial_indent="  "), *wrapped]
    return "\n".join([*lines, *option_words.help_of(own.name, own.words or {})])


def _kind(annotation: Any) -> type:
    """Returns what values of an annotation are, where they are not None."""
    options = [annotation]
    if isinstance(annotation, types.UnionType):
        options = [o for o in typing.get_args(annotation) if o is not types.NoneType]
    (option,) = options
    return typing.get_origin(option) or option
