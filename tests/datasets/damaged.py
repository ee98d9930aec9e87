"""What the tests of damaged data have in common."""

import pytest

from tff_fedss.errors import InvalidInputError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def refused(load, path, *parts):
    """Checks that a reader refuses a path in one line that has these parts."""
    with pytest.raises(InvalidInputError) as error:
        load(path)
    message = str(error.value)
    assert "\n" not in message and len(message) < 600
    for part in parts:
        assert part in message
    return message
