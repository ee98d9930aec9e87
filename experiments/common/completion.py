"""Bash completion: `eval "$(./run.sh completion)"`, whose output this writes.

The words are the programs' flags and their values, and the papers' tables and cells.
Pressing Tab imports nothing.
"""

import shlex
import sys
from collections.abc import Mapping
from typing import Any

from experiments.common import answers

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


def words(said: Mapping[str, Any]) -> dict[str, list[str]]:
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
        if own["cells"]:
            values["--cell"] = own["cells"]
        follow = [f"{name}=" for name in values]
        if command == "table":
            tables = said["tables"].items()
            names = [f"{paper}/{name}" for paper, own in tables for name, _ in own]
            follow = [*dict.fromkeys(names), *follow]
        found[f"{command} "] = follow
        found |= {f"{command} {name}": some for name, some in values.items() if some}
    return found


def script(said: Mapping[str, Any]) -> str:
    """Returns the script for bash, see `words`."""
    lines = ["declare -gA _tff_fedss_words=("]
    for key, some in words(said).items():
        lines.append(f"  [{shlex.quote(key)}]={shlex.quote(' '.join(some))}")
    return "\n".join([*lines, ")"]) + _SCRIPT


if __name__ == "__main__":
    print(script(answers.fetch(*sys.argv[1:])))
