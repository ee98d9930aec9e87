"""Figures of LEAP, SPLD and Random: curves by mini-batch, and what was learned."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn import manifold

from experiments.common import plots
from tff_fedss import training

METHODS = {"leap": "LEAP", "spld": "SPLD", "spl": "SPL", "random": "Random"}
_STYLES = {
    "leap": plots.style(0),
    "spld": plots.style(1),
    "spl": plots.style(2),
    "random": plots.REFERENCE,
}
# How many rounds the moving average of the embedding's loss is over.
_WINDOW = 10

Rows = Sequence[training.Metrics]


def plot_curves(runs: Mapping[str, Sequence[Rows]], path: pathlib.Path) -> None:
    """Draws accuracy and losses by mini-batch (LEAP, figures 2, 4, 6, 7, 9 and 10).

    Args:
        runs: By method, the rows of each seed; nothing is drawn of nothing.
        path: The PNG; replaced whole or not at all.
    """
    _plot(
        runs,
        {
            "top1": {"ylabel": "test accuracy (%)", "scale": 100},
            "test_loss": {"ylabel": "test loss"},
            "loss": {"ylabel": "loss on mini-batches"},
        },
        path,
    )


def plot_selection(runs: Mapping[str, Sequence[Rows]], path: pathlib.Path) -> None:
    """Draws what share of the examples is selected, and how even their classes are.

    Args:
        runs: As for `plot_curves`.
        path: The PNG.
    """
    _plot(
        runs,
        {
            "selected_share": {
                "ylabel": "selected share of the examples (%)",
                "scale": 100,
                "from_zero": True,
            },
            "selected_classes": {
                "ylabel": "selected classes (exp of entropy)",
                "from_zero": True,
            },
        },
        path,
    )


def _plot(
    runs: Mapping[str, Sequence[Rows]], panels: Mapping[str, dict], path: pathlib.Path
) -> None:
    series = [plots.Series(METHODS[m], _STYLES[m], seeds) for m, seeds in runs.items()]
    plots.write_curves(
        path,
        [
            plots.panel(series, "steps", column, "mini-batches", **options)
            for column, options in panels.items()
        ],
    )


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
    column, xlabel, ylabel = (
        "embedding_loss",
        "mini-batches of the student",
        "Magnet loss",
    )
    every_round = plots.Series(
        "mean of a round", plots.Style("#999999", "-", ""), [rows]
    )
    panel = plots.panel([every_round], "steps", column, xlabel, ylabel)
    with plots.figure(path, 1, 2, figsize=(10, 4.5)) as (_, (left, right)):
        for _, steps, losses, *_ in panel.curves[:1]:
            window = min(_WINDOW, len(losses))
            moving = np.convolve(losses, np.ones(window) / window, "valid")
            look = _STYLES["leap"]
            panel.curves.append(
                plots.Curve("moving average", steps[window - 1 :], moving, look)
            )
        plots.draw_panel(left, panel)
        if panel.curves:
            left.legend()
        for label in np.unique(labels):
            x, y = places[labels == label].T
            look = plots.style(label)
            name = class_names[label] if len(class_names) <= 10 else None
            right.scatter(
                x, y, s=6, c=look.color, marker=look.marker, alpha=0.6, lw=0, label=name
            )
        right.set(xticks=[], yticks=[], title="t-SNE of training images")
        if len(class_names) <= 10:
            right.legend(markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))


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
