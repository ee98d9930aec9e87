"""Errors that end a program with one line, and checks of arguments that raise them."""

import math
from collections.abc import Iterable


class InvalidInputError(ValueError):
    """Input that cannot be used: an argument's value, a path, a damaged file.

    The message is one line that names the argument or file, what was found and what was
    expected. An argument is written as `name=value`, or, without a value, in backticks:
    a program that has a flag of the name says --name there. The binaries under
    `experiments/` print the line and exit with code 2.
    """


class RunStoppedError(RuntimeError):
    """A run that has to stop although its input is good.

    The disk is full, a folder may not be written, training has diverged. The message is
    one line that names the file or the cause, and what to do. What was saved before
    stays as it is, so that the run can be resumed once the cause is gone. The binaries
    under `experiments/` print the message and exit with code 1.
    """


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Checks an argument that must be one of some words.

    Raises:
        InvalidInputError: If it is another; the message lists them.
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
    name: str, value: float, low: float, high: float = math.inf, *, above: bool = False
) -> None:
    """Raises an InvalidInputError unless a number is finite and within bounds.

    Args:
        name: The argument's.
        value: The number.
        low: The least that it may be; or, if `above`, what it must be above.
        high: The most.
        above: See `low`.
    """
    is_within = low <= value <= high and not (above and value == low)
    if not (is_within and math.isfinite(value)):
        wanted = f"above {low:.12g}" if above else f"at least {low:.12g}"
        wanted += " and finite" if math.isinf(high) else f" and at most {high:.12g}"
        raise InvalidInputError(f"{name}={value} must be {wanted}.")
