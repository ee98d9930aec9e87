"""The Python of docs/library.md and of the notebook runs, from top to bottom."""

import json
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent / "docs"


def test_the_examples_of_the_library_run():
    text = (DOCS / "library.md").read_text()
    names = {}
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, "docs/library.md", "exec"), names)
    # All images are on a client, and all of them are the test: both count the same.
    by_tff = names["evaluation"].next(names["state"], names["clients"]).metrics
    by_tff = by_tff["client_work"]["eval"]["current_round_metrics"]
    ours = names["task"].evaluate(names["run"].weights)
    assert by_tff["top1"] == pytest.approx(ours["top1"])
    assert by_tff["num_examples"] == names["dataset"].num_test_examples


@pytest.mark.slow
def test_the_notebook_runs(capsys):
    notebook = json.loads((DOCS.parent / "examples" / "own_images.ipynb").read_text())
    names = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert names["curve"][-1] > 5 * names["task"].chance
    assert names["same"] > 5 * names["task"].chance
    assert "nearest image of the same class" in capsys.readouterr().out
