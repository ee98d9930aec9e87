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

_LARGEST = 2**31 - 1  # The largest int32, TensorFlow's type of counts.
_KEY = "flag"
# Types of flags in --help.
_PLACEHOLDERS = {int: "INT", float: "FLOAT", str: "STRING", tuple: "STRINGS"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """A declared flag, see `flag`.

    Attributes:
        help: Its text in --help.
        group: Its topic in --help, also of the following flags of the class up to one
            with another topic. Flags without a topic come first, by name.
        low: The minimum.
        high: The maximum.
        choices: The allowed words. A list has one or more of them.
        words: The allowed words, with their options, see `option_words`.
        decides: Whether it decides a run's results, so that flags.txt has it and a
            results folder belongs to its value.
        off: The value that means unset (None).
        needed: Set if the flag is required: the message after `--name=`, such as
            "DIR is needed.".
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
    """The base class of programs' flags."""

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Returns the flags by name: a class's own before inherited ones."""
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
        """Returns the flags that decide results, as in flags.txt.

        Unset ones (None) are left out.
        """
        return option_words.as_texts(
            {
                name: float(value) if own.kind is float else value
                for name, own in self.flags().items()
                if own.decides and (value := getattr(self, name)) is not None
            }
        )

    def chosen(self, name: str) -> option_words.Chosen:
        """Returns the word of a flag, and the word's options.

        If the flag is unset, it is the first word.

        Raises:
            InvalidInputError: If it is no such word.
        """
        words = self.flags()[name].words
        return option_words.parse(name, getattr(self, name) or next(iter(words)), words)

    def filled(self, settings: Mapping[str, Any]) -> Self:
        """Returns a copy in which unset flags have the values of settings."""
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
        # --helpfull lists them as flags of the program, not of this module.
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
    """Undoes `define`, so that another program can follow."""
    for name in defaults.flags():
        delattr(flag_values, name)


def read(defaults: _ConfigT, flag_values: flags.FlagValues) -> _ConfigT:
    """Returns the values of flags defined by `define`.

    Raises:
        InvalidInputError: If a required flag is missing, or a number is not finite or
            too large.
    """
    values = {name: flag_values[name].value for name in defaults.flags()}
    for name, own in defaults.flags().items():
        value = values[name]
        # absl's bounds accept NaN, and infinity without an upper bound.
        if own.kind is float and value is not None and not math.isfinite(value):
            raise InvalidInputError(f"flag --{name}={value}: expected a finite number")
        # Seeds may be larger: some are for NumPy.
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
    """Checks a word, or a list of them, and writes it in the form of flags.txt."""
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
    flag_values = flags.FlagValues()
    define(defaults, flag_values)
    flag_values(["", *arguments])
    return read(defaults, flag_values)


def help_of(defaults: Config) -> list[str]:
    """Writes the flags' texts of --help, one for each topic."""
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
    """Returns the type of an annotation's values, except None."""
    options = [annotation]
    if isinstance(annotation, types.UnionType):
        options = [o for o in typing.get_args(annotation) if o is not types.NoneType]
    (option,) = options
    return typing.get_origin(option) or option
