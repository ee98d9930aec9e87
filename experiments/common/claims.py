"""Makes the tables of the claims: what of each paper is reproduced.

    ./run.sh python -m experiments.common.claims

reads claims.csv (a row for each claim) and tables.csv (a row for each table, page or
test that carries a number) of docs/results, takes the numbers from the published runs,
and writes both files and, in README.md and claims/PAPER.md, what lies between
`<!-- made: NAME -->` and `<!-- end -->`. The rest of the pages is written by hand.

In claims.csv, `value` says what to take of the runs of the column `table`: `METRIC
CELL` is the mean over seeds, `METRIC CELL - CELL` the mean difference between runs of
the same seeds, `METRIC@ROUND` the value after that round instead of the last one.
Semicolons separate several. `low` and `high` are the ends of the 95 % interval of the
mean (Student's t); one seed has none.

A new row with a `value` needs no `ours`, `low` and `high`. Without one, `ours` is as
the page that the column `table` names has it.
"""

import functools
import itertools
import pathlib
import statistics
from collections.abc import Sequence

import pandas as pd

from experiments.common import cells, page, report, sources
from experiments.common import table as tables_lib

RESULTS = pathlib.Path(__file__).parents[2] / "docs" / "results"

PAPERS = {
    "fedss": "FedSS",
    "rf_softmax": "RF-softmax",
    "partial_fc": "Partial FC",
    "leap": "LEAP",
    "moco": "focal contrastive",
}
VERDICTS = ("reproduced", "partly", "not reproduced", "cannot be run here", "not run")
EXACT = ("counted", "tested")  # How a claim was verified, if it was not measured.


# --- The numbers ------------------------------------------------------------------


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
            commits = {run.description["versions"]["git_commit"] for run in runs}
            commits = {(commit or "unknown")[:7] for commit in commits}
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
        values = tables_lib.between(*sides, metric.difference_scale)
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


# --- The pages --------------------------------------------------------------------


def ours(row: pd.Series) -> str:
    """Writes what was measured and its numbers: `A − B: +9.6 [+7.1, +12.1]`."""
    numbers = itertools.zip_longest(*(parts(row[x]) for x in ("ours", "low", "high")))
    texts = [mean + f" [{low}, {high}]" * bool(low) for mean, low, high in numbers]
    return ": ".join(filter(None, (row["measure"], ", ".join(texts))))


def counts(claims: pd.DataFrame) -> str:
    """Writes the table of the verdicts by paper."""
    rows = []
    for paper in (*PAPERS, ""):
        own = claims[(claims["paper"] == paper) | (paper == "")]
        verdicts = [(own["verdict"] == verdict).sum() for verdict in VERDICTS]
        measured = ((own["verdict"] == VERDICTS[0]) & (own["how"] == "measured")).sum()
        name = f"[{PAPERS[paper]}](claims/{paper}.md)" if paper else "all"
        rows.append([name, len(own), verdicts[0], measured, *verdicts[1:]])
    header = ["", "claims", VERDICTS[0], "of which measured", *VERDICTS[1:]]
    return tables_lib.as_markdown(header, rows)


def claims_table(own: pd.DataFrame) -> str:
    """Writes the table of a paper's claims."""
    rows = []
    for _, row in own.iterrows():
        claim = f"{row['claim']} ({row['section']})"
        verdict = row["verdict"] + f" ({row['how']})" * (row["how"] in EXACT)
        rows.append([row["id"], claim, row["printed"], ours(row), verdict])
    header = ["#", "claim (section)", "paper", "ours [95 %]", "verdict"]
    return tables_lib.as_markdown(header, rows, left=range(5))


def tables_table(own: pd.DataFrame, tables: pd.DataFrame) -> str:
    """Writes where the numbers of a paper's claims are, and what made them."""
    rows = []
    for _, row in tables.iterrows():
        ids = [c["id"] for _, c in own.iterrows() if row["table"] in parts(c["table"])]
        if ids:
            link = f"[{row['table']}]({_link(row['table'])})"
            command = f"`{row['command']}`"
            rows.append([link, ", ".join(ids), command, row["commit"], row["hours"]])
    header = ["where", "claims", "command", "commit", "hours"]
    return tables_lib.as_markdown(header, rows, left=range(5))


def _link(table: str) -> str:
    """The page of a table, seen from docs/results/claims."""
    root = "../../../" if table.startswith("tests/") else "../"
    pages = sorted((RESULTS / table).glob("*.md"), key=lambda x: x.name != "README.md")
    return root + table + (f"/{pages[0].name}" if pages else "")


def made() -> dict[pathlib.Path, str]:
    """Returns the texts of all files that are made, whole, by path."""
    claims, tables = map(read, ("claims.csv", "tables.csv"))
    fill(claims, tables)
    texts = {
        RESULTS / "claims.csv": claims.to_csv(index=False),
        RESULTS / "tables.csv": tables.to_csv(index=False),
    }
    for path in (RESULTS / "README.md", *(RESULTS / f"claims/{p}.md" for p in PAPERS)):
        own = claims[claims["paper"] == path.stem]
        blocks = {"counts": counts(claims)}
        if len(own):
            blocks |= {"claims": claims_table(own), "tables": tables_table(own, tables)}
        texts[path] = path.read_text()
        for name, block in blocks.items():
            start, end = f"<!-- made: {name} -->\n", "<!-- end -->"
            before, found, rest = texts[path].partition(start)
            if found:
                after = rest.partition(end)[2]
                texts[path] = f"{before}{start}\n{block}\n\n{end}{after}"
    return texts


if __name__ == "__main__":
    for file, content in made().items():
        file.write_text(content)
