"""Figures of LEAP, SPLD and Random: curves by mini-batch, and the learned space."""

import pathlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn import manifold

from experiments.common import page, plots
from experiments.common.cells import Table
from experiments.common.page import Runs
from tff_fedss import training

METHODS = {"leap": "LEAP", "spld": "SPLD", "spl": "SPL", "random": "Random"}
_STYLES = {
    "leap": plots.style(0),
    "spld": plots.style(1),
    "spl": plots.style(2),
    "random": plots.REFERENCE,
}
# Axis labels by column of metrics.csv; the effective number of classes is e to the
# entropy of their shares. Accuracies and losses are LEAP's figures 2, 4,
# 6, 7, 9 and 10.
_PANELS = {
    "top1": {"ylabel": "test accuracy (%)", "scale": 100},
    "loss": {"ylabel": "loss on mini-batches"},
    "selected_share": {
        "ylabel": "examples selected (%)",
        "scale": 100,
        "from_zero": True,
    },
    "selected_classes": {
        "ylabel": "classes selected, effective",
        "from_zero": True,
    },
}


def draw(
    table: Table, runs: Runs, paper: pd.DataFrame, folder: pathlib.Path, stem: str
) -> list[str]:
    """Draws the curves of all settings, see `cells.Table.draw`.

    The embedding is drawn from the first run of LEAP with representations, which
    published runs do not have.
    """
    settings = list(dict.fromkeys(cell.column for cell in table.cells.values()))
    # Two panels in a row, two rows for a setting.
    grid = (len(settings) * len(_PANELS) // 2, 2)
    size = {"figsize": (8, 2.8 * grid[0] + 0.6), "squeeze": False}
    with plots.figure(folder / f"{stem}.png", *grid, **size) as (drawn, axes):
        panels = []
        for setting in settings:
            for column, options in _PANELS.items():
                series = [
                    plots.Series(
                        METHODS[cell.settings["method"]],
                        _STYLES[cell.settings["method"]],
                        [run.rows for run in runs[cell.name] if run.rows],
                        page.paper_value(paper, cell, column),
                    )
                    for cell in table.cells.values()
                    if cell.column == setting
                ]
                own = {"xlabel": "mini-batches", "title": setting, **options}
                panels.append(plots.panel(series, "steps", column, **own))
        for axis, panel in zip(axes.flat, panels, strict=True):
            plots.draw_panel(axis, panel)
        plots.add_legend(drawn, axes.flat)
        note = plots.seeds_note(curve for panel in panels for curve in panel.curves)
        drawn.supxlabel(note, fontsize="small")
    lines = [f"![Accuracy, loss and what is selected, by setting]({stem}.png)", ""]
    for cell in table.cells.values():
        for run in runs[cell.name][:1] if cell.settings["method"] == "leap" else ():
            path = run.path / "representations.npz"
            if path.exists():
                name = f"{cell.column}_embedding.png"
                plot_embedding(run.rows, training.read_arrays(path), folder / name)
                lines += [f"![{cell.column}: t-SNE]({name})", ""]
    return lines


def plot_embedding(
    rows: Sequence[training.Metrics],
    saved: dict[str, np.ndarray],
    path: pathlib.Path,
) -> None:
    """Draws the embedding's loss and its space (LEAP, figures 3, 5, 8 and 11).

    Args:
        rows: Rows of one run.
        saved: Its representations.npz.
        path: The PNG.
    """
    labels, names = saved["labels"], saved["class_names"].tolist()
    places = t_sne(saved["representations"])
    every_round = plots.Series("", _STYLES["leap"], [rows])
    loss = plots.panel(
        [every_round],
        "steps",
        "embedding_loss",
        "mini-batches of the student",
        "Magnet loss, mean of a round",
    )
    with plots.figure(path, 1, 2, figsize=(8, 3.6)) as (_, (left, right)):
        plots.draw_panel(left, loss)
        for label in np.unique(labels):
            look = plots.style(label)
            right.scatter(
                *places[labels == label].T,
                s=6,
                c=look.color,
                marker=look.marker,
                alpha=0.6,
                lw=0,
                label=names[label],
            )
        right.set(xticks=[], yticks=[], title="t-SNE of training images")
        if len(names) <= 10:
            right.legend(markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))


def t_sne(representations: np.ndarray) -> np.ndarray:
    """Lays points out in the plane (van der Maaten and Hinton, 2008).

    Args:
        representations: float32[examples, d], finite, at least 4 examples.

    Returns:
        float32[examples, 2].
    """
    perplexity = min(30.0, (len(representations) - 1) / 3)
    # Equal points have no principal components to start from.
    centered = representations - representations.mean(0)
    has_components = representations.shape[1] > 1 and np.ptp(centered, 0).max() > 0
    return manifold.TSNE(
        2,
        perplexity=perplexity,
        init="pca" if has_components else "random",
        random_state=0,
    ).fit_transform(representations)
