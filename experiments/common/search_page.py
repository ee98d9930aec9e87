"""The page of a table that the paper has not: cells side by side, with intervals.

Searches of a rate or a weight, and runs that go on for longer: `search.md`,
`search.csv` and `search.png` beside the runs.
"""

import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from experiments.common import output_files, plots, results, table, table_header
from experiments.common.cells import Table

_MOST_CURVES = 12
# The runs by the name of the cell.
Found = Mapping[str, Sequence[results.Run]]


def write(
    cells: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
    *,
    metric: str,
    metric_title: str,
    more: Callable[[Found], Sequence[str]] = lambda found: (),
) -> str:
    """Writes the page, its numbers and its curves.

    Args:
        cells: Those that there are to be.
        results_dir: Holds CELL/seedK/, the folders of the runs.
        num_seeds: How many seeds a cell is to have.
        command: What was given, argument by argument.
        metric: By which cells are compared: a column of metrics.csv that holds shares.
        metric_title: How to write it.
        more: Makes lines of the runs that end the page.

    Returns:
        The page.

    Raises:
        InvalidInputError: If there is no run, a file of one is damaged, or runs of a
            cell differ in more than the seed.
    """
    found = {
        name: [
            results.read_run(source, cells.report.KIND, cells.report.RUN)
            for source in sources
        ]
        for name, sources in results.find_cells(results_dir).items()
        if name in cells.cells
    }
    for runs in found.values():
        results.check_same_cell(runs)
    rows = [
        _row(cell.title, found.get(name, []), num_seeds, metric)
        for name, cell in cells.cells.items()
    ]
    output_files.write_csv(results_dir / "search.csv", rows)
    _draw(cells, found, metric, metric_title, results_dir / "search.png")
    begun = {name: runs for name, runs in found.items() if runs}
    head = table_header.head(cells.title, begun, command) if begun else ""
    late = results.late_note((run for runs in begun.values() for run in runs), metric)
    text = (
        f"{head}{table.as_markdown(_HEADER, map(_as_texts, rows))}\n\n"
        f"{metric_title} in percent after the last round: mean and standard deviation "
        "over seeds, and half of the mean's 95 % interval by Student's t. Last "
        f"quarter: how much of it came in the last quarter of the rounds.{late}\n"
    )
    text = "\n".join([text, *more(found)]).rstrip("\n") + "\n"
    output_files.write_text(results_dir / "search.md", text)
    return text


_HEADER = ("cell", "seeds", "mean", "±", "95 %", "last quarter", "hours")


def _row(title: str, runs: Sequence[results.Run], num_seeds: int, metric: str) -> dict:
    done = [run for run in runs if run.is_done]
    values = [run.final(metric) for run in done]
    rises = [rise for run in done if (rise := run.late_gain(metric)) is not None]
    return {
        "cell": title,
        "seeds": f"{len(done)}/{max(num_seeds, len(runs))}",
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "half_width": table.half_width(values),
        "last_quarter": statistics.fmean(rises) if rises else None,
        "hours": sum(run.hours for run in runs),
    }


def _as_texts(row: dict) -> list[str]:
    def text(value: float | None, form: str = "{:.1f}") -> str:
        return "" if value is None else form.format(value)

    return [
        row["cell"],
        row["seeds"],
        text(row["mean"]) or "-",
        text(row["std"]),
        text(row["half_width"]),
        text(row["last_quarter"], "{:+.1f}"),
        text(row["hours"], "{:.2f}"),
    ]


def _draw(
    cells: Table, found: dict, metric: str, metric_title: str, path: pathlib.Path
) -> None:
    """Draws the metric by round; of many cells, those that end highest."""
    measured = {name: runs for name, runs in found.items() if any(r.rows for r in runs)}
    if not measured:
        return

    def last(name: str) -> float:
        return max(
            (value for run in measured[name] for _, value in run.curve(metric)),
            default=0.0,
        )

    chosen = sorted(measured, key=last, reverse=True)[:_MOST_CURVES]
    series = [
        plots.Series(
            cells.cells[name].title, plots.style(i), [r.rows for r in measured[name]]
        )
        for i, name in enumerate(chosen)
    ]
    panel = plots.panel(
        series,
        "round",
        metric,
        "round",
        f"{metric_title} (%)",
        scale=100,
        from_zero=True,
    )
    plots.write_curves(path, [panel])
