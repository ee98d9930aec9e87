"""The style of all figures, and the drawing of curves.

The colors are Okabe and Ito's, which color-blind people can also distinguish; each has
a line style and a marker, for grey prints and coinciding lines. A figure is a PNG and,
beside it, a PDF; drawn again, both have the same bytes. Matplotlib, which takes time to
import, is imported when something is drawn: at the end of a run.
"""

import contextlib
import io
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tff_fedss import files, training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue, vermillion, green, purple, orange, sky; yellow is too light for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "*")

_LOOK = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": f"cycler(color={COLORS})",
    "axes.titlesize": "medium",
    "grid.alpha": 0.3,
    "hatch.linewidth": 0.8,
    "legend.fontsize": "small",
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "lines.markerfacecolor": "none",  # Lines below are visible.
    "lines.markersize": 5,
    "pdf.fonttype": 42,  # Text in the PDF can be searched and copied.
    "savefig.dpi": 120,
}
# The most markers on a curve; more would hide it.
_MOST_MARKERS = 12
# Ticks of a logarithmic axis: multiples of the powers of ten, until there are enough.
_TICKS = ((1,), (1, 2, 5), (1, 2, 3, 5, 7), range(1, 10))
_FEWEST_TICKS, _MOST_DECADES = 3, 8


class Style(NamedTuple):
    """The style of a series; the fields are matplotlib's keywords."""

    color: str
    linestyle: str = "-"
    marker: str = "o"


REFERENCE = Style("#000000", "-", "x")  # The style of references.


def style(i: int) -> Style:
    """Returns the style of the i-th series; 24 are different."""
    color, line, marker = (x[i % len(x)] for x in (COLORS, _LINES, _MARKERS))
    return Style(color, line, marker)


class Curve(NamedTuple):
    """A series of points, in the order of x.

    Attributes:
        label: Its text in the legend; empty: none.
        x: [points].
        y: The values, or their mean over seeds, [points].
        std: Their standard deviation over seeds, [points]; None: no band.
        num_seeds: Number of seeds; None without seeds.
        paper: The points that the paper prints, drawn as stars.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style
    std: Sequence[float] | None = None
    num_seeds: int | None = None
    paper: Sequence[tuple[float, float]] = ()


class Panel(NamedTuple):
    """Curves that share axes.

    Attributes:
        xlabel: The label of the x axis, with the unit.
        ylabel: The label of the y axis, with the unit.
        log: The logarithmic axes: "", "x", "y" or "xy".
        from_zero: Whether y begins at zero.
        chance: The y of random guesses, drawn as a dotted line; None: unknown.
        has_bars: Whether standard deviations are error bars, not bands.
    """

    curves: Sequence[Curve]
    xlabel: str
    ylabel: str
    title: str = ""
    log: str = ""
    from_zero: bool = False
    chance: float | None = None
    has_bars: bool = False


class Series(NamedTuple):
    """The rows of metrics.csv of runs that differ in their seed.

    Attributes:
        label: Its text in the legend.
        seeds: The rows of each run; runs without rows do not count.
        paper: The paper's last value in the unit of the axis; None: unknown.
    """

    label: str
    style: Style
    seeds: Sequence[Sequence[training.Metrics]]
    paper: float | None = None


def panel(
    series: Iterable[Series],
    x: str,
    y: str,
    ylabel: str,
    *,
    xlabel: str | None = None,
    scale: float = 1.0,
    **options,
) -> Panel:
    """Makes a panel of a column y of metrics.csv, times a scale, by a column x.

    y is averaged over seeds, at the points common to all; a series without such a point
    is left out. A row without x is at 0. The label of x is by default its column.
    """
    curves = []
    for one in series:
        points = [
            {row.get(x, 0): row[y] for row in rows if y in row}
            for rows in one.seeds
            if rows
        ]
        if common := sorted(set.intersection(*map(set, points))) if points else []:
            values = scale * np.array([[own[k] for k in common] for own in points])
            at, mean, std = np.array(common), values.mean(0), std_of(values)
            paper = () if one.paper is None else ((common[-1], one.paper),)
            curve = Curve(one.label, at, mean, one.style, std, len(points), paper)
            curves.append(curve)
    return Panel(curves, x if xlabel is None else xlabel, ylabel, **options)


def std_of(values: np.ndarray) -> np.ndarray:
    """The sample standard deviation over the first axis; zero for one sample."""
    if len(values) < 2:
        return np.zeros(values.shape[1:])
    return values.std(axis=0, ddof=1)


@contextlib.contextmanager
def figure(path: pathlib.Path, *grid: int, **options) -> Iterator[tuple]:
    """Makes a figure and, unless the body fails, writes it as PNG and PDF.

    Args:
        path: The PNG, in an existing folder; the PDF is beside it. Each is replaced
            whole or not at all.
        *grid: Rows and columns of panels.
        **options: Options of `plt.subplots`.
    """
    import matplotlib

    matplotlib.use("Agg")  # No screen is needed.
    from matplotlib import pyplot as plt

    options.setdefault("figsize", (6, 4))
    with plt.rc_context(_LOOK):
        drawn, axes = plt.subplots(*grid, layout="constrained", **options)
        try:
            yield drawn, axes
            contents = {".png": io.BytesIO(), ".pdf": io.BytesIO()}
            for suffix, content in contents.items():
                # A date would change the bytes each time.
                metadata = {"CreationDate": None} if suffix == ".pdf" else None
                drawn.savefig(content, format=suffix[1:], metadata=metadata)
        finally:
            plt.close(drawn)
    for suffix, content in contents.items():
        files.write(pathlib.Path(path).with_suffix(suffix), content.getvalue())


@contextlib.contextmanager
def drawing_afterwards(draw: Callable[[], None]) -> Iterator[None]:
    """Draws at the end of the body, if possible also when the body is stopped."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            draw()
        raise
    draw()


def write_curves(path: pathlib.Path, panels: Iterable[Panel]) -> bool:
    """Draws panels of curves, two in a row, with one legend, and writes the figure.

    Panels without a curve are left out. Returns whether any panel is left.
    """
    panels = [panel for panel in panels if panel.curves]
    if not panels:
        return False
    # The same quantity has the same axis.
    is_same = len({(panel.ylabel, "y" in panel.log) for panel in panels}) == 1
    rows = math.ceil(len(panels) / 2)
    width, height = 6 if len(panels) == 1 else 8, 4 if rows == 1 else 3.2 * rows
    options = {"figsize": (width, height), "squeeze": False, "sharey": is_same}
    with figure(path, rows, min(2, len(panels)), **options) as (drawn, grid):
        for axes, panel in itertools.zip_longest(grid.flat, panels):
            if panel is None:
                axes.remove()
            else:
                draw_panel(axes, panel)
        add_legend(drawn, grid.flat[: len(panels)])
        drawn.supxlabel(
            seeds_note(curve for panel in panels for curve in panel.curves),
            fontsize="small",
        )
    return True


def draw_panel(axes: "Axes", panel: Panel) -> None:
    """Draws curves with their bands or error bars, and the paper's points."""
    for i, curve in enumerate(panel.curves):
        # Markers of one curve lie between those of the others.
        every = math.ceil(len(curve.x) / _MOST_MARKERS)
        offset = i * every // len(panel.curves)
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            markevery=(offset, every),
            **curve.style._asdict(),
        )
        if curve.std is not None and np.any(curve.std):
            y, std = np.asarray(curve.y), np.asarray(curve.std)
            color = curve.style.color
            if panel.has_bars:
                axes.errorbar(curve.x, y, std, fmt="none", ecolor=color, capsize=3)
            else:
                axes.fill_between(
                    curve.x, y - std, y + std, color=color, alpha=0.15, lw=0
                )
        star = {"marker": "*", "markersize": 13, "markerfacecolor": curve.style.color}
        for point in curve.paper:
            axes.plot(*point, label="the paper", linestyle="", color="#000000", **star)
    if panel.chance is not None:
        axes.axhline(panel.chance, color="#777777", linestyle=":", label="chance")
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=panel.title)
    for which in panel.log:
        log_axis(axes, which)
    if panel.from_zero:
        axes.set_ylim(bottom=0)


def log_axis(axes: "Axes", which: str) -> None:
    """Makes the axis "x" or "y" of a drawing logarithmic, with several ticks."""
    from matplotlib import ticker

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    step = math.ceil(len(decades) / _MOST_DECADES)
    for factors in _TICKS:
        ticks = [f * 10.0**d for d in decades[::step] for f in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= _FEWEST_TICKS:
            break
    else:  # Less than a factor of two or so: nearly linear.
        ticks = ticker.MaxNLocator(5).tick_values(low, high)
    axis.set_major_locator(ticker.FixedLocator(ticks))
    plain = all(1e-3 <= tick < 1e5 for tick in ticks)
    axis.set_major_formatter(
        ticker.FuncFormatter(lambda x, _: f"{x:,.15g}" if plain else _power(x))
    )
    axis.set_minor_formatter(ticker.NullFormatter())


def _power(value: float) -> str:
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = round(value / 10.0**exponent)
    times = "" if factor == 1 else rf"{factor}\times "
    return f"${times}10^{{{exponent}}}$"


def add_legend(drawn: "Figure", panels: Iterable["Axes"]) -> None:
    """Puts one legend above all panels, unless no series has a label.

    Series with the same label are treated as one. It has as many columns as fit, and
    the figure grows by its height.
    """
    found = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    most = min(len(found), int(drawn.get_figwidth() / 2))
    for columns in range(most, 0, -1):
        legend = drawn.legend(
            found.values(), found.keys(), loc="outside upper center", ncols=columns
        )
        size = legend.get_window_extent()
        if columns == 1 or size.width <= drawn.bbox.width:
            drawn.set_figheight(drawn.get_figheight() + size.height / drawn.dpi)
            return
        legend.remove()


def seeds_note(curves: Iterable[Curve]) -> str:
    """Returns a note on the number of seeds of a figure's curves and on bands."""
    counts = {curve.num_seeds for curve in curves} - {None}
    if not counts:
        return ""
    if max(counts) == 1:
        return "one seed"
    of = f"{min(counts)} to " * (len(counts) > 1) + f"{max(counts)} seeds"
    return f"lines: mean of {of}; bands or bars: ± their standard deviation"
