"""The errors that end a program with one line instead of a traceback."""


class InvalidInputError(ValueError):
    """Input that cannot be used: a flag's value, a path, a damaged file.

    The message is one line that names the flag or file, what was found and what was
    expected. The binaries under `experiments/` print it and exit with code 2.
    """


class RunStoppedError(RuntimeError):
    """A run that cannot go on although its input is good.

    The disk is full, a folder may not be written, training has diverged. The message is
    one line that names the file or the cause, and what to do. What was saved before
    stays as it is, so that the run goes on from there once the cause is gone. The
    binaries under `experiments/` print the message and exit with code 1.
    """
