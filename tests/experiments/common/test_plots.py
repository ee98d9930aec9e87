"""The style of figures: distinguishable curves, and reproducible files."""

import subprocess
import sys

import matplotlib.figure
import numpy as np
import pytest

from experiments.common import plots
from tests import waiting
from tests.experiments import run_folders

DRAW = """
import pathlib, sys
from experiments.common import plots
curve = plots.Curve("a", [1, 10], [1, 2], plots.style(0), [0.1, 0.2], 3)
path = pathlib.Path(sys.argv[1])
plots.write_curves(path, [plots.Panel([curve], "x", "y (%)", "title", log="x")])
"""


@pytest.mark.slow
def test_drawn_again_the_files_are_the_same(tmp_path):
    """In another process, too, and without the time in them."""
    for name in ("a", "b"):
        subprocess.run(
            [sys.executable, "-P", "-c", DRAW, str(tmp_path / f"{name}.png")],
            check=True,
            timeout=waiting.LIMIT,
        )
        run_folders.check_figure(tmp_path / f"{name}.png")
    for kind in ("png", "pdf"):
        first, second = ((tmp_path / f"{x}.{kind}").read_bytes() for x in ("a", "b"))
        assert first == second and b"CreationDate" not in first


def test_a_figure_that_fails_is_not_written(tmp_path):
    path = tmp_path / "a.png"
    with pytest.raises(ZeroDivisionError), plots.figure(path) as (_, axes):
        axes.plot([1, 2])
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    apart = plots.Series("a", plots.style(0), [[{"x": 1}], [{"x": 1, "y": 2.0}]])
    panel = plots.panel([apart], "x", "y", "y")
    assert panel == plots.Panel([], "x", "y")
    assert not plots.write_curves(path, [panel])
    assert not list(tmp_path.iterdir())


def test_styles_are_distinct_without_colors():
    styles = [*map(plots.style, range(24)), plots.REFERENCE]
    assert len(set(styles)) == 25
    in_grey = [(look.linestyle, look.marker) for look in styles[:8]]
    assert len({*in_grey, plots.REFERENCE[1:]}) == 9


def test_markers_of_curves_that_coincide_lie_apart(tmp_path, drawn):
    x = np.arange(100)
    curves = [plots.Curve(str(i), x, x, plots.style(i)) for i in range(4)]
    assert plots.write_curves(tmp_path / "a.png", [plots.Panel(curves, "x", "y")])
    marked = [set(x[slice(start, None, step)]) for start, step in markevery(drawn[0])]
    assert all(5 <= len(own) <= 12 for own in marked)
    assert len(set.union(*marked)) == sum(map(len, marked))
    few = [curve._replace(x=x[:3], y=x[:3]) for curve in curves]
    plots.write_curves(tmp_path / "a.png", [plots.Panel(few, "x", "y")])
    assert set(markevery(drawn[1])) == {(0, 1)}  # Every point, each with its own form.


def test_a_long_legend_takes_no_height_from_the_panel(tmp_path, drawn):
    curves = [
        plots.Curve("word " * 9 + str(i), [1], [1], plots.style(i)) for i in range(12)
    ]
    for own in (curves[:1], curves):
        plots.write_curves(tmp_path / "a.png", [plots.Panel(own, "x", "y")])
    short, long = (axes.get_window_extent().height for axes in drawn)
    assert long >= short


def markevery(axes):
    return [line.get_markevery() for line in axes.get_lines()]


@pytest.mark.parametrize(
    "low, high", [(700, 900), (95, 105), (0.3, 7), (1, 1000), (1e-9, 1e9), (5, 5)]
)
def test_logarithmic_axes_have_several_ticks(low, high):
    curve = plots.Curve("a", [1, 2], [low, high], plots.style(0))
    axes = matplotlib.figure.Figure((6, 4)).subplots()
    plots.draw_panel(axes, plots.Panel([curve], "x", "y", log="y"))
    axis = axes.yaxis
    first, last = axis.get_view_interval()
    ticks = [tick for tick in axis.get_majorticklocs() if first <= tick <= last]
    assert 3 <= len(ticks) <= 12
    labels = [axis.get_major_formatter()(tick) for tick in ticks]
    assert len(set(labels)) == len(labels)


_BANDS = "bands or bars: ± their standard deviation"


@pytest.mark.parametrize(
    "counts, note",
    [
        ([None], ""),
        ([1, 1], "one seed"),
        ([3, None, 3], f"lines: mean of 3 seeds; {_BANDS}"),
        ([1, 3], f"lines: mean of 1 to 3 seeds; {_BANDS}"),
    ],
)
def test_what_a_band_is_is_said(counts, note):
    curves = [plots.Curve("", [1], [1], plots.style(0), None, n) for n in counts]
    assert plots.seeds_note(curves) == note
