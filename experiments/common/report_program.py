"""What the programs share that make a page of runs.

Such a module ends with `report_program.run("leap_report", write)` and its own `write`:
as a program it writes a page and prints it.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable

from experiments.common import config, program


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for; a page may have more flags."""

    results_dir: str = config.flag(
        None,
        "Holds the results folders, laid out as above, or an archive of them.",
        needed="DIR is needed.",
    )
    output_dir: str = config.flag(
        None,
        "Where to write.",
        needed="DIR is needed.",
    )


def run(name: str, write: Callable[..., str], defaults: Config | None = None) -> None:
    """Runs the program: it writes the page, and prints it.

    Args:
        name: Of the program, after ./run.sh.
        write: Writes the page and returns it. Takes results_dir and output_dir, the
            rest of the flags, and `command`: what was given, argument by argument.
        defaults: The flags.

    Raises:
        SystemExit: Always, see `program.run`.
    """

    def main(config: Config) -> None:
        own = {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
        }
        folders = {key: pathlib.Path(own.pop(key)) for key in _FOLDERS}
        command = ["./run.sh", name, *sys.argv[1:]]
        print(write(**folders, **own, command=command), end="")

    program.run(main, defaults or Config())


_FOLDERS = ("results_dir", "output_dir")
