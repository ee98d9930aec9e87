"""Figures 3 to 6 and 10 of the FedSS paper, from the metrics of a table's runs.

A method has the same style in all figures. Finished runs are drawn; a cell without one
is drawn up to the rounds that all its runs have.
"""

import pathlib

import numpy as np

from experiments.common import plots
from experiments.fedss.methods import METHODS
from experiments.fedss.table_results import (
    Cell,
    Results,
    Setting,
)
from tff_fedss import metrics, tasks


class NothingToDraw(Exception):
    """There are no data for a figure; the message lists the missing ones."""


def _style(setting: Setting) -> plots.Style:
    look = METHODS[setting.method].style
    if setting.is_corrected:
        return look
    return look._replace(linestyle=":", marker="v")


def _series(
    cell: Cell, label: str, look: plots.Style, paper: float | None = None
) -> plots.Series:
    runs = cell.finished or [run for run in cell.runs if run.rows]
    return plots.Series(label, look, [run.rows for run in runs], paper)


def _panel(results: Results, series: list[plots.Series], title: str) -> plots.Panel:
    is_top1 = results.task is tasks.Classification
    return plots.panel(
        series,
        "round",
        results.task.metric,
        "round",
        _metric_title(results),
        scale=100,
        title=title,
        from_zero=True,
        chance=100 / results.num_classes if is_top1 and results.num_classes else None,
    )


def _metric_title(results: Results) -> str:
    return f"{results.task.metric_title} on held-out images (%)"


def figure3(results: Results, path: pathlib.Path) -> None:
    """Draws learning curves by method, FedSS and NegOnly at the middle |S_k|.

    Raises:
        NothingToDraw: If no run has been evaluated.
    """
    sizes = results.num_negatives("fedss") or results.num_negatives("neg_only")
    middle = sizes[len(sizes) // 2] if sizes else None
    settings = [
        setting
        for method in METHODS
        for setting in (
            [Setting(method, middle, corrected) for corrected in (True, False)]
            if METHODS[method].draws_negatives
            else [Setting(method)]
        )
        if setting in results.cells
    ]
    series = [
        _series(results.cells[s], str(s), _style(s), results.paper.get(s))
        for s in settings
    ]
    title = f"{results.dataset_title}: learning curves"
    if not plots.write_curves(path, [_panel(results, series, title)]):
        raise NothingToDraw("no run has been evaluated")


def figure4(results: Results, path: pathlib.Path) -> None:
    """Draws the convergence of FedSS by |S_k|, with FullSoftmax.

    Both readings of the logit correction get a panel, if both were run.

    Raises:
        NothingToDraw: If no run of FedSS has been evaluated.
    """
    readings = sorted(
        {s.is_corrected for s in results.cells if s.method == "fedss"}, reverse=True
    )
    if not readings:
        raise NothingToDraw("there is no cell of FedSS")
    panels = []
    for corrected in readings:
        series = []
        for i, m in enumerate(results.num_negatives("fedss")):
            setting = Setting("fedss", m, corrected)
            if setting in results.cells:
                size = results.class_set_size(setting)
                label = f"m = {m}" if size is None else f"|S_k| = {size}"
                known = results.paper.get(setting)
                cell = results.cells[setting]
                series.append(_series(cell, label, plots.style(i), known))
        title = f"{results.dataset_title}: {Setting('fedss', None, corrected).title}"
        if not _panel(results, series, title).curves:
            continue
        full = Setting("full_softmax")
        if full in results.cells:
            known = results.paper.get(full)
            series.append(_series(results.cells[full], full.title, _style(full), known))
        panels.append(_panel(results, series, title))
    if not plots.write_curves(path, panels):
        raise NothingToDraw("no run of FedSS has been evaluated")


def _final(cell: Cell | None, metric: str) -> tuple[float, float] | None:
    """Returns mean and standard deviation over the finished runs, in percent."""
    if cell is None or not cell.finished:
        return None
    values = np.array([run.final(metric) for run in cell.finished])
    return float(values.mean()), float(plots.std_of(values))


def _seeds(cells: list[Cell], what: str) -> str:
    """Returns a note on the error bars."""
    counts = {len(cell.finished) for cell in cells}
    of = f"{min(counts)} to " * (len(counts) > 1) + f"{max(counts)} seeds"
    return f"{what}: mean of {of}; error bars: ± their standard deviation"


def transmitted_parameters(cell: Cell) -> float | None:
    """Returns the classifier parameters that a client gets, and sends, per round.

    Returns:
        A mean over clients, rounds and runs; None without clients.
    """
    sizes = [run.mean("classes_per_client") for run in cell.runs]
    known = [size for size in sizes if size is not None]
    if not known:
        return None
    embedding_dim = int(cell.runs[0].flags["embedding_dim"])
    return metrics.classifier_traffic(
        float(np.mean(known)),
        embedding_dim,
        asks_by_id=cell.setting.method != "full_softmax",
    ).parameters


def figure5(results: Results, path: pathlib.Path) -> None:
    """Draws the metric against transmitted classifier parameters (Figures 5 and 10).

    Raises:
        NothingToDraw: If no run with clients is finished.
    """
    by_line: dict[tuple[str, bool], list[tuple[float, float, float]]] = {}
    drawn, marks = [], []
    for setting, cell in results.cells.items():
        final = _final(cell, results.task.metric)
        parameters = transmitted_parameters(cell)
        if final is not None and parameters is not None:
            line = by_line.setdefault((setting.method, setting.is_corrected), [])
            line.append((parameters, *final))
            drawn.append(cell)
            if setting in results.paper:
                marks.append((parameters, results.paper[setting], _style(setting)))
    if not by_line:
        raise NothingToDraw("no run of a method with clients is finished")
    with plots.figure(path, figsize=(6, 4.4)) as (figure, axes):
        for method in METHODS:
            for corrected in (True, False):
                if (method, corrected) in by_line:
                    setting = Setting(method, None, corrected)
                    x, mean, std = zip(*sorted(by_line[method, corrected]), strict=True)
                    look = _style(setting)._asdict()
                    axes.errorbar(x, mean, std, capsize=3, label=setting.title, **look)
        for mark in marks:
            plots.paper_mark(axes, *mark)
        central = results.cells.get(Setting("centralized"))
        final = _final(central, results.task.metric)
        if final is not None:
            drawn.append(central)
            axes.axhline(
                final[0],
                color=METHODS["centralized"].style.color,
                linestyle=METHODS["centralized"].style.linestyle,
                label="Centralized (nothing is transmitted)",
            )
        plots.log_axis(axes, "x")
        axes.set(
            xlabel="classifier parameters to and from a client, per round",
            ylabel=_metric_title(results),
            title=f"{results.dataset_title}: {results.task.metric_title} against "
            "traffic",
        )
        axes.set_ylim(bottom=0)
        plots.add_legend(figure, [axes])
        figure.supxlabel(_seeds(drawn, "points"), fontsize="small")


def compositions(results: Results) -> list[tuple[Cell, Cell]]:
    """Pairs FedSS with m negatives and NegOnly with m + |P_k| - 1 (section 4.4).

    The paper's NegOnly draws exactly as many more classes as a client has; ours draws a
    number that is fixed for all clients, so the nearest one is used, within 5 %. Both
    have the logit correction, or neither.

    Args:
        results: The runs; FedSS in both readings if both exist.
    """
    sizes = results.num_negatives("fedss")
    # NegOnly with the m of FedSS belongs to the table.
    candidates = [m for m in results.num_negatives("neg_only") if m not in sizes]
    pairs = []
    for setting, cell in results.cells.items():
        if setting.method != "fedss" or results.mean_positives is None:
            continue
        wanted = setting.num_negatives + results.mean_positives - 1
        near = [m for m in candidates if abs(m - wanted) <= max(1, 0.05 * wanted)]
        if near:
            nearest = min(near, key=lambda m: abs(m - wanted))
            other = Setting("neg_only", nearest, setting.is_corrected)
            if other in results.cells:
                pairs.append((cell, results.cells[other]))
    return sorted(
        pairs,
        key=lambda pair: (
            pair[0].setting.num_negatives,
            not pair[0].setting.is_corrected,
        ),
    )


def figure6(results: Results, path: pathlib.Path) -> None:
    """Draws FedSS beside NegOnly with equally many classes that push (section 4.4).

    Bars without the logit correction are hatched.

    Args:
        results: The runs of the table figure6, and FedSS.
        path: The PNG.

    Raises:
        NothingToDraw: If no pair of FedSS with m and NegOnly with m + |P_k| - 1
            negatives is finished.
    """
    pairs = [pair for pair in compositions(results) if all(c.finished for c in pair)]
    if not pairs:
        raise NothingToDraw(
            "no pair of FedSS with m and NegOnly with m + |P_k| - 1 negatives is "
            "finished"
        )
    size = (max(6, 0.9 * len(pairs)), 4.4)
    colors = {name: method.style.color for name, method in METHODS.items()}
    colors["neg_only"] = "#F2C29D"  # Vermillion, lighter, also in a grey print.
    with plots.figure(path, figsize=size) as (figure, axes):
        for i, pair in enumerate(pairs):
            for cell, offset in zip(pair, (-0.2, 0.2), strict=True):
                mean, std = _final(cell, results.task.metric)
                axes.bar(
                    i + offset,
                    mean,
                    0.38,
                    yerr=std,
                    capsize=3,
                    color=colors[cell.setting.method],
                    hatch=None if cell.setting.is_corrected else "//",
                    edgecolor="white",
                    label=cell.setting.title,
                )
        labels = [
            f"{other.setting.num_negatives}\n({ours.setting.num_negatives})"
            for ours, other in pairs
        ]
        axes.set_xticks(range(len(pairs)), labels)
        axes.grid(axis="x", visible=False)
        axes.set(
            xlabel="classes that push an input (m of FedSS)",
            ylabel=_metric_title(results),
            title=f"{results.dataset_title}: composition of the negatives",
        )
        plots.add_legend(figure, [axes])
        cells = [cell for pair in pairs for cell in pair]
        figure.supxlabel(_seeds(cells, "bars"), fontsize="small")
