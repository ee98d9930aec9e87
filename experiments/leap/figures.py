"""Figures of LEAP, SPLD and Random: curves by mini-batch, and what was learned."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn import manifold

from experiments.common import plots, results
from experiments.common.cells import Table
from tff_fedss import training
from tff_fedss.errors import InvalidInputError

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


def draw(
    table: Table,
    runs: Mapping[str, Sequence[results.Run]],
    folder: pathlib.Path,
    stem: str,
) -> list[str]:
    """Draws the curves of each setting, see `cells.Table.draw`.

    The embedding is drawn of the first run of LEAP whose representations are there;
    those of published runs are not.
    """
    del stem
    lines = []
    for setting in dict.fromkeys(cell.column for cell in table.cells.values()):
        measured = {
            cell.settings["method"]: own
            for cell in table.cells.values()
            if cell.column == setting
            and (own := [run for run in runs[cell.name] if run.rows])
        }
        if not measured:
            continue
        rows = {method: [run.rows for run in own] for method, own in measured.items()}
        plot_curves(rows, folder / f"{setting}_curves.png")
        lines += [f"![{setting}: curves]({setting}_curves.png)", ""]
        for run in measured.get("leap", ()):
            path = run.path / "representations.npz"
            if path.exists():
                embedding = _read_embedding(path)
                plot_embedding(
                    run.rows, *embedding, folder / f"{setting}_embedding.png"
                )
                lines += [f"![{setting}: t-SNE]({setting}_embedding.png)", ""]
                break
    return lines


def _read_embedding(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Reads representations, labels and the names of classes."""
    saved = training.read_arrays(path)
    for name in ("representations", "labels", "class_names"):
        if name not in saved:
            raise InvalidInputError(f"{path} is damaged: it has no {name}.")
    points, labels = saved["representations"], saved["labels"]
    names = saved["class_names"].tolist()
    if not (
        points.ndim == 2
        and len(points) >= 4  # What t-SNE needs.
        and np.isfinite(points).all()
        and labels.shape == points.shape[:1]
        and 0 <= labels.min() <= labels.max() < len(names)
    ):
        raise InvalidInputError(
            f"{path} is damaged: expected representations float[examples, d], "
            "finite and of 4 or more, labels int[examples] and a name for each class."
        )
    return points, labels, names


def plot_curves(runs: Mapping[str, Sequence[Rows]], path: pathlib.Path) -> None:
    """Draws accuracy, loss and what is selected, by mini-batch.

    The accuracies and losses are LEAP's figures 2, 4, 6, 7, 9 and 10.

    Args:
        runs: By method, the rows of each seed; nothing is drawn of nothing.
        path: The PNG; replaced whole or not at all.
    """
    series = [plots.Series(METHODS[m], _STYLES[m], seeds) for m, seeds in runs.items()]
    panels = {
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
