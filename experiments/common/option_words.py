"""Option words: flags of the form `--FLAG=WORD:OPTION=VALUE,OPTION=VALUE`.

An option follows the word that it belongs to, so that an option without effect is
impossible. The options of a word are the keywords of a dataclass or a function:
annotations are their types and bounds, the docstring their descriptions.

    @dataclasses.dataclass(frozen=True)
    class Gaussian:  # With a docstring, whose Attributes are the texts of --help.
        noise: Annotated[float, Range(low=0.0)]
        clip: Annotated[float, Range(low=1e-9)] = 1.0

    WORDS = {"none": Word(), "gaussian": word(Gaussian)}
    name, options = parse("dp", "gaussian:noise=1", WORDS)
"""

import dataclasses
import inspect
import math
import os
import pathlib
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from tff_fedss.errors import InvalidInputError

NEEDED = inspect.Parameter.empty
# A type's name in messages, and an example of it.
_KINDS = {
    int: ("a whole number", "10"),
    float: ("a number", "1"),
    str: ("a text", "NAME"),
    bool: ("true or false", "true"),
    pathlib.Path: ("a path", "FILE"),
}


@dataclasses.dataclass(frozen=True)
class Range:
    """The range of an option's numbers, for `Annotated`."""

    low: float = -math.inf
    high: float = math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A value that a user may give: an option of a word, or a flag.

    Attributes:
        help: Its description.
        kind: Its type, of `_KINDS`.
        default: The default; None: unset; `NEEDED`: the option is required.
        choices: The allowed texts; empty: any.
    """

    help: str = ""
    kind: type = str
    default: Any = None
    choices: Collection[str] = ()
    low: float = -math.inf
    high: float = math.inf

    @property
    def expected(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return " or ".join(self.choices)
        text = _KINDS[self.kind][0]
        text += f" of at least {self.low:.10g}" if self.low > -math.inf else ""
        return text + (f", at most {self.high:.10g}" if self.high < math.inf else "")

    @property
    def example(self) -> str:
        """An allowed value."""
        if self.default not in (None, NEEDED):
            return as_text(self.default)
        return list(self.choices)[-1] if self.choices else _KINDS[self.kind][1]

    def parse(self, text: str) -> Any:
        """Returns the value of a text; raises ValueError if it has none."""
        if self.choices and text not in self.choices:
            raise ValueError
        if self.kind is bool:
            return ("false", "true").index(text.lower()) == 1
        value = self.kind(text)
        is_number = self.kind in (int, float)
        # Neither NaN nor infinity is allowed.
        if is_number and not (self.low <= value <= self.high and math.isfinite(value)):
            raise ValueError
        return value


@dataclasses.dataclass(frozen=True)
class Word:
    """A word before the colon: its description, and its options by name."""

    help: str = ""
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)


class WordsOf(Mapping):
    """The words of a table's rows, which may still be added to.

    Args:
        rows: The table, by word.
        word_of: Makes the word of a row.
    """

    def __init__(self, rows: Mapping[str, Any], word_of: Callable[[Any], Word]):
        self._rows, self._word_of = rows, word_of

    def __getitem__(self, name: str) -> Word:
        return self._word_of(self._rows[name])

    def __iter__(self):
        return iter(self._rows)

    def __len__(self):
        return len(self._rows)


class Chosen(NamedTuple):
    """The user's choice: a word, and the values of the given options."""

    name: str
    options: dict[str, Any]

    def __str__(self):
        given = [f"{name}={as_text(value)}" for name, value in self.options.items()]
        return ":".join([self.name, *filter(None, [",".join(given)])])


def word(*functions: Callable, names: Collection[str] | None = None) -> Word:
    """Makes a word of the keywords of functions or dataclasses.

    Args:
        *functions: The first one's docstring begins with the word's description.
        names: The keywords that are options; by default all whose type has a text form.
    """
    options = {}
    for function in functions:
        texts = _documented(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if (names is None or name in names) and name not in options:
                option = _option(parameter, texts.get(name, ""))
                options |= {} if option is None else {name: option}
    summary = inspect.getdoc(functions[0]).partition("\n\n")[0]
    return Word(" ".join(summary.split()), options)


def parse(flag: str, text: str, words: Mapping[str, Word], where: str = "") -> Chosen:
    """Reads the value of a flag.

    Args:
        flag: Its name, for messages.
        text: WORD or WORD:OPTION=VALUE,...
        where: The owner of these words, if not the flag itself, for messages.

    Returns:
        The word and its options: those with another value than their default, in the
        order in which they are declared.

    Raises:
        InvalidInputError: If the text is not of this form.
    """
    name, colon, rest = text.partition(":")
    if name not in words:
        raise InvalidInputError(
            f"--{flag}={text}: expected one of {', '.join(words)}{where}."
        )
    options = words[name].options
    found: dict[str, Any] = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = item.partition("=")
        if key not in options:
            has = f"it has {', '.join(options)}" if options else "it has none"
            raise _mistake(flag, text, words, f"{name!r} has no option {key}; {has}")
        if key in found:
            raise _mistake(flag, text, words, f"{key} is given twice")
        try:
            found[key] = options[key].parse(value)
        except ValueError:
            problem = f"{key} is {options[key].expected}, found {value!r}"
            raise _mistake(flag, text, words, problem) from None
    for key, option in options.items():
        if option.default is NEEDED and key not in found:
            raise _mistake(flag, text, words, f"{name!r} needs {key}")
    given = {k: found[k] for k in options if k in found}
    return Chosen(name, {k: v for k, v in given.items() if v != options[k].default})


def _mistake(
    flag: str, text: str, words: Mapping[str, Word], problem: str
) -> InvalidInputError:
    name = text.partition(":")[0]
    return InvalidInputError(
        f"--{flag}={text}: {problem}; for example --{flag}={example(name, words)}."
    )


def example(name: str, words: Mapping[str, Word]) -> str:
    """Returns an example: a word with its required options, or the first word."""
    options = words[name].options
    shown = [key for key, option in options.items() if option.default is NEEDED]
    shown = shown or list(options)[:1]
    return str(Chosen(name, {key: options[key].example for key in shown}))


def help_of(flag: str, words: Mapping[str, Word]) -> list[str]:
    """Returns the lines of --help on the words that have options."""
    lines = []
    for name, word in words.items():
        if not word.options:
            continue
        text = f"--{flag}={example(name, words)}: {word.help}"
        lines += textwrap.wrap(
            text, 80, initial_indent=" " * 6, subsequent_indent=" " * 10
        )
        for key, option in word.options.items():
            text = f"{key}: {option.help}"
            if option.default not in (None, NEEDED):
                text += f" Default: {as_text(option.default)}."
            lines += textwrap.wrap(
                text, 80, initial_indent=" " * 10, subsequent_indent=" " * 14
            )
    return lines


def as_text(value: Any) -> str:
    """Returns a value in its text form."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(as_text, value)) if isinstance(value, tuple) else str(value)


def as_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings in the form of flags.txt."""
    return {name: as_text(value) for name, value in settings.items()}


def _option(parameter: inspect.Parameter, text: str) -> Option | None:
    """Returns a keyword's option; None if its type has no text form."""
    kind, bounds = parameter.annotation, Range()
    if typing.get_origin(kind) is Annotated:
        kind, bounds = typing.get_args(kind)
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    parts = typing.get_args(kind) if is_union else [kind]
    literal = [p for p in parts if typing.get_origin(p) is Literal]
    choices = typing.get_args(literal[0]) if literal else ()
    if choices or os.PathLike in parts:
        kinds = [str if choices else pathlib.Path]
    else:
        kinds = [part for part in parts if part in _KINDS]
    if not kinds:
        return None
    return Option(
        help=text,
        kind=kinds[0],
        default=parameter.default,
        choices=choices,
        low=bounds.low,
        high=bounds.high,
    )


def _documented(function: Callable) -> dict[str, str]:
    """Returns the sections Args and Attributes of a docstring, and of base classes."""
    found: dict[str, str] = {}
    function = getattr(function, "func", function)
    is_class = inspect.isclass(function)
    for source in reversed(inspect.getmro(function)) if is_class else [function]:
        is_inside, name = False, ""
        for line in inspect.getdoc(source).splitlines():
            if not line.startswith(" "):
                is_inside = line in ("Args:", "Attributes:")
            elif is_inside and (entry := re.fullmatch(r" {4}(\**\w+): (.*)", line)):
                name, found[entry[1]] = entry[1], entry[2]
            elif is_inside:
                found[name] += " " + line.strip()
    return found
