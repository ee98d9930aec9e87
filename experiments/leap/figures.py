"""Figures of LEAP, SPLD and Random: curves by mini-batch, and what was learned.

Lines are means over seeds and shades their standard deviation, as in `figures`.
"""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn import manifold

from experiments.common import plots
from tff_fedss import training

# Okabe and Ito's colors, as in `figures`.
_COLORS = {"leap": "#0072B2", "spld": "#D55E00", "random": "#000000"}
METHODS = {"leap": "LEAP", "spld": "SPLD", "random": "Random"}
# The paper draws LEAP as a solid line.
_LINES = {"leap": "-", "spld": "--", "random": ":"}
_PANELS = (
    ("top1", "test accuracy (%)", 100.0),
    ("test_loss", "test loss", 1.0),
    ("loss", "loss on mini-batches", 1.0),
)
# How many rounds the moving average of the embedding's loss is over.
_WINDOW = 10

Rows = Sequence[training.Metrics]


def mean_curve(runs: Sequence[Rows], column: str) -> tuple[np.ndarray, ...] | None:
    """Averages a column over seeds, at the mini-batches that all of them have.

    Args:
        runs: The rows of each seed.
        column: Of metrics.csv.

    Returns:
        Mini-batches int[points], mean and sample standard deviation (zero for one seed)
        float[points]; None if nothing was measured.
    """
    curves = [
        {r.get("steps", 0): r[column] for r in rows if column in r} for rows in runs
    ]
    common = sorted(set.intersection(*map(set, curves))) if curves else []
    if not common:
        return None
    values = np.array([[curve[steps] for steps in common] for curve in curves])
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(len(common))
    return np.array(common), values.mean(0), spread


def plot_curves(runs: Mapping[str, Sequence[Rows]], path: pathlib.Path) -> None:
    """Draws accuracy and losses by mini-batch (LEAP, figures 2, 4, 6, 7, 9 and 10).

    Args:
        runs: By method, the rows of each seed; nothing is drawn of nothing.
        path: The PNG; replaced whole or not at all.
    """
    runs = {method: [r for r in rows if r] for method, rows in runs.items()}
    if not any(runs.values()):
        return
    with plots.png(path, 1, len(_PANELS), figsize=(12, 3.5)) as (figure, axes):
        for panel, (column, title, scale) in zip(axes, _PANELS, strict=True):
            for method, rows in runs.items():
                curve = mean_curve(rows, column)
                if curve is None:
                    continue
                steps, mean, spread = curve
                style = {"color": _COLORS[method]}
                panel.plot(
                    steps,
                    scale * mean,
                    _LINES[method],
                    label=f"{METHODS[method]} ({len(rows)})",
                    **style,
                )
                low, high = scale * (mean - spread), scale * (mean + spread)
                panel.fill_between(steps, low, high, alpha=0.2, lw=0, **style)
            panel.set(xlabel="mini-batches", ylabel=title)
            panel.grid(alpha=0.3)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            title="method (seeds)",
            loc="outside upper center",
            ncols=3,
            frameon=False,
        )


def plot_selection(runs: Mapping[str, Sequence[Rows]], path: pathlib.Path) -> None:
    """Draws what share of the examples is selected, and how even their classes are.

    Args:
        runs: As for `plot_curves`.
        path: The PNG.
    """
    panels = (
        ("selected_share", "selected share of the examples (%)", 100.0),
        ("selected_classes", "selected classes (exp of entropy)", 1.0),
    )
    with plots.png(path, 1, 2, figsize=(9, 3.5)) as (_, axes):
        for panel, (column, title, scale) in zip(axes, panels, strict=True):
            for method, rows in runs.items():
                curve = mean_curve(rows, column)
                if curve is not None:
                    steps, mean, _ = curve
                    panel.plot(
                        steps,
                        scale * mean,
                        _LINES[method],
                        color=_COLORS[method],
                        label=METHODS[method],
                    )
            panel.set(xlabel="mini-batches", ylabel=title)
            panel.set_ylim(bottom=0)
            panel.grid(alpha=0.3)
        if axes[0].lines:
            axes[0].legend(frameon=False)


def plot_embedding(
    rows: Rows,
    representations: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    path: pathlib.Path,
    seed: int = 0,
) -> None:
    """Draws the embedding's loss and its space (LEAP, figures 3, 5, 8 and 11).

    Args:
        rows: Of one run.
        representations: float32[examples, d].
        labels: int32[examples].
        class_names: n names.
        path: The PNG.
        seed: Of t-SNE.
    """
    places = t_sne(representations, seed)
    with plots.png(path, 1, 2, figsize=(10, 4.5)) as (_, (left, right)):
        curve = mean_curve([rows], "embedding_loss")
        if curve is not None:
            steps, losses, _ = curve
            left.plot(steps, losses, color="#999999", lw=0.8, label="mean of a round")
            window = min(_WINDOW, len(losses))
            moving = np.convolve(losses, np.ones(window) / window, "valid")
            left.plot(
                steps[window - 1 :], moving, color="#0072B2", label="moving average"
            )
            left.legend(frameon=False)
        left.set(xlabel="mini-batches of the student", ylabel="Magnet loss")
        left.grid(alpha=0.3)
        for label in np.unique(labels):
            x, y = places[labels == label].T
            color = f"C{label % 10}"
            name = class_names[label] if len(class_names) <= 10 else None
            right.scatter(x, y, s=4, color=color, alpha=0.6, lw=0, label=name)
        right.set(xticks=[], yticks=[], title="t-SNE of training images")
        if len(class_names) <= 10:
            right.legend(
                fontsize=7, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5)
            )


def t_sne(representations: np.ndarray, seed: int) -> np.ndarray:
    """Lays points out in the plane (van der Maaten and Hinton, 2008).

    Args:
        representations: float32[examples, d], finite, at least 4 examples.
        seed: Of the start.

    Returns:
        float32[examples, 2].
    """
    perplexity = min(30.0, (len(representations) - 1) / 3)
    # Points that are all alike have no principal components to start from.
    centered = representations - representations.mean(0)
    has_components = representations.shape[1] > 1 and np.ptp(centered, 0).max() > 0
    return manifold.TSNE(
        2,
        perplexity=perplexity,
        init="pca" if has_components else "random",
        random_state=seed,
    ).fit_transform(representations)
