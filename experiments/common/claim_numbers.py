"""The numbers of the claims, from the published runs; see `claims`.

In claims.csv, `value` says what to take of the runs of the column `table`: `METRIC
CELL` is the mean over seeds, `METRIC CELL - CELL` the mean difference between runs of
the same seeds, `METRIC@ROUND` the value after that round instead of the last one.
Semicolons separate several. `low` and `high` are the ends of the 95 % interval of the
mean (Student's t); one seed has none.
"""

import functools
import pathlib
import statistics
from collections.abc import Sequence

import pandas as pd

from experiments.common import cells, page, report, sources
from experiments.common import table as tables_lib

RESULTS = pathlib.Path(__file__).parents[2] / "docs" / "results"


def read(name: str) -> pd.DataFrame:
    """Reads a CSV file of docs/results; all values are texts."""
    return pd.read_csv(RESULTS / name, dtype=str, keep_default_na=False)


def parts(text: str) -> list[str]:
    """Splits a value of a CSV file at its semicolons; "" has no parts."""
    return [part.strip() for part in text.split(";")] if text else []


def fill(claims: pd.DataFrame, tables: pd.DataFrame) -> None:
    """Writes the numbers of the published runs into the rows of both files.

    Args:
        claims: claims.csv; a row with a `value` gets `ours`, `low` and `high`.
        tables: tables.csv; a row whose runs are published gets `commit` and `hours`.
    """
    commands = tables.set_index("table")["command"]
    for i, row in claims[claims["value"] != ""].iterrows():
        found = [published(table, commands[table]) for table in parts(row["table"])]
        numbers = zip(*(measure(x, found) for x in parts(row["value"])), strict=True)
        texts = ["; ".join(texts) if any(texts) else "" for texts in numbers]
        claims.loc[i, ["ours", "low", "high"]] = texts
    for i, row in tables.iterrows():
        if row["command"].startswith("table ") and _archive(row["table"]).exists():
            _, by_cell = published(row["table"], row["command"])
            runs = [run for own in by_cell.values() for run in own]
            commits = {run.description["versions"]["git_commit"][:7] for run in runs}
            hours = f"{sum(run.hours for run in runs):.1f}"
            tables.loc[i, ["commit", "hours"]] = ", ".join(sorted(commits)), hours


@functools.cache
def published(table: str, command: str) -> tuple[cells.Table, page.Runs]:
    """Returns the table that `./run.sh COMMAND` makes, and its published runs."""
    _, name, *options = command.split()
    paper, _, number = name.rpartition("/")
    scale = [option.removeprefix("--scale=") for option in options] or ["mini"]
    of_cells = cells.tables_of(paper or "fedss")[number, *scale]
    return of_cells, report.read(of_cells, _archive(table))


def _archive(table: str) -> pathlib.Path:
    """The archive of the runs of a folder, or of those beside a page."""
    path = RESULTS / table
    return (path if path.is_dir() else path.parent) / sources.ARCHIVE


def measure(
    value: str, found: Sequence[tuple[cells.Table, page.Runs]]
) -> tuple[str, str, str]:
    """Returns the mean that a `value` names, and the ends of its 95 % interval.

    Raises:
        KeyError: If no table has runs of a cell.
    """
    what, _, of = value.partition(" ")
    name, _, at = what.partition("@")
    sides = [_by_seed(name, at, cell, found) for cell in of.split(" - ")]
    # A column of metrics.csv that no page shows is written with three digits.
    known = {m.name: m for of_cells, _ in found for m in of_cells.metrics}
    metric = known.get(name) or cells.Metric(name, name, ".3f", 1, True, 1, 3)
    if len(sides) == 1:
        form, values = metric.form, (metric.scale * sides[0]).tolist()
    else:
        form = f"+.{metric.difference_digits}f"
        values = tables_lib.between(*sides, metric.difference_scale).values
    mean, half = statistics.fmean(values), tables_lib.half_width(values)
    if half is None:
        return format(mean, form), "", ""
    return tuple(format(x, form) for x in (mean, mean - half, mean + half))


def _by_seed(metric: str, at: str, cell: str, found: Sequence) -> pd.Series:
    """Returns a metric by seed, from the first table that has runs of the cell."""
    for _, runs in found:
        values = {
            run.seed: row[metric]
            for run in runs.get(cell, ())
            for row in run.rows
            if row["round"] == int(at or run.rounds_done)
        }
        if values:
            return pd.Series(values)
    raise KeyError(f"no run of {cell}")
