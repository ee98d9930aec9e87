"""How bad input is refused: one line that says what is wrong."""

import contextlib

import pytest

from tff_fedss.errors import InvalidInputError


@contextlib.contextmanager
def refused(message, error=InvalidInputError):
    """What it encloses raises an error of one line, in which a pattern is found."""
    with pytest.raises(error, match=message) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def message_of(function, *arguments, **options):
    """The line by which a call is refused."""
    with refused("") as caught:
        function(*arguments, **options)
    return str(caught.value)
