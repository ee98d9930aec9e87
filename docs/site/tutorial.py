"""Runs a tutorial (a .py file in cells, as of jupytext) and writes it as a page.

    ./run.sh python docs/site/tutorial.py TUTORIAL.py FOLDER

FOLDER gets NAME.md: text, code and, below each cell, what it has printed and its
figures. It is the working directory, for files that the page links to. The tutorial
runs in the project's own environment; no Jupyter is needed.
"""

import contextlib
import io
import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


def cells(text: str) -> list[tuple[bool, str, int]]:
    """Splits a tutorial: whether it is a cell of text, its source, its first line."""
    marks = list(CELL.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [
        (
            "[markdown]" in mark[1],
            text[mark.end() : end],
            text[: mark.end()].count("\n"),
        )
        for mark, end in zip(marks, ends, strict=True)
    ]


def render(path: pathlib.Path, folder: pathlib.Path) -> dict:
    """Runs the cells in turn, writes the page, and returns the tutorial's names."""
    folder.mkdir(parents=True, exist_ok=True)
    names, page, num_figures = {"__name__": "__main__", "__file__": str(path)}, [], 0
    for is_text, source, line in cells(path.read_text(encoding="utf-8")):
        if is_text:
            page.append(re.sub(r"^# ?", "", source.strip("\n"), flags=re.MULTILINE))
            continue
        page.append("```python\n" + source.strip("\n") + "\n```")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
            # At its own lines, where AutoGraph looks for the source of functions.
            exec(compile("\n" * line + source, str(path), "exec"), names)
        if printed.getvalue():
            page.append(f"```text\n{printed.getvalue().rstrip()}\n```")
        for number in plt.get_fignums():
            figure = plt.figure(number)
            num_figures += 1
            name = f"{path.stem}_{num_figures}.png"
            figure.savefig(folder / name, dpi=120, bbox_inches="tight")
            page.append(f"![{figure.get_label() or 'Figure'}]({name})")
            plt.close(figure)
    (folder / f"{path.stem}.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    return names


if __name__ == "__main__":
    render(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]))
