"""Quick answers to --help and wrong flags, before TensorFlow is loaded.

TensorFlow and TFF take about eight seconds to import. So the programs' help and flags
are kept in a file, which is written again when a source has changed. `./run.sh` calls
this before each program:

    python -m experiments.common.answers FOLDER "COMMAND MODULE ..." COMMAND ARGUMENTS

It answers, or exits with `GO_ON`, which means: run the program. The program itself
reports flags that are wrong for other reasons than their own value, such as one that
does not suit the data set. COMMAND may also be `completion`, for bash: the words are
the commands, their flags and the flags' values, and the papers' tables and cells.
Pressing Tab imports nothing.
"""

import contextlib
import dataclasses
import importlib
import os
import pathlib
import pickle
import runpy
import shlex
import sys
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

from absl import app, flags

from experiments.common import cells, config, option_words, sweep
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
        its help, its flags, the paper whose cells it trains and whether it takes
        arguments; and "tables", by paper, without what makes their pages.
    """
    from experiments.common import program
    from tff_fedss import runtime

    # TFF's default context prints an error if a program ends without using it.
    runtime.set_in_process_context()
    tables = {
        paper: {k: _plain_table(own) for k, own in cells.tables_of(paper).items()}
        for paper in cells.PAPERS
    }
    found = {}
    for command, module in programs.items():
        with mock.patch.object(program, "run") as run, warnings.catch_warnings():
            # Other modules have also imported this one.
            warnings.simplefilter("ignore", RuntimeWarning)
            runpy.run_module(module, run_name="__main__")
        (_, defaults), options = run.call_args
        paper = options.get("paper")
        own = program.flags_of(defaults, paper)
        docstring = importlib.import_module(module).__doc__
        found[command] = {
            "help": config.help_of(docstring, own),
            "takes_arguments": options.get("takes_arguments", False),
            "flags": {name: _plain(flag) for name, flag in own.items()},
            "paper": paper,
        }
    return {"programs": found, "tables": tables}


def _plain_table(table: Any) -> Any:
    """Returns a table with what `sweep.find` reads of it."""
    read = ("paper", "length", "has_warm_starts")
    kind = types.SimpleNamespace(**{name: getattr(table.kind, name) for name in read})
    return dataclasses.replace(table, kind=kind, notes=(), draw=None)


def _plain(flag: config.Flag) -> config.Flag:
    """Returns a flag whose words are words alone, not rows of the library's tables."""
    words = (flag.words or {}).items()
    own = {name: option_words.Word(w.help, dict(w.options)) for name, w in words}
    return dataclasses.replace(flag, choices=tuple(flag.choices), words=own or None)


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
    if config.asks_for_help(arguments):
        config.print_help(program["help"])
    # absl's own kinds of help are left to the program.
    if any(a.lstrip("-").startswith("help") for a in arguments):
        sys.exit(GO_ON)
    app.define_help_flags()
    config.define(program["flags"], flags.FLAGS)
    given = [command, *arguments]
    rest = config.parse_arguments(given, program["takes_arguments"])
    try:
        tables_of = said["tables"].__getitem__
        if program["paper"] is not None and flags.FLAGS["cell"].value is not None:
            cells.find(program["paper"], flags.FLAGS["cell"].value, tables_of)
        values = config.read(program["flags"], flags.FLAGS)
        if command == "table":
            found = sweep.find(sweep.Config(**values), rest[1:], tables_of)
            if values["list"]:
                sweep.print_commands(found.jobs)
                sys.exit()
    except InvalidInputError as error:
        config.fail(config.with_flags(str(error), program["flags"]))
    except OSError:  # The program reports it.
        config.discard_output()
    sys.exit(GO_ON)


def is_fresh(path: pathlib.Path) -> bool:
    """Returns whether no source is newer than the file of `fetch`."""
    if not path.exists():
        return False
    written = path.stat().st_mtime
    sources = [_ROOT / "run.sh"]
    for folder in ("experiments", "tff_fedss", "data"):
        sources += (_ROOT / folder).rglob("*.py")
    # Broken links, such as an editor's lock of a source, do not count.
    return all(x.stat().st_mtime <= written for x in sources if x.exists())


def fetch(folder: str, programs: str) -> dict[str, Any]:
    """Returns the result of `collect`, from the file in a folder if that is fresh.

    Args:
        folder: Folder of the file; if it is not writable, nothing is kept.
        programs: A line for each: the command, its module, and its description.
    """
    path = pathlib.Path(folder, _FILE)
    if is_fresh(path):
        return pickle.loads(path.read_bytes())
    start = time.time()
    said = collect(dict(line.split()[:2] for line in programs.splitlines()))
    with contextlib.suppress(InvalidInputError, RunStoppedError):
        files.write(path, pickle.dumps(said))
        os.utime(path, (start, start))  # A source may be newer than what was read.
    return said


# --- Bash completion: `eval "$(./run.sh completion)"` -----------------------------

_SCRIPT = """
_tff_fedss() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} flag= key
  # Bash splits --flag=value into three words.
  if [[ $word == = ]]; then
    flag=$before word=
  elif [[ $before == = ]]; then
    flag=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  key="${COMP_WORDS[1]} $flag"
  if ((COMP_CWORD == 1)); then key=commands; fi
  COMPREPLY=($(compgen -W "${_tff_fedss_words[$key]:-}" -- "$word"))
  if [[ ${COMPREPLY[0]:-} == --*= ]]; then compopt -o nospace; fi
} 2> /dev/null
complete -o default -F _tff_fedss ./run.sh run.sh"""


def _words(said: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the words that may follow, from the result of `answers.collect`.

    Returns:
        Words by "commands", "COMMAND " and "COMMAND --flag".
    """
    others = ["setup", "test", "docs", "ray", "lock", "help"]
    found = {"commands": [*said["programs"], *others]}
    for command, own in said["programs"].items():
        values = {
            f"--{name}": list(flag.choices or flag.words or ())
            for name, flag in own["flags"].items()
        }
        if own["paper"] is not None:
            tables = said["tables"][own["paper"]].items()
            names = ("/".join([*key, name]) for key, t in tables for name in t.cells)
            values["--cell"] = list(names)
        follow = [f"{name}=" for name in values]
        if command == "table":
            names = (
                f"{p}/{name}" for p, own in said["tables"].items() for name, _ in own
            )
            follow = [*dict.fromkeys(names), *follow]
        found[f"{command} "] = follow
        found |= {f"{command} {name}": some for name, some in values.items() if some}
    return found


def script(said: Mapping[str, Any]) -> str:
    """Returns the script for bash, see `_words`."""
    lines = ["declare -gA _tff_fedss_words=("]
    for key, some in _words(said).items():
        lines.append(f"  [{shlex.quote(key)}]={shlex.quote(' '.join(some))}")
    return "\n".join([*lines, ")"]) + _SCRIPT


def _main(folder: str, programs: str, command: str, *arguments: str) -> None:
    if command == "completion":
        print(script(fetch(folder, programs)))
        return
    is_help = config.asks_for_help(arguments)
    if not is_help and not is_fresh(pathlib.Path(folder, _FILE)):
        sys.exit(GO_ON)
    answer(fetch(folder, programs), command, arguments)


if __name__ == "__main__":
    _main(*sys.argv[1:])
