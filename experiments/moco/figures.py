"""Figures 3 to 5 of focal contrastive learning: the losses of examples, by form."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.common import plots, results
from experiments.common import table as tables
from experiments.common.cells import Table
from tff_fedss import losses, training

_MEASURED = "a_gamma0"  # The cell whose losses the figures show.
_FIGURES = dict(zip(losses.INFO_NCE_FORMS, (3, 4, 5), strict=True))


def draw(
    table: Table,
    runs: Mapping[str, Sequence[results.Run]],
    paper: pd.DataFrame,
    folder: pathlib.Path,
    stem: str,
) -> list[str]:
    """Draws the losses under the model of experiment A, see `cells.Table.draw`.

    Published runs lack the losses of examples, so nothing is drawn.
    """
    del table, paper, stem
    measured = _read(runs.get(_MEASURED, ()))
    if measured is None:
        return []
    _plot(measured, folder / "losses.png")
    rows = [
        [
            form,
            _FIGURES[form],
            f"{values.mean():.2f}",
            f"{np.median(values):.2f}",
            f"{100 * np.mean(values < 0.5):.1f}",
        ]
        for form, values in measured.items()
    ]
    header = ["loss", "figure", "mean", "median", "below 0.5, %"]
    return [
        "Loss of each example under the model of experiment A with gamma = 0:",
        "",
        tables.as_markdown(header, rows),
        "",
        "![Figures 3 to 5: losses of examples](losses.png)",
    ]


def _read(runs: Sequence[results.Run]) -> dict[str, np.ndarray] | None:
    """Returns the losses of all examples in all seeds of the model, by form."""
    paths = [run.path / "losses.npz" for run in runs if run.is_done]
    arrays = [training.read_arrays(path) for path in paths if path.exists()]
    if not arrays:
        return None
    return {form: np.concatenate([x[form] for x in arrays]) for form in _FIGURES}


def _plot(measured: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    """Draws the three histograms on one scale."""
    top = max(np.quantile(values, 0.999) for values in measured.values())
    with plots.figure(path, 1, 3, figsize=(8, 3), sharey=True) as (_, panels):
        for panel, (form, values) in zip(panels, measured.items(), strict=True):
            panel.hist(np.minimum(values, top), bins=60, range=(0, top), density=True)
            panel.set(title=f"{form} (figure {_FIGURES[form]})", xlabel="loss")
        panels[0].set_ylabel("density of examples")
