"""Curves of sampled softmax training, a colour for each sampler."""

import pathlib
from collections.abc import Mapping, Sequence

from experiments.common import plots
from tff_fedss import training

# Okabe and Ito's colors, as in `figures`.
_COLORS = {
    "uniform": "#D55E00",
    "log_uniform": "#E69F00",
    "quadratic": "#009E73",
    "rff": "#0072B2",
    "exp": "#CC79A7",
    "full": "#000000",
}


def plot(
    curves: Mapping[str, Sequence[training.Metrics]],
    metric: str,
    title: str,
    path: pathlib.Path,
    *,
    is_share: bool,
) -> None:
    """Draws a metric, and the training loss, by steps, as a PNG.

    Args:
        curves: The rows of each sampler's run; nothing is drawn of nothing.
        metric: The column to draw.
        title: How to write it.
        path: The file; replaced whole or not at all.
        is_share: Whether the metric is a share, and not a perplexity; the axis of a
            perplexity is logarithmic.
    """
    if not any(curves.values()):
        return
    with plots.png(path, 1, 2, figsize=(9, 3.5)) as (figure, (left, right)):
        for name, rows in curves.items():
            for axes, column in ((left, metric), (right, "loss")):
                points = [(r.get("steps", 0), r[column]) for r in rows if column in r]
                if points:
                    axes.plot(
                        *zip(*points, strict=True),
                        marker="o" if axes is left else "",
                        markersize=3,
                        color=_COLORS[name],
                        label=name,
                    )
        left.set(xlabel="steps", ylabel=title)
        right.set(xlabel="steps", ylabel="training loss (each sampler's own)")
        if is_share:
            left.set_ylim(bottom=0)
        else:
            left.set_yscale("log")
        for axes in (left, right):
            axes.grid(alpha=0.3, which="both")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside upper center", ncols=6, frameon=False
        )
