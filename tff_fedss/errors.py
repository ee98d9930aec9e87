"""The errors that end a program with one line instead of a traceback."""


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
