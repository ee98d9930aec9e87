"""Quick answers to --help and wrong flags, before TensorFlow is loaded.

TensorFlow and TFF take about eight seconds to import. So the programs' help and flags
are kept in a file, which is written again when a source has changed. `./run.sh` calls
this before each program:

    python -m experiments.common.answers FOLDER "COMMAND MODULE ..." COMMAND ARGUMENTS

It answers, or exits with `GO_ON`, which means: run the program. The program itself
reports flags that are wrong for other reasons than their own value, such as one that
does not suit the data set.
"""

import contextlib
import dataclasses
import importlib
import pathlib
import pickle
import runpy
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

from absl import app, flags

from experiments.common import command_line, config, option_words, table_runs
from tff_fedss import files
from tff_fedss.errors import InvalidInputError, RunStoppedError

GO_ON = 100  # The exit code that means: run the program.
_ROOT = pathlib.Path(__file__).parents[2]
_FILE = "answers.pickle"


def collect(programs: Mapping[str, str]) -> dict[str, Any]:
    """Collects the programs' descriptions, for which it imports all of them.

    Args:
        programs: Their modules, by command.

    Returns:
        Values that can be read without TensorFlow: "programs", by command, each with
        its help, its flags, the cells that it trains and whether it takes arguments;
        "tables", by paper, without what makes their pages; and "flags", the names of
        the flags of a table's program, by module.
    """
    from experiments.common import cells, program
    from tff_fedss import runtime

    # TFF's default context prints an error if a program ends without using it.
    runtime.set_in_process_context()
    cell_names: dict[str, list[str]] = {}
    tables, flag_names = {}, {}
    for paper in cells.PAPERS:
        tables[paper] = {
            key: dataclasses.replace(table, kind=None, notes=(), draw=None)
            for key, table in cells.tables_of(paper).items()
        }
        for key, table in tables[paper].items():
            names = ("/".join([*key, cell]) for cell in table.cells)
            cell_names.setdefault(table.program, []).extend(names)
            flag_names[table.program] = [*table.config().flags()]
    found = {}
    for command, module in programs.items():
        with mock.patch.object(program, "run") as run, warnings.catch_warnings():
            # Other modules have also imported this one.
            warnings.simplefilter("ignore", RuntimeWarning)
            runpy.run_module(module, run_name="__main__")
        (_, defaults), options = run.call_args
        paper = options.get("paper")
        docstring = importlib.import_module(module).__doc__
        found[command] = {
            "help": program.help_of(docstring, defaults, paper),
            "takes_arguments": options.get("takes_arguments", False),
            "flags": {n: _plain(f) for n, f in defaults.flags().items()},
            "cells": cell_names.get(module, []) if paper else [],
        }
    return {"programs": found, "tables": tables, "flags": flag_names}


def _plain(flag: config.Flag) -> config.Flag:
    """Returns a flag whose words are words alone, not rows of the library's tables."""
    words = (flag.words or {}).items()
    own = {name: option_words.Word(w.help, dict(w.options)) for name, w in words}
    choices = flag.choices and tuple(flag.choices)
    return dataclasses.replace(flag, choices=choices, words=own or None)


def answer(said: Mapping[str, Any], command: str, arguments: Sequence[str]) -> None:
    """Prints answers that need no TensorFlow.

    Args:
        said: The result of `collect`.
        command: One of its programs.
        arguments: Arguments of the command line, without the command.

    Raises:
        SystemExit: Always: with 0 after help, 2 after a wrong flag, and `GO_ON` if the
            program must run.
    """
    program = said["programs"][command]
    if command_line.asks_for_help(arguments):
        command_line.print_help(program["help"])
    # A cell's flags and absl's own kinds of help are left to the program.
    if any(a.lstrip("-").startswith(("cell=", "help")) for a in arguments):
        sys.exit(GO_ON)
    app.define_help_flags()
    config.define(program["flags"], flags.FLAGS)
    given = [command, *arguments]
    rest = command_line.parse(flags.FLAGS, given, program["takes_arguments"])
    try:
        values = config.read(program["flags"], flags.FLAGS)
        if command == "table" and values["list"]:
            tables = said["tables"]
            found = table_runs.find(
                types.SimpleNamespace(**values),
                rest[1:],
                tables,
                tables.__getitem__,
                lambda table: said["flags"][table.program],
            )
            table_runs.print_commands(found.jobs)
            sys.exit()
    except InvalidInputError as error:
        command_line.fail(command_line.with_flags(str(error), program["flags"]))
    sys.exit(GO_ON)


def is_fresh(path: pathlib.Path) -> bool:
    """Returns whether no source is newer than the file of `fetch`."""
    if not path.exists():
        return False
    written = path.stat().st_mtime
    sources = [_ROOT / "run.sh"]
    for folder in ("experiments", "tff_fedss", "data"):
        sources += (_ROOT / folder).rglob("*.py")
    return all(source.stat().st_mtime <= written for source in sources)


def fetch(folder: str, programs: str) -> dict[str, Any]:
    """Returns the result of `collect`, from the file in a folder if that is fresh.

    Args:
        folder: Folder of the file; if it is not writable, nothing is kept.
        programs: A line for each: the command, its module, and its description.
    """
    path = pathlib.Path(folder, _FILE)
    if is_fresh(path):
        return pickle.loads(path.read_bytes())
    said = collect(dict(line.split()[:2] for line in programs.splitlines()))
    with contextlib.suppress(InvalidInputError, RunStoppedError):
        files.write(path, pickle.dumps(said))
    return said


def _main(folder: str, programs: str, command: str, *arguments: str) -> None:
    is_help = command_line.asks_for_help(arguments)
    if not is_help and not is_fresh(pathlib.Path(folder, _FILE)):
        sys.exit(GO_ON)
    answer(fetch(folder, programs), command, arguments)


if __name__ == "__main__":
    _main(*sys.argv[1:])
