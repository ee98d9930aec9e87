"""Quick answers to --help and wrong flags, before TensorFlow is loaded.

TensorFlow and TFF take about eight seconds to import. So the programs' help and the
declarations of their flags are kept in a file, which is written again when a source has
changed. `./run.sh` calls this before each program:

    python -m experiments.common.answers FOLDER "COMMAND MODULE ..." COMMAND ARGUMENTS

It answers, or exits with `GO_ON`, which means: run the program. The program itself
reports flags that are wrong for other reasons than their own value, such as one that
does not suit the data set.
"""

import contextlib
import dataclasses
import importlib
import json
import pathlib
import runpy
import sys
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
_FILE = "answers.json"
_KINDS = {kind.__name__: kind for kind in (int, float, str, bool, tuple)}
_OPTION_KINDS = {kind.__name__: kind for kind in (int, float, str, bool, pathlib.Path)}
_COPIED = ("help", "low", "high", "off", "needed")


def collect(programs: Mapping[str, str]) -> dict[str, Any]:
    """Collects the programs' descriptions, for which it imports all of them.

    Args:
        programs: Their modules, by command.

    Returns:
        Values for JSON: "programs", by command, each with its help, its flags, the
        cells that it trains and whether it takes arguments; and "tables", by PAPER,
        NAME and SCALE, see `table_runs.describe`.
    """
    from experiments.common import cells, program
    from tff_fedss import runtime

    # TFF's default context prints an error if a program ends without using it.
    runtime.set_in_process_context()
    by_module: dict[str, list[str]] = {}
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for paper in cells.PAPERS:
        for (name, scale), table in cells.tables_of(paper).items():
            scales = tables.setdefault(paper, {}).setdefault(name, {})
            scales[scale] = table_runs.describe(table)
            names = (f"{name}/{scale}/{cell}" for cell in table.cells)
            by_module.setdefault(table.program, []).extend(names)
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
            "flags": {
                name: _of_flag(own, getattr(defaults, name))
                for name, own in defaults.flags().items()
            },
            "cells": by_module.get(module, []) if paper else [],
        }
    return {"programs": found, "tables": tables}


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
    own = said["programs"][command]
    if command_line.asks_for_help(arguments):
        command_line.print_help(own["help"])
    # A cell's flags and absl's own kinds of help are left to the program.
    if not any(a.lstrip("-").startswith(("cell=", "help")) for a in arguments):
        fields = [
            (name, _KINDS[flag["kind"]] | None, _as_field(flag))
            for name, flag in own["flags"].items()
        ]
        defaults = dataclasses.make_dataclass(
            "Config", fields, bases=(config.Config,), frozen=True
        )()
        app.define_help_flags()
        config.define(defaults, flags.FLAGS)
        given = [command, *arguments]
        rest = command_line.parse(flags.FLAGS, given, own["takes_arguments"])
        try:
            read = config.read(defaults, flags.FLAGS)
            if command == "table" and read.list:
                _list_runs(said["tables"], read, rest[1:])
                sys.exit()
        except InvalidInputError as error:
            command_line.fail(command_line.with_flags(str(error), defaults))
    sys.exit(GO_ON)


def _list_runs(
    said: Mapping[str, Any], read: config.Config, arguments: Sequence[str]
) -> None:
    own_flags = {}

    def tables_of(paper: str) -> table_runs.Tables:
        found = {}
        for name, scales in said[paper].items():
            for scale, description in scales.items():
                found[name, scale] = table_runs.described(description)
                own_flags[description["program"]] = description["flags"]
        return found

    found = table_runs.find(
        read, arguments, said, tables_of, lambda table: own_flags[table.program]
    )
    table_runs.print_commands(found.jobs)


def _of_flag(own: config.Flag, default: Any) -> dict[str, Any]:
    return {
        **{name: getattr(own, name) for name in _COPIED},
        "kind": own.kind.__name__,
        "default": default,
        "choices": own.choices and list(own.choices),
        "words": own.words
        and {
            name: {key: _of_option(option) for key, option in word.options.items()}
            for name, word in own.words.items()
        },
    }


def _as_field(flag: Mapping[str, Any]) -> Any:
    default, words = flag["default"], flag["words"]
    return config.flag(
        tuple(default) if isinstance(default, list) else default,
        **{name: flag[name] for name in _COPIED},
        choices=flag["choices"],
        words=words
        and {
            name: option_words.Word(
                options={key: _as_option(option) for key, option in options.items()}
            )
            for name, options in words.items()
        },
    )


def _of_option(option: option_words.Option) -> dict[str, Any]:
    is_needed = option.default is option_words.NEEDED
    return {
        "kind": option.kind.__name__,
        "default": None if is_needed else option.default,
        "is_needed": is_needed,
        "choices": option.choices,
        "range": dataclasses.astuple(option.range),
    }


def _as_option(option: Mapping[str, Any]) -> option_words.Option:
    default = option_words.NEEDED if option["is_needed"] else option["default"]
    return option_words.Option(
        _OPTION_KINDS[option["kind"]],
        tuple(default) if isinstance(default, list) else default,
        tuple(option["choices"]),
        option_words.Range(*option["range"]),
    )


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
        return json.loads(path.read_text())
    said = collect(dict(line.split()[:2] for line in programs.splitlines()))
    text = json.dumps(said)
    with contextlib.suppress(InvalidInputError, RunStoppedError):
        files.write_text(path, text)
    return json.loads(text)  # As if read from the file: JSON has no tuples.


def _main(folder: str, programs: str, command: str, *arguments: str) -> None:
    is_help = command_line.asks_for_help(arguments)
    if not is_help and not is_fresh(pathlib.Path(folder, _FILE)):
        sys.exit(GO_ON)
    answer(fetch(folder, programs), command, arguments)


if __name__ == "__main__":
    _main(*sys.argv[1:])
