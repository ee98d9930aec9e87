"""The pages of FedSS's tables: metrics, pairs of methods, notes, and Figures 3 to 6.

A method has the same style in all figures. Finished runs are drawn; a cell without one
is drawn up to the rounds that all its runs have.
"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps, colors

from experiments.common import page, plots
from experiments.common.cells import Cell, Metric, Table, table
from experiments.common.page import Runs
from experiments.common.results import Run, RunKind
from experiments.fedss import methods
from experiments.fedss.cell_rows import row_of
from experiments.fedss.methods import METHODS
from tff_fedss import metrics, models, tasks

KIND = RunKind(
    paper="fedss",
    command="train",
    run_name=lambda flags: methods.name_of(flags["method"]),
    has_warm_starts=True,
    cell_flags=frozenset(
        {
            "method",
            "num_negatives",
            "logit_correction",
            "initial_norm",
            "client_learning_rate",
            "schedule",
            "server_optimizer",
            "train_top1",
        }
    ),
)
_SECOND = Metric(tasks.UNSEEN_METRIC, "MAP@10 of unseen classes", difference_scale=0)
_TRAIN_TOP1 = Metric("train_top1", "top-1 (train)", best_by="map_at_10")


def _pairs(cells: Sequence[Cell]) -> tuple:
    """Returns the pairs of rows to compare."""
    fedss, neg_only, pos_only, fedaws, full, central = map(
        row_of,
        ("fedss", "neg_only", "pos_only", "fedaws", "full_softmax", "centralized"),
    )
    of_paper = [full, central, neg_only, pos_only, fedaws]
    added = [m.title for m in METHODS.values() if m.title not in (fedss, *of_paper)]
    columns = [cell.column for cell in cells if cell.row == fedss]
    return (
        *((fedss, other) for other in (*of_paper, *added)),
        (fedss, row_of("fedss", False)),
        (row_of("fedss", False), row_of("neg_only", False)),
        (neg_only, row_of("neg_only", False)),
        (neg_only, full),
        (neg_only, pos_only),
        (neg_only, fedaws),
        (fedaws, pos_only),
        (central, full),
        *([(fedss, (fedss, columns[0]))] if columns else ()),
    )


def of_search(title: str, cells: Sequence[Cell], results: str, **others: Any) -> Table:
    """Makes a table that is not of the paper; `others` are attributes of `Table`."""
    names = [cell.settings.get("task", "classification") for cell in cells]
    kinds = [tasks.KINDS[name] for name in dict.fromkeys(names)]
    common = dict(
        kind=KIND,
        metrics=tuple(Metric(kind.metric, kind.metric_title) for kind in kinds),
        pairs=_pairs(cells) if any(cell.row for cell in cells) else (),
        has_late=True,
        no_column="no negatives",
    )
    return table(title, cells, results, **common | others)


def of_paper(
    title: str, cells: Sequence[Cell], results: str, traffic_figure: int = 5
) -> Table:
    """Makes a table of the paper, of cells with rows and columns.

    `traffic_figure` is the paper's number of the figure of its traffic.
    """
    best = {m.title for m in METHODS.values() if m.is_best_of_seeds}
    found = of_search(
        title,
        cells,
        results,
        is_pivot=True,
        best_of=tuple(cell.row for cell in cells if cell.row in best),
        notes=(_class_sets, _saving),
        draw=functools.partial(draw, traffic_figure=traffic_figure),
    )
    return dataclasses.replace(found, metrics=(*found.metrics, _SECOND))


def of_table_4(title: str, cells: Sequence[Cell], results: str) -> Table:
    """Makes Table 4, which also has the top-1 of training."""
    found = of_paper(title, cells, results)
    shown = (found.metrics[0], _TRAIN_TOP1)
    return dataclasses.replace(found, metrics=shown, draw=lambda *args: [])


def of_figure_6(title: str, cells: Sequence[Cell], results: str) -> Table:
    """Makes the table of Figure 6, with a column for each m of FedSS."""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    return of_search(
        title,
        cells,
        results,
        is_pivot=True,
        pairs=tuple(zip(rows[:2], rows[2:], strict=True)),
        notes=(
            "NegOnly draws m + |P_k| - 1 negatives, with the clients' mean |P_k|, so "
            "that as many classes push an input away as in FedSS with m (4.4).",
        ),
        draw=draw_composition,
    )


# --- Notes ------------------------------------------------------------------------


def _num_classes(runs: Runs) -> int | None:
    """Returns n; None without a finished run."""
    done = [run for own in runs.values() for run in own if run.is_done]
    return done[0].result["num_classes"] if done else None


def _mean_positives(runs: Runs) -> float | None:
    """Returns the mean |P_k| over rounds and runs; None if it is not measured."""
    means = [run.mean("positives_per_client") for own in runs.values() for run in own]
    known = [mean for mean in means if mean is not None]
    return statistics.fmean(known) if known else None


def _percent(percent: float) -> str:
    return f"{percent:.{1 if percent >= 1 else 2}f} %"


def _class_sets(table: Table, runs: Runs, paper: pd.DataFrame) -> list[str]:
    """Returns a note on how many classes a client has, and gets with m negatives."""
    n, positives = _num_classes(runs), _mean_positives(runs)
    if n is None or positives is None:
        return []
    sizes = {"without negatives": round(positives)}
    for cell in table.cells.values():
        if cell.column:
            sizes[f"at {cell.column}"] = (
                round(positives) + cell.settings["num_negatives"]
            )
    own = [
        f"{size:,} ({_percent(100 * size / n)} of n) {where}"
        for where, size in sizes.items()
    ]
    notes = [
        f"n = {n:,} classes, |P_k| = {positives:.1f} on average. |S_k| is |P_k|, "
        f"rounded, and m: {', '.join(own)}; FullSoftmax has all."
    ]
    printed = {
        metric: paper[paper["metric"] == metric].set_index("cell")["value"]
        for metric in ("class_set_size", "percent_of_n")
    }
    theirs = [
        f"{size} ({printed['percent_of_n'][column]} %) at {column}"
        for column, size in printed["class_set_size"].items()
        if f"at {column}" in sizes
    ]
    return notes + ([f"|S_k| in the paper: {', '.join(theirs)}."] if theirs else [])


def _saving(table: Table, runs: Runs, paper: pd.DataFrame) -> list[str]:
    """Returns a note on a client's savings at the largest |S_k| (4.3)."""
    n, positives = _num_classes(runs), _mean_positives(runs)
    drawing = [
        cell
        for cell in table.cells.values()
        if cell.settings["method"] == "fedss" and runs[cell.name]
    ]
    if n is None or positives is None or not drawing:
        return []
    largest = max(drawing, key=lambda cell: cell.settings["num_negatives"])
    run = runs[largest.name][0]
    bytes_down, classes = run.mean("bytes_down"), run.mean("classes_per_client")
    if bytes_down is None or classes is None:
        return []
    dim = int(run.flags["embedding_dim"])
    num_phi = round(bytes_down / metrics.BYTES_PER_PARAMETER - classes * dim)
    size = round(positives) + largest.settings["num_negatives"]
    saving = models.communication_saving(num_phi, n, dim, size)
    return [
        f"At |S_k| = {size:,} a client is spared {100 * saving:.1f} % of the model's "
        f"{num_phi + n * dim:,} parameters, in each direction."
    ]


# --- Figures ----------------------------------------------------------------------


class _Drawing(NamedTuple):
    """The measured cells of a table.

    Attributes:
        runs: The runs of each cell that are drawn, by its name.
    """

    table: Table
    runs: Runs
    paper: pd.DataFrame

    def cells(self, method: str | None = None) -> list[Cell]:
        """Returns the cells of a method, or of all, in the table's order."""
        of_table = (self.table.cells[name] for name in self.runs)
        return [x for x in of_table if method in (None, x.settings["method"])]

    def paper_value(self, cell: Cell) -> float | None:
        return page.paper_value(self.paper, cell, self.table.metrics[0].name)

    def series(self, cell: Cell, label: str, look: plots.Style) -> plots.Series:
        rows = [run.rows for run in self.runs[cell.name]]
        return plots.Series(label, look, rows, self.paper_value(cell))

    @property
    def ylabel(self) -> str:
        return f"{self.table.metrics[0].title} on held-out images (%)"

    def by_round(self, series: Sequence[plots.Series], title: str) -> plots.Panel:
        metric, n = self.table.metrics[0].name, _num_classes(self.runs)
        has_chance = n and metric == tasks.Classification.metric
        options = {"title": title, "chance": 100 / n if has_chance else None}
        return plots.panel(
            series, "round", metric, self.ylabel, scale=100, from_zero=True, **options
        )

    def by_number(
        self,
        number_of: Callable[[Cell, Sequence[Run]], float | None],
        xlabel: str,
        title: str,
    ) -> plots.Panel:
        """Draws the last values of finished runs by a number, a curve for each row."""
        metric = self.table.metrics[0].name
        rows: dict[str, tuple[plots.Style, list]] = {}
        for cell in self.cells():
            done = [run for run in self.runs[cell.name] if run.is_done]
            x = number_of(cell, done) if done else None
            if x is not None:
                _, points = rows.setdefault(page.row_of(cell), (_style(cell), []))
                y = np.array([run.final(metric) for run in done])
                points.append((x, y, self.paper_value(cell)))
        curves = []
        for row, (look, points) in rows.items():
            points.sort(key=lambda point: point[0])
            xs, ys, printed = zip(*points, strict=True)
            curves.append(
                plots.Curve(
                    row,
                    xs,
                    [y.mean() for y in ys],
                    look,
                    [plots.std_of(y) for y in ys],
                    max(map(len, ys)),
                    [(x, z) for x, z in zip(xs, printed, strict=True) if z is not None],
                )
            )
        return plots.Panel(
            curves,
            xlabel,
            self.ylabel,
            f"{title} (bars: ± std)",
            log="x",
            from_zero=True,
            has_bars=True,
        )


def _is_corrected(cell: Cell) -> bool:
    return cell.settings.get("logit_correction") != "none"


def _style(cell: Cell) -> plots.Style:
    look = METHODS[methods.name_of(cell.settings["method"])].style
    return look if _is_corrected(cell) else look._replace(linestyle=":", marker="v")


def draw(
    table: Table,
    runs: Runs,
    paper: pd.DataFrame,
    folder: pathlib.Path,
    stem: str,
    traffic_figure: int = 5,
) -> list[str]:
    """Draws Figures 3, 4 and 5 (or 10, of the appendix), see `cells.Table.draw`."""
    drawing = _Drawing(table, page.drawn(runs), paper)
    panels = [
        _by_method(drawing),
        *(_by_size(drawing, is_corrected) for is_corrected in (True, False)),
        _by_traffic(drawing, f"Figure {traffic_figure}: against traffic"),
    ]
    if not plots.write_curves(folder / f"{stem}.png", panels):
        return []
    return [
        f"![Figures 3, 4 and {traffic_figure}: learning curves by method, convergence "
        "of FedSS by |S_k|, metric against transmitted classifier parameters]"
        f"({stem}.png)"
    ]


def _by_method(drawing: _Drawing) -> plots.Panel:
    """Figure 3: learning curves by method, at the middle m."""
    drawn = drawing.cells()
    sizes = [
        sorted({x.settings["num_negatives"] for x in drawing.cells(method)})
        for method in ("fedss", "neg_only")
    ]
    ms = sizes[0] or sizes[1]
    middle = ms[len(ms) // 2] if ms else None
    series = [
        drawing.series(cell, page.row_of(cell), _style(cell))
        for cell in drawn
        if not cell.column or cell.settings["num_negatives"] == middle
    ]
    at = "" if middle is None else f", m = {middle}"
    return drawing.by_round(series, f"Figure 3: by method{at}")


def _by_size(drawing: _Drawing, is_corrected: bool) -> plots.Panel:
    """Figure 4: the convergence of FedSS by |S_k|, with FullSoftmax."""
    own = [x for x in drawing.cells("fedss") if _is_corrected(x) == is_corrected]
    own.sort(key=lambda cell: cell.settings["num_negatives"])
    positives = _mean_positives(drawing.runs)
    series = []
    for i, cell in enumerate(own):
        m = cell.settings["num_negatives"]
        size = f"m = {m}" if positives is None else f"|S_k| = {round(positives) + m}"
        # Shades of blue, FedSS's color.
        shade = colors.to_hex(colormaps["Blues"](0.4 + 0.6 * (i + 1) / len(own)))
        look = plots.style(i)._replace(color=shade)
        series.append(drawing.series(cell, f"FedSS, {size}", look))
    for cell in drawing.cells("full_softmax") if own else ():
        series.append(drawing.series(cell, page.row_of(cell), _style(cell)))
    return drawing.by_round(series, f"Figure 4: {row_of('fedss', is_corrected)}")


def _by_traffic(drawing: _Drawing, title: str) -> plots.Panel:
    """Figure 5: the metric against transmitted parameters, with Centralized."""

    def parameters(cell: Cell, runs: Sequence[Run]) -> float | None:
        """|S_k| d: the classifier parameters that a client receives, a mean."""
        sizes = [run.mean("classes_per_client") for run in runs]
        if None in sizes:
            return None
        return float(np.mean(sizes)) * int(runs[0].flags["embedding_dim"])

    xlabel = "classifier parameters sent to a client"
    panel = drawing.by_number(parameters, xlabel, title)
    xs = [x for curve in panel.curves for x in curve.x]
    for cell in drawing.cells("centralized") if xs else ():
        values = [
            run.final(drawing.table.metrics[0].name)
            for run in drawing.runs[cell.name]
            if run.is_done
        ]
        if values:
            ends = [min(xs), max(xs)]
            level = [statistics.fmean(values)] * 2
            curve = plots.Curve(page.row_of(cell), ends, level, _style(cell))
            panel = panel._replace(curves=[*panel.curves, curve])
    return panel


def draw_composition(
    table: Table, runs: Runs, paper: pd.DataFrame, folder: pathlib.Path, stem: str
) -> list[str]:
    """Draws Figure 6 (section 4.4), see `cells.Table.draw`."""
    panel = _Drawing(table, page.drawn(runs), paper).by_number(
        lambda cell, runs: int(cell.column.removeprefix("m = ")),
        "m of FedSS",
        "Figure 6: composition of the negatives",
    )
    if not plots.write_curves(folder / f"{stem}.png", [panel]):
        return []
    return [f"![Figure 6: FedSS and NegOnly with equally many classes]({stem}.png)"]
