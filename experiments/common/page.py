"""The tables and notes of a page, from a frame of runs; see `report`.

A number is the mean over the finished seeds of a cell ± their sample standard deviation
(ddof = 1); of `Table.best_of` it is the best seed. A difference is the mean over the
seeds that both cells have, ± half of its 95 % interval. The paper's numbers are copied
from paper.csv.
"""

import statistics
from collections.abc import Mapping, Sequence

import pandas as pd

from experiments.common import plots, results
from experiments.common import table as tables
from experiments.common.cells import Cell, Metric, Table

LATE = "late gain of "  # Begins the column of a metric's late gain in a frame.

# The runs of each cell, by its name.
Runs = Mapping[str, Sequence[results.Run]]


def drawn(runs: Runs) -> Runs:
    """Returns the runs of each cell that curves show: finished ones, if there are any.

    A cell that has not begun is left out.
    """
    begun = {name: [run for run in own if run.rows] for name, own in runs.items()}
    return {
        name: [run for run in own if run.is_done] or own
        for name, own in begun.items()
        if own
    }


def row_of(cell: Cell) -> str:
    """Returns a cell's row."""
    return cell.row or cell.title


def page(
    table: Table,
    runs: Runs,
    measured: pd.DataFrame,
    paper: pd.DataFrame,
    num_seeds: int,
) -> list[str]:
    """Returns the lines of the page below its header and above its notes."""
    metrics = [m for m in table.metrics if measured[m.name].notna().any()]
    metrics = metrics or list(table.metrics[:1])
    lines = []
    if not table.is_pivot:
        lines = _flat(table, runs, metrics, measured, paper, num_seeds)
    for metric in metrics if table.is_pivot else ():
        texts = {
            name: _text(table, metric, _runs_of(cell, measured), num_seeds)
            for name, cell in table.cells.items()
        }
        lines += _pivot(table, f"{metric.title}:", texts, paper, metric.name)
    return [*lines, *_differences(table, metrics, measured), *_late(table, measured)]


def _runs_of(cell: Cell, measured: pd.DataFrame) -> pd.DataFrame:
    return measured[measured["cell"] == cell.name]


def _text(table: Table, metric: Metric, own: pd.DataFrame, num_seeds: int) -> str:
    """Returns a cell's mean ± standard deviation, or best seed; notes missing ones."""
    known = own.dropna(subset=[metric.name])
    values = metric.scale * known[metric.name]
    if known.empty:
        return "" if own["is_done"].any() else "-"
    if known["row"].iloc[0] in table.best_of:
        best = known[metric.best_by or metric.name].idxmax()
        text = format(values[best], metric.form)
    else:
        text = format(statistics.fmean(values), metric.form)
        if len(values) > 1 and metric.has_std:
            text += f" ± {statistics.stdev(values):{metric.form}}"
    if table.is_pivot and len(values) < num_seeds:
        text += f" ({len(values)}/{num_seeds})"
    return text + " †" * bool(own["collapsed"].any())


def _flat(
    table: Table,
    runs: Runs,
    metrics: Sequence[Metric],
    measured: pd.DataFrame,
    paper: pd.DataFrame,
    num_seeds: int,
) -> list[str]:
    """A row for each cell, a column for each metric."""
    rows = []
    for cell in table.cells.values():
        own = _runs_of(cell, measured)
        seeds = f"{own['is_done'].sum()}/{max(num_seeds, len(own))}"
        row = {"cell": cell.title, "seeds": seeds}
        for metric in metrics:
            row[metric.title] = _text(table, metric, own, num_seeds)
            row[f"paper's {metric.title}"] = _printed(paper, cell, metric.name)
        if len(metrics) == 1:
            (metric,) = metrics
            half = tables.half_width(metric.scale * own[metric.name].dropna())
            row["95 %"] = "" if half is None else f"± {half:{metric.form}}"
        if table.has_late:
            row["last quarter"] = _late_gain(own, metrics[0])
        if table.reference:
            row |= _by_curve(table, cell, runs)
        row["hours"] = f"{own['hours'].sum():.2f}"
        rows.append(row)
    filled = pd.DataFrame(rows)
    filled = filled.loc[:, filled.ne("").any()]
    return [tables.as_markdown(filled.columns, filled.to_numpy()), ""]


def _pivot(
    table: Table,
    caption: str,
    texts: Mapping[str, str],
    paper: pd.DataFrame | None = None,
    metric: str = "",
) -> list[str]:
    """A row for each `Cell.row`, each followed by the paper's, and columns."""
    columns = _columns(table)
    rows: dict[str, dict[str, str]] = {}
    for name, cell in table.cells.items():
        row = row_of(cell)
        best = " (best)" * (row in table.best_of and paper is not None)
        rows.setdefault(row + best, {})[cell.column] = texts[name]
        if paper is not None:
            printed = _printed(paper, cell, metric)
            rows.setdefault(f"{row}, paper", {})[cell.column] = printed
    lines = [
        [row, *(own.get(column, "") for column in columns)]
        for row, own in rows.items()
        if any(own.values())
    ]
    header = ["", *(column or table.no_column for column in columns)]
    return [caption, "", tables.as_markdown(header, lines), ""] if lines else []


def _columns(table: Table) -> list[str]:
    """Returns the columns, that of cells without one last."""
    found = dict.fromkeys(cell.column for cell in table.cells.values())
    return sorted(found, key=lambda column: not column)


def _differences(
    table: Table, metrics: Sequence[Metric], measured: pd.DataFrame
) -> list[str]:
    """Returns the differences of the rows of `Table.pairs`, seed by seed.

    A table with columns has a table of differences for each metric; one without columns
    has a single one, with a column for each metric.
    """
    metrics = [metric for metric in metrics if metric.difference_scale]
    columns = _columns(table)
    if columns == [""]:
        groups = {"Differences": [(metric.title, metric, "") for metric in metrics]}
    else:
        groups = {
            f"Differences in {metric.title}": [
                (column or table.no_column, metric, column) for column in columns
            ]
            for metric in metrics
        }
    lines = []
    for title, places in groups.items():
        rows = []
        for first, second in table.pairs:
            other = second if isinstance(second, str) else "{} ({})".format(*second)
            texts = [
                _difference(table, metric, measured, (first, second), column)
                for _, metric, column in places
            ]
            if any(texts):
                rows.append([f"{first} − {other}", *texts])
        if rows:
            in_points = ", in points" * (places[0][1].difference_scale == 100)
            header = ["", *(name for name, _, _ in places)]
            caption = f"{title}{in_points}: {tables.CAPTION}"
            lines += [caption, "", tables.as_markdown(header, rows), ""]
    return lines


def _difference(
    table: Table, metric: Metric, measured: pd.DataFrame, pair: tuple, column: str
) -> str:
    """Returns a row's cell in a column (or its only cell) minus another row's."""
    first, second = pair
    places = [(first, column), second]
    if isinstance(second, str):
        known = {(row_of(cell), cell.column) for cell in table.cells.values()}
        places[1] = (second, column)
        if known.isdisjoint(places):
            return ""
        places = [x if x in known else (x[0], "") for x in places]
    if places[0] == places[1]:
        return ""
    at = measured.set_index(["row", "column", "seed"])[metric.name].sort_index()
    sides = [at[place] if place in at else pd.Series(dtype=float) for place in places]
    differences = tables.between(*sides, metric.difference_scale)
    return tables.signed(differences, metric.difference_digits)


# --- The paper's numbers ----------------------------------------------------------


def _printed(paper: pd.DataFrame, cell: Cell, metric: str) -> str:
    found = _of_paper(paper, cell, metric)
    return "" if found is None else _value_and_std(found)


def paper_value(paper: pd.DataFrame, cell: Cell, metric: str) -> float | None:
    """Returns the paper's value of a cell, in the unit that it prints; or None."""
    found = _of_paper(paper, cell, metric)
    return None if found is None else float(found["value"])


def _of_paper(paper: pd.DataFrame, cell: Cell, metric: str) -> pd.Series | None:
    found = paper[(paper["cell"] == _paper_key(cell)) & (paper["metric"] == metric)]
    return None if found.empty else found.iloc[0]


def _paper_key(cell: Cell) -> str:
    return cell.paper or ", ".join(x for x in (row_of(cell), cell.column) if x)


def _value_and_std(row: pd.Series) -> str:
    return row["value"] + (f" ± {row['std']}" if row["std"] else "")


# --- Numbers from curves ------------------------------------------------------


def _late_gain(own: pd.DataFrame, metric: Metric) -> str:
    """Returns the gain of the last quarter of rounds, see `results.Run.late_gain`."""
    column = own.get(LATE + metric.name, pd.Series(dtype=float))
    return tables.signed(column.astype(float).dropna().tolist())


def _late(table: Table, measured: pd.DataFrame) -> list[str]:
    """Returns the late gains as a table; a flat page has them in a column."""
    lines = []
    for metric in table.metrics if table.has_late and table.is_pivot else ():
        texts = {
            name: _late_gain(_runs_of(cell, measured), metric)
            for name, cell in table.cells.items()
        }
        caption = (
            f"Gain of {metric.title} in the last quarter of the rounds, in points; a "
            "method that still gains has not converged."
        )
        lines += _pivot(table, caption, texts)
    return lines


def _by_curve(table: Table, cell: Cell, runs: Runs) -> dict[str, str]:
    """Returns when the mean over seeds is highest and passes the reference's last."""
    metric = table.metrics[0]

    def curve(own: Cell) -> plots.Curve | None:
        done = [run.rows for run in runs[own.name] if run.is_done]
        series = plots.Series("", plots.REFERENCE, done)
        found = plots.panel([series], table.x, metric.name, "", scale=metric.scale)
        return found.curves[0] if found.curves else None

    row = {f"best {metric.title}": "", f"passes {table.reference}'s last after": ""}
    mine = curve(cell)
    if mine is None:
        return row
    best = int(mine.y.argmax())
    row[f"best {metric.title}"] = f"{mine.y[best]:{metric.form}} ({mine.x[best]:,})"
    for other in table.cells.values():
        if (row_of(other), other.column) == (table.reference, cell.column):
            theirs = curve(other)
            if theirs is not None:
                passed = mine.x[mine.y >= theirs.y[-1]]
                row[f"passes {table.reference}'s last after"] = (
                    f"{passed[0]:,}" if len(passed) else "not"
                )
    return row


# --- Notes ------------------------------------------------------------------------


def notes(
    table: Table, runs: Runs, measured: pd.DataFrame, paper: pd.DataFrame
) -> list[str]:
    """Returns the notes on the numbers, as items of a list."""
    found = [
        "Mean ± standard deviation over finished seeds (ddof = 1), after the last "
        "round."
    ]
    has_seeds = measured.loc[measured["is_done"], "cell"].duplicated().any()
    if not table.is_pivot and len(table.metrics) == 1 and has_seeds:
        found[0] += " 95 %: half of the mean's interval by Student's t."
    if table.best_of:
        found.append(f"Of {' and '.join(table.best_of)} the best seed.")
    if measured.loc[measured["is_done"], "cell"].nunique() < len(table.cells):
        found.append("`-`: no finished run.")
    if measured["collapsed"].any():
        by_cell = measured.groupby("cell", sort=False)["collapsed"]
        counts = by_cell.agg(["sum", "size"]).query("sum > 0")
        cells = ", ".join(
            f"{row['sum']} of {row['size']} of {cell}"
            for cell, row in counts.iterrows()
        )
        found.append(
            f"†: features collapsed ({cells}): all images look alike to the model, or "
            "it is at chance. Such a number says nothing of the method."
        )
    if table.has_late:
        late = _late_note(runs, table.metrics[0].name)
        found.append(
            f"Last quarter: the gain after 3/4 of the rounds, in points.{late}"
        )
    for note in table.notes:
        found += [note] if isinstance(note, str) else note(table, runs, paper)
    sources = ", ".join(dict.fromkeys(paper["source"]))
    if sources:
        found.append(f"The paper's numbers: {sources}.")
    return [*(f"- {note}" for note in found), "", *_other_numbers(table, paper)]


def _late_note(runs: Runs, metric: str) -> str:
    """Returns since which round a late gain counts; "" if it is the last quarter."""
    done = [run for own in runs.values() for run in own if run.is_done]
    starts = {(run.late_start(metric), run.num_rounds) for run in done}
    others = [
        f"round {start:,} of {rounds:,}"
        for start, rounds in starts
        if start not in (None, results.LATE * rounds)
    ]
    if not others:
        return ""
    return (
        f" It is counted from {', '.join(sorted(others))}, the measurement nearest to "
        "three quarters."
    )


def _other_numbers(table: Table, paper: pd.DataFrame) -> list[str]:
    """Returns the paper's numbers of cells that this table lacks."""
    keys = {_paper_key(cell) for cell in table.cells.values()}
    titles = {metric.name: metric.title for metric in table.metrics}
    other = paper[~paper["cell"].isin(keys) & paper["metric"].isin(titles)]
    if other.empty:
        return []
    metrics = [name for name in titles if (other["metric"] == name).any()]
    texts = other.assign(text=other.apply(_value_and_std, axis=1))
    by_cell = texts.pivot(index="cell", columns="metric", values="text").fillna("")
    rows = [[cell, *by_cell.loc[cell, metrics]] for cell in other["cell"].unique()]
    header = ["", *(titles[name] for name in metrics)]
    return ["The paper's other numbers:", "", tables.as_markdown(header, rows), ""]
