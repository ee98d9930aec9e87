"""Figures of LEAP, SPLD and Random: curves by mini-batch, and the learned space."""

import pathlib
from collections.abc import Sequence

import numpy as np
from sklearn import manifold

from experiments.common import plots
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
# Axis labels by column of metrics.csv. Accuracies and losses are LEAP's figures 2, 4,
# 6, 7, 9 and 10.
_PANELS = {
    "top1": {"ylabel": "test accuracy (%)", "scale": 100},
    "loss": {"ylabel": "loss on mini-batches"},
    "selected_share": {
        "ylabel": "selected share of the examples (%)",
        "scale": 100,
        "from_zero": True,
    },
    "selected_classes": {
        "ylabel": "selected classes (exp of entropy)",
        "from_zero": True,
    },
}


def draw(table: Table, runs: Runs, folder: pathlib.Path, stem: str) -> list[str]:
    """Draws the curves of all settings, see `cells.Table.draw`.

    The embedding is drawn from the first run of LEAP with representations, which
    published runs do not have.
    """
    settings = list(dict.fromkeys(cell.column for cell in table.cells.values()))
    grid, lines = (len(settings), len(_PANELS)), []
    size = {"figsize": (4.4 * grid[1], 3.4 * grid[0] + 0.6), "squeeze": False}
    with plots.figure(folder / f"{stem}.png", *grid, **size) as (drawn, axes):
        panels = []
        for row, setting in zip(axes, settings, strict=True):
            series = [
                plots.Series(
                    METHODS[cell.settings["method"]],
                    _STYLES[cell.settings["method"]],
                    [run.rows for run in runs[cell.name] if run.rows],
                )
                for cell in table.cells.values()
                if cell.column == setting
            ]
            for axis, (column, options) in zip(row, _PANELS.items(), strict=True):
                own = {"xlabel": "mini-batches", "title": setting, **options}
                panels.append(plots.panel(series, "steps", column, **own))
                plots.draw_panel(axis, panels[-1])
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
    with plots.figure(path, 1, 2, figsize=(10, 4.5)) as (_, (left, right)):
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
