"""The page of a table of any paper, from the files of its runs.

`read` reads and checks the runs of a table, `frame` makes a row of pandas of each, and
`page` groups them by cell: for each metric the mean over seeds ± their standard
deviation, with the paper's number beside it; then differences of cells, seed by seed,
with 95 % intervals; then curves. Only finished runs count; the header has their number
and the total. A `cells.Table` describes its page as data. The paper's numbers are in
experiments/PAPER/paper.csv: `table` and `cell` name the cell (its `Cell.paper`, by
default "ROW, COLUMN"), `metric` the column of metrics.csv, `value` and `std` what is
printed, `source` the place in the paper. Numbers that the text does not give are left
out.

A function in `Table.notes` gets the table, the runs and the paper's numbers and returns
items of the list below the tables; `Table.draw` gets the table, the runs, the paper's
numbers, a folder and the stem of the names of files, draws there, and returns lines of
the page. Figures get the paper's numbers at the scale "paper" alone: at another scale
the task differs, and a mark beside our curves would mislead.
"""

import pathlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

import pandas as pd

from experiments.common import option_words, plots, results, sources
from experiments.common import page as page_lib
from experiments.common.cells import Cell, Table
from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import provenance

_MOST_CURVES = 12
# Number of exceptional cells or runs that are listed.
_MOST_NAMES = 4
_PLACES = ("data_dir", "pretrained")
# Flags in which a run need not agree with its cell.
_FREE = frozenset({*_PLACES, "runtime"})


def write_table(
    name: tuple[str, str],
    table: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
) -> str:
    """Writes NAME.md, NAME.csv (a row for each run) and figures; returns the page.

    They stand beside the runs.

    Args:
        name: The name of the table, and its scale.
        results_dir: Holds CELL/seedK/ or their archive; or the archive.
        num_seeds: The expected number of seeds of each cell.
        command: The command that writes it, argument by argument.

    Raises:
        InvalidInputError: If there is no run of the table, a file of one is damaged, or
            runs do not belong together; it names the file.
    """
    runs = read(table, results_dir)
    number, scale = name
    stem = f"table{number}" if number.isdecimal() else number
    folder = folder_of(results_dir)
    measured = frame(table, runs)
    paper = _paper_values(table, number)
    comparable_paper = paper if scale == "paper" else paper.iloc[:0]
    draw = table.draw or draw_curves
    text = "\n".join(
        [
            f"# {table.title}",
            "",
            *header(runs, command, num_seeds),
            "",
            *page_lib.page(table, runs, measured, paper, num_seeds),
            *page_lib.notes(table, runs, measured, paper),
            *draw(table, runs, comparable_paper, folder, stem),
        ]
    )
    text = text.rstrip("\n") + "\n"
    files.write_text(folder / f"{stem}.md", text)
    files.write_text(folder / f"{stem}.csv", measured.to_csv(index=False))
    return text


# --- The runs ---------------------------------------------------------------------


def folder_of(results_dir: pathlib.Path) -> pathlib.Path:
    """Returns where the page of a results folder, or of an archive, stands."""
    return results_dir if results_dir.is_dir() else results_dir.parent


def read(table: Table, results_dir: pathlib.Path) -> dict[str, list[results.Run]]:
    """Reads the runs of a table's cells, in its order; [] for a cell without one.

    Raises:
        InvalidInputError: If there is no run, a file is damaged, a run is not of its
            cell, or runs do not belong together.
    """
    found = sources.find_cells(pathlib.Path(results_dir))
    own = f"{table.results}/"  # In an archive of several tables.
    prefix = own if any(name.startswith(own) for name in found) else ""
    runs = {
        name: [results.read_run(x, table.kind) for x in found.get(prefix + name, ())]
        for name in table.cells
    }
    if not any(runs.values()):
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no run of {', '.join(table.cells)}."
        )
    firsts: dict[str, results.Run] = {}
    for name, own in runs.items():
        for run in own:
            _check_is_of_cell(run, table.cells[name], firsts)
    results.check_comparable(runs, set(table.differing_settings()))
    return runs


def _check_is_of_cell(
    run: results.Run, cell: Cell, firsts: dict[str, results.Run]
) -> None:
    """Checks that a run has its cell's flags, and defaults for other cell flags.

    `firsts` keeps, by flag, the first run whose cell does not set the flag: its value
    is taken for the default.
    """
    free = {*_FREE, run.kind.length}
    unset = run.kind.cell_flags - {*cell.settings, *free, *results.MEASUREMENT}
    for flag in sorted(unset):
        first = firsts.setdefault(flag, run)
        theirs, own = (x.flags.get(flag, "(unset)") for x in (first, run))
        if theirs != own:
            raise InvalidInputError(
                f"{run.source.at('flags.txt')}: --{flag}={own}, but {first.path} has "
                f"{theirs}, and neither cell sets it."
            )
    for flag, value in option_words.as_texts(cell.settings).items():
        theirs = run.flags.get(flag)
        if flag not in free and theirs is not None and not _is_same(theirs, value):
            raise InvalidInputError(
                f"{run.source.at('flags.txt')}: --{flag}={theirs}, but the cell "
                f"{cell.name} has {value}."
            )


def _is_same(first: str, second: str) -> bool:
    """Returns whether two texts are one value of a flag, such as 0.10 and 0.1."""
    try:
        return float(first) == float(second)
    except ValueError:
        return first == second


def frame(table: Table, runs: page_lib.Runs) -> pd.DataFrame:
    """Returns a row for each run: cell, row, column, seed, rounds, hours and metrics.

    A metric is its value after the last round in metrics.csv. Unfinished runs have
    none, and finished ones only those that they measured.

    Raises:
        InvalidInputError: If a finished run has none of the compared metrics.
    """
    compared = {m.name for m in table.metrics if m.difference_scale}
    rows = []
    for name, own in runs.items():
        cell = table.cells[name]
        for run in own:
            row = {
                "cell": name,
                "row": page_lib.row_of(cell),
                "column": cell.column,
                "seed": run.seed,
                "is_done": run.is_done,
                "rounds": run.rounds_done,
                "hours": run.hours,
                "collapsed": run.has_collapsed,
            }
            last = run.rows[-1] if run.is_done else {}
            if run.is_done and compared.isdisjoint(last):
                run.final(table.metrics[0].name)
            for metric in table.metrics:
                row[metric.name] = last.get(metric.name)
                if table.has_late and run.is_done:
                    row[page_lib.LATE + metric.name] = run.late_gain(metric.name)
            rows.append(row)
    numbers = [m.name for m in table.metrics]
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))


# --- The paper's numbers ----------------------------------------------------------


def _paper_values(table: Table, number: str) -> pd.DataFrame:
    """Returns the rows of paper.csv of a table; values are texts, as printed there."""
    path = resources.files(f"experiments.{table.kind.paper}") / "paper.csv"
    columns = ["table", "cell", "metric", "value", "std", "source"]
    if not path.is_file():
        return pd.DataFrame(columns=columns)
    with path.open() as file:
        values = pd.read_csv(file, dtype=str, keep_default_na=False)
    return values[values["table"] == number]


# --- Curves -----------------------------------------------------------------------


def draw_curves(
    table: Table,
    runs: page_lib.Runs,
    paper: pd.DataFrame,
    folder: pathlib.Path,
    stem: str,
) -> list[str]:
    """Draws the metric by round, a panel for each of `Table.curves`, as STEM.png.

    If there are many cells, those with the highest last values are drawn.

    Returns:
        The line of the page that shows it; none without measurements.
    """
    first = table.metrics[0]
    drawn = page_lib.drawn(runs)

    def highest(name: str) -> float:
        curves = [run.curve(first.name) for run in drawn[name]]
        return max((y for curve in curves for _, y in curve[-1:]), default=0.0)

    names = sorted(drawn, key=highest, reverse=True)[:_MOST_CURVES]

    def series(metric: str) -> list[plots.Series]:
        return [
            plots.Series(
                table.cells[name].title,
                plots.style(i),
                [r.rows for r in drawn[name]],
                page_lib.paper_value(paper, table.cells[name], metric),
            )
            for i, name in enumerate(name for name in drawn if name in names)
        ]

    panels = [
        plots.panel(
            series(metric.name),
            table.x,
            metric.name,
            metric.title + " (%)" * (metric.scale == 100 and "%" not in metric.title),
            scale=metric.scale,
        )
        for metric in table.curves or (first,)
    ]
    if not plots.write_curves(folder / f"{stem}.png", panels):
        return []
    titles = ", ".join(panel.ylabel for panel in panels)
    return [f"![{titles} by {table.x}]({stem}.png)"]


# --- The header -------------------------------------------------------------------


def header(cells: page_lib.Runs, command: Sequence[str], num_seeds: int) -> list[str]:
    """Describes runs in a list: their number, commit, machine and so on.

    There must be a run. Cells may have more seeds than the expected number.
    """
    runs = [run for own in cells.values() for run in own]
    described = [run.description for run in runs if run.description]
    machines = [d["machine"] for d in described if "machine" in d]
    versions = [d["versions"] for d in described if "versions" in d]
    commits = _distinct(str(v.get("git_commit") or "unknown") for v in versions)
    others = "; ".join(_other_differences(runs))
    hours = sum(run.hours for run in runs)
    found = {
        f"{runs[0].kind.length.capitalize()}": _rounds(cells),
        "Seeds": _seeds(cells, num_seeds),
        "Command": f"`{_as_shell(command)}`",
        "Runs": _commands(cells),
        "Versions": _distinct(map(_version_text, versions)),
        "Commit": _commits(commits),
        "Machine": _distinct(map(_machine_text, machines)),
        "Hours": hours
        and f"{hours:.2f}, summed over the runs (their rounds and evaluations)",
        "Settings that differ between cells": others,
    }
    return [f"- {name}: {text}" for name, text in found.items() if text]


def of_this_process(flags: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Describes the provenance of numbers that this process has measured."""
    described = provenance.describe(flags)
    versions = described["versions"]
    return [
        f"- Command: `{_as_shell(command)}`",
        f"- Versions: {_version_text(versions)}",
        f"- Commit: {_commits(str(versions['git_commit'] or 'unknown'))}",
        f"- Machine: {_machine_text(described['machine'])}",
    ]


def _commits(commits: str) -> str:
    note = ' ("+": with changes that are in no commit)' if "+" in commits else ""
    return commits + note


def _rounds(cells: page_lib.Runs) -> str:
    """Returns the number of rounds of the runs, and which are unfinished."""
    runs = [(name, run) for name, own in cells.items() for run in own]
    by_length = _grouped((f"{run.num_rounds:,}", name) for name, run in runs)
    text = _by_group(by_length, False) if len(by_length) > 1 else "".join(by_length)
    unfinished = [
        f"{name} seed {run.seed} (after {run.rounds_done:,})"
        for name, run in runs
        if not run.is_done
    ]
    return text + (f"; not there yet: {_some(unfinished)}" if unfinished else "")


def _seeds(cells: page_lib.Runs, num_seeds: int) -> str:
    """Returns the seeds of the cells, and how many of the expected runs are done."""
    begun = {name: own for name, own in cells.items() if own}
    seeds = _grouped(
        (", ".join(str(run.seed) for run in own), name) for name, own in begun.items()
    )
    missing = [name for name in cells if name not in begun]
    num_done = sum(run.is_done for own in begun.values() for run in own)
    expected = sum(max(num_seeds, len(own)) for own in cells.values())
    none_yet = f"none yet in {_cells(missing)}; " if missing else ""
    return (
        f"{_by_group(seeds, not missing)}; {none_yet}{num_done} of {expected} runs are "
        "done"
    )


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the distinct cells of each value, the most frequent value first."""
    groups: dict[str, dict[str, None]] = {}
    for value, cell in pairs:
        groups.setdefault(value, {})[cell] = None
    by_size = sorted(groups.items(), key=lambda item: -len(item[1]))
    return {value: list(names) for value, names in by_size}


def _by_group(groups: Mapping[str, Sequence[str]], is_all: bool) -> str:
    """Writes values with the cells that have them."""
    if len(groups) == 1 and is_all:
        ((value, names),) = groups.items()
        return f"{value} in each of {len(names)} cells" if len(names) > 1 else value
    return "; ".join(f"{value} in {_cells(names)}" for value, names in groups.items())


def _cells(names: Sequence[str]) -> str:
    return f"{len(names)} cells" if len(names) > _MOST_NAMES else ", ".join(names)


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMES
    shown = ", ".join(texts[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _as_shell(command: Sequence[str]) -> str:
    return " ".join(shlex.join(command).split())


def _commands(cells: page_lib.Runs) -> str:
    """Returns the commands of the runs, with CELL and SEED for their differences."""
    patterns: dict[str, None] = {}
    num_unknown = 0
    for name, runs in cells.items():
        for run in runs:
            command = (run.description or {}).get("command")
            if not command:
                num_unknown += 1
                continue
            own = [_without_names(part, name, run.seed) for part in command[1:]]
            patterns[_as_shell(["./run.sh", *run.kind.program.split(), *own])] = None
    texts = [f"`{pattern}`" for pattern in patterns]
    if num_unknown:
        texts.append(f"{num_unknown} unknown")
    return _some(texts)


def _without_names(argument: str, cell: str, seed: int) -> str:
    argument = re.sub(rf"(?<![^/=]){re.escape(cell)}(?=[/.]|$)", "CELL", argument)
    return re.sub(rf"(?<=[/-])(-?seed=?){seed}(?=/|$)", r"\1SEED", argument)


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(sorted(set(texts))) or "unknown"


def _version_text(versions: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {version}"
        for name, version in versions.items()
        if name != "git_commit"
    )


def _machine_text(machine: Mapping) -> str:
    gpus = machine.get("gpus") or []
    gpus_text = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}" if gpus else "no GPU"
    return (
        f"{machine.get('processor') or 'unknown processor'}, {machine.get('cpus')} "
        f"CPUs, {machine.get('memory_gib')} GiB, {gpus_text}"
    )


def _other_differences(runs: Sequence[results.Run]) -> list[str]:
    """Returns flags that differ between cells and do not define them."""
    expected = {"seed", *_PLACES, *runs[0].kind.cell_flags}
    found = []
    for name in sorted({name for run in runs for name in run.flags} - expected):
        values = sorted({run.flags.get(name, "(unset)") for run in runs})
        if len(values) > 1:
            found.append(f"--{name}={' and '.join(values)}")
    return found
