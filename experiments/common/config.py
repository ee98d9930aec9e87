"""The flags of a program: a frozen dataclass, with a field for each.

    @dataclasses.dataclass(frozen=True)
    class Config(config.Config):
        rounds: int = config.flag(40, "How many rounds.", low=1)
        data_dir: str | None = config.flag(None, "Where the data are.")

    def main(config: Config) -> None: ...

    program.run(main, Config())

The annotation is the flag's type: int, float, str, bool or tuple[str, ...], with `|
None` if it may be unset. The fields are in the order of --help, within a topic, and of
flags.txt: a class's own before inherited ones.
"""

import csv
import dataclasses
import math
import re
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from absl import flags

from experiments.common import option_words
from tff_fedss.errors import InvalidInputError

_LARGEST = 2**31 - 1  # The largest int32, TensorFlow's type of counts.
_KEY = "flag"
# Types of flags in --help.
_PLACEHOLDERS = {int: "INT", float: "FLOAT", str: "STRING", tuple: "STRINGS"}
# A comma between words, not between options: `a,b:x=1,y=2` has two words.
_BETWEEN_WORDS = re.compile(r",(?![^,:]*=)")


@dataclasses.dataclass(frozen=True)
class Flag:
    """A declared flag, see `flag`.

    Attributes:
        help: Its text in --help.
        group: Its topic in --help, also of the following flags of the class up to one
            with another topic. Flags without a topic come first, by name.
        low: The minimum.
        high: The maximum; by default, of whole numbers, the largest int32.
        choices: The allowed words. A list has one or more of them.
        words: The allowed words, with their options, see `option_words`.
        decides: Whether it decides a run's results, so that flags.txt has it and a
            results folder belongs to its value.
        off: The value that means unset (None).
        needed: Set if the flag is required: the message after `--name=`, such as
            "DIR is needed.".
        name: The name of its field.
        kind: The type of its values.
        value: Its value in a `Config`: the default, when flags are defined.
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
    value: Any = None

    def parse(self, text: str) -> Any:
        """Returns the value of a text.

        Raises:
            ValueError: If it has none; the message has the allowed values.
        """
        if self.kind is tuple and self.words:
            return tuple(_BETWEEN_WORDS.split(text)) if text else ()
        if self.kind is tuple:
            values = tuple(item.strip() for row in csv.reader([text]) for item in row)
            if self.choices and not (values and {*values} <= {*self.choices}):
                raise ValueError(f"expected some of {', '.join(self.choices)}")
            return values
        low = -math.inf if self.low is None else self.low
        high = self.high
        if high is None:
            high = _LARGEST if self.kind is int else math.inf
        option = option_words.Option(
            self.kind, None, tuple(self.choices or ()), option_words.Range(low, high)
        )
        try:
            return option.parse(text)
        except ValueError:
            raise ValueError(f"expected {option.expected}") from None


def flag(default: Any, help: str, **options: Any) -> Any:
    """Declares a flag with its default, as the field of a dataclass; see `Flag`."""
    return dataclasses.field(default=default, metadata={_KEY: Flag(help, **options)})


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
                own = dataclasses.replace(
                    declared,
                    group=group,
                    name=name,
                    kind=_kind(hints[name]),
                    value=getattr(self, name),
                )
                result.setdefault(name, own)
        return result

    def deciding(self) -> dict[str, str]:
        """Returns the flags that decide results, as in flags.txt.

        Unset ones (None) are left out.
        """
        return option_words.as_texts(
            {
                name: float(own.value) if own.kind is float else own.value
                for name, own in self.flags().items()
                if own.decides and own.value is not None
            }
        )

    def chosen(self, name: str) -> option_words.Chosen:
        """Returns the word of a flag, and the word's options.

        If the flag is unset, it is the first word.

        Raises:
            InvalidInputError: If it is no such word.
        """
        own = self.flags()[name]
        return option_words.parse(name, own.value or next(iter(own.words)), own.words)

    def filled(self, settings: Mapping[str, Any]) -> Self:
        """Returns a copy in which unset flags have the values of settings."""
        is_open = {
            name: settings[name]
            for name, own in self.flags().items()
            if own.value is None and name in settings
        }
        return dataclasses.replace(self, **is_open)


_ConfigT = TypeVar("_ConfigT", bound=Config)


class _Parser(flags.ArgumentParser):
    """absl's parser of a flag that is none of its booleans."""

    def __init__(self, own: Flag):
        self._own = own

    def parse(self, argument: Any) -> Any:
        return self._own.parse(argument) if isinstance(argument, str) else argument

    def flag_type(self) -> str:
        return self._own.kind.__name__


def define(own_flags: Mapping[str, Flag], flag_values: flags.FlagValues) -> None:
    """Defines the flags of a program for absl."""
    for name, own in own_flags.items():
        # --helpfull lists them as flags of the program, not of this module.
        options = {"flag_values": flag_values, "module_name": sys.argv[0]}
        if own.kind is bool:
            flags.DEFINE_bool(name, own.value, own.help, **options)
        else:
            flags.DEFINE(_Parser(own), name, own.value, own.help, **options)


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
    if own.kind is not tuple:
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


def help_of(defaults: Config) -> list[str]:
    """Writes the flags' texts of --help, one for each topic."""
    own = defaults.flags().values()
    by_topic = {"Flags": sorted((f for f in own if not f.group), key=lambda f: f.name)}
    for declared in filter(lambda f: f.group, own):
        by_topic.setdefault(declared.group, []).append(declared)
    return [
        "\n".join([f"{topic}:", *map(_help_of, members)])
        for topic, members in by_topic.items()
        if members
    ]


def _help_of(own: Flag) -> str:
    value = _PLACEHOLDERS.get(own.kind)
    if own.kind is str and (own.choices or own.words):
        value = "|".join(own.choices or own.words)
    if own.words and any(word.options for word in own.words.values()):
        value += ":OPTION=VALUE,..."
    name = f"--[no]{own.name}" if own.kind is bool else f"--{own.name}={value}"
    text = own.help
    if own.value not in (None, ()) and own.kind is not bool:
        text += f" Default: {option_words.as_text(own.kind(own.value))}."
    wrapped = textwrap.wrap(text, 80, initial_indent=" " * 6, subsequent_indent=" " * 6)
    lines = [*textwrap.wrap(name, 86, initial_indent="  "), *wrapped]
    return "\n".join([*lines, *option_words.help_of(own.name, own.words or {})])


def _kind(annotation: Any) -> type:
    """Returns the type of an annotation's values, except None."""
    options = [annotation]
    if isinstance(annotation, types.UnionType):
        options = [o for o in typing.get_args(annotation) if o is not types.NoneType]
    (option,) = options
    return typing.get_origin(option) or option
