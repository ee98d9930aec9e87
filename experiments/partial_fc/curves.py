"""Curves of Partial FC, a colour for each way of sampling."""

import pathlib
from collections.abc import Mapping, Sequence

from experiments.common import plots
from tff_fedss import training

# Okabe and Ito's colors, as in `figures`; the rate is in the kind of line.
_COLORS = {"full": "#000000", "pprn": "#0072B2", "all_random": "#D55E00"}
_LINES = ("-", "--", ":", "-.")


def plot(
    curves: Mapping[str, Sequence[training.Metrics]],
    metric_title: str,
    path: pathlib.Path,
) -> None:
    """Draws TAR@FAR, CA_pcc and the loss by steps, as a PNG.

    Args:
        curves: The rows of each run, by name: "full", or SAMPLING_RATE; nothing is
            drawn of nothing.
        metric_title: How to write the first.
        path: The file; replaced whole or not at all.
    """
    if not any(curves.values()):
        return
    # The highest rate is a whole line.
    rates = sorted({_parts(name)[1] for name in curves}, reverse=True)
    panels = (
        ("tar_at_far", metric_title),
        ("ca_pcc", "CA_pcc"),
        ("loss", "training loss (over each sample)"),
    )
    with plots.png(path, 1, 3, figsize=(12, 3.8)) as (figure, all_axes):
        for axes, (column, title) in zip(all_axes, panels, strict=True):
            for name, rows in curves.items():
                points = [(r.get("steps", 0), r[column]) for r in rows if column in r]
                if points:
                    sampling, rate = _parts(name)
                    axes.plot(
                        *zip(*points, strict=True),
                        color=_COLORS[sampling],
                        linestyle=_LINES[rates.index(rate) % len(_LINES)],
                        label=name,
                    )
            axes.set(xlabel="steps", ylabel=title)
            axes.grid(alpha=0.3)
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside upper center", ncols=5, frameon=False
        )


def _parts(name: str) -> tuple[str, float]:
    """The sampling and the rate of a run's name; ("full", 1.0) for "full"."""
    sampling, _, rate = name.rpartition("_")
    return (sampling, float(rate)) if sampling else (name, 1.0)
