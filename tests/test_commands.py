"""The commands of run.sh: each is explained, and has an example."""

import ast
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TABLE = re.search(r"<<'END'\n(.*?)\nEND", (ROOT / "run.sh").read_text(), re.DOTALL)[1]
PROGRAMS = [line.split(maxsplit=2) for line in TABLE.splitlines()]


def test_help_fits_a_screen():
    command = ["bash", str(ROOT / "run.sh"), "help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(text.splitlines()) <= 40
    assert len(PROGRAMS) <= 20
    for name, _, line in PROGRAMS:
        assert re.search(rf"^  {name} +{re.escape(line)}$", text, re.MULTILINE)


@pytest.mark.parametrize("name, module", [program[:2] for program in PROGRAMS])
def test_every_command_has_an_example(name, module):
    source = ROOT / f"{module.replace('.', '/')}.py"
    text = ast.get_docstring(ast.parse(source.read_text()))
    assert re.search(rf"^ +./run.sh {name}\b", text, re.MULTILINE)
