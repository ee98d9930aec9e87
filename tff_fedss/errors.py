"""Errors that end a program with a one-line message, and checks that raise them."""

import inspect
import math
import numbers
from collections.abc import Iterable
from typing import Any


class InvalidInputError(ValueError):
    """Unusable input: an argument's value, a path, a damaged file.

    The message is one line that names the argument or file, what was found and what was
    expected. An argument is written as `name=value`, or, without a value, in backticks;
    a program with a flag of that name writes --name instead. The binaries under
    `experiments/` print the line and exit with code 2.
    """


class RunStoppedError(RuntimeError):
    """A run that must stop although its input is good.

    The disk is full, a folder is not writable, or training has diverged. The message is
    one line with the file or the cause, and what to do. Saved files stay, so that the
    run can be resumed once the cause is gone. The binaries under `experiments/` print
    the message and exit with code 1.
    """


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Checks an argument that must be one of some words.

    Raises:
        InvalidInputError: If it is another word; the message lists the words.
    """
    if value not in choices:
        words = ", ".join(choices)
        raise InvalidInputError(f"{name}={value!r} must be one of {words}.")


def check_at_least(minimum: float, **arguments: float) -> None:
    """Checks arguments that must not be less than a minimum.

    Raises:
        InvalidInputError: If one is less; the message names it.
    """
    for name, value in arguments.items():
        if not value >= minimum:
            raise InvalidInputError(f"{name}={value} must be at least {minimum}.")


def check_range(
    name: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    above: bool = False,
    whole: bool = False,
) -> None:
    """Raises InvalidInputError unless a value is a finite number in [low, high].

    With `above`, in (low, high]; with `whole`, also an integer.
    """
    is_number = isinstance(value, numbers.Integral if whole else numbers.Real)
    is_within = is_number and low <= value <= high and not (above and value == low)
    if not (is_within and math.isfinite(value)):
        wanted = "" if is_number else "a whole number, " if whole else "a number, "
        wanted += f"above {low:.12g}" if above else f"at least {low:.12g}"
        wanted += " and finite" if math.isinf(high) else f" and at most {high:.12g}"
        raise InvalidInputError(f"{name}={value!r} must be {wanted}.")


# Maximum length of a value in a message, in characters.
_MOST_SHOWN = 100


def check_kind(name: str, value: Any, kind: Any, wanted: str) -> None:
    """Raises TypeError unless a value is of a class, or of one of a tuple of classes.

    `wanted` says in words what to give.
    """
    if not isinstance(value, kind):
        found = repr(value)
        if len(found) > _MOST_SHOWN:
            found = f"a {type(value).__name__}"
        raise TypeError(f"{name} must be {wanted}, found {found}.")


def check_function(
    name: str, value: Any, num_arguments: int, wanted: str, unlike: Any = ()
) -> None:
    """Raises TypeError unless a value can be called with `num_arguments` arguments.

    `wanted` says its arguments and result in words; objects of `unlike` are refused.
    """
    try:
        inspect.signature(value).bind(*range(num_arguments))
        fits = not isinstance(value, unlike)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise TypeError(f"{name} must be a function {wanted}, found {value!r}.")
