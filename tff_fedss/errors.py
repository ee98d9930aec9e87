"""The error that a user can mend: a wrong flag, path or file."""


class InvalidInputError(ValueError):
    """Input that cannot be used: a flag's value, a path, a damaged file.

    The message is one line that names the flag or file, what was found and what was
    expected. The binaries under `experiments/` print it and exit with code 2.
    """
