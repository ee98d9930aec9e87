"""Bash completion: `eval "$(./run.sh completion)"`, which prints what this writes.

The words are those of the programs: the flags and what they take, the tables of the
papers and their cells. Nothing is imported when Tab is pressed.
"""

import importlib
import shlex
import sys
from collections.abc import Mapping

from experiments.common import cells

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


def words(programs: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the words that may follow.

    Returns:
        By "commands", "COMMAND " and "COMMAND --flag".
    """
    found = {"commands": [*programs, "setup", "test", "ray", "lock", "help"]}
    by_module: dict[str, list[str]] = {}
    tables = []
    for paper in cells.PAPERS:
        for (name, scale), table in cells.tables_of(paper).items():
            tables.append(f"{paper}/{name}")
            names = (f"{name}/{scale}/{cell}" for cell in table.cells)
            by_module.setdefault(table.program, []).extend(names)
    for command, module in programs.items():
        values = {}
        config = getattr(importlib.import_module(module), "Config", None)
        for name, flag in config.flags().items() if config else ():
            values[f"--{name}"] = list(flag.choices or flag.words or ())
        if module in by_module:
            values["--cell"] = by_module[module]
        follow = [f"{name}=" for name in values]
        if command == "table":
            follow = [*dict.fromkeys(tables), *follow]
        found[f"{command} "] = follow
        found |= {f"{command} {name}": some for name, some in values.items() if some}
    return found


def script(programs: Mapping[str, str]) -> str:
    """Returns what bash evaluates, see `words`."""
    lines = ["declare -gA _tff_fedss_words=("]
    for key, some in words(programs).items():
        lines.append(f"  [{shlex.quote(key)}]={shlex.quote(' '.join(some))}")
    return "\n".join([*lines, ")"]) + _SCRIPT


if __name__ == "__main__":
    print(script(dict(argument.split("=") for argument in sys.argv[1:])))
