"""Tables as CSV, as Markdown and for the terminal; means and differences over seeds.

Runs of the same seed share the initial weights and the order of the clients or of the
examples, so that the mean of their differences is more precise than the difference of
two means.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import tabulate

_LEVEL = 0.95
CAPTION = (
    "the mean over finished runs of the same seeds, ± half of its 95 % interval "
    "(Student's t). Bold: the interval excludes zero."
)
# tabulate would make columns wider than their headers.
tabulate.MIN_PADDING = 0
_RULE = tabulate.Line("", "-", "--", "")
_ROW = tabulate.DataRow("", "  ", "")
_TEXT = tabulate.TableFormat(_RULE, _RULE, None, _RULE, _ROW, _ROW, 0, None)


def as_markdown(
    header: Sequence[str], rows: Iterable[Sequence[Any]], left: Sequence[int] = (0,)
) -> str:
    """Writes a table of texts in Markdown, its columns in line.

    The columns `left` are flush left, the others flush right.
    """
    return _as_table("pipe", header, rows, left, lambda x: x.replace("|", r"\|"))


def as_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Writes a table of texts for the terminal, between rules; see `as_markdown`."""
    return _as_table(_TEXT, header, rows, (0,), str)


def half_width(values: Sequence[float]) -> float | None:
    """Returns half of the 95 % interval of the mean over seeds, by Student's t.

    None for fewer than two values.
    """
    if len(values) < 2:
        return None
    # Takes a second to import, and most tables do not need it.
    from scipy import stats

    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(stats.t.ppf((1 + _LEVEL) / 2, len(values) - 1)) * error


def _as_table(tablefmt, header, rows, left, escape) -> str:
    rows = [[escape(str(cell)) for cell in row] for row in rows]
    return pd.DataFrame(rows, columns=[*map(escape, header)], dtype=object).to_markdown(
        index=False,
        tablefmt=tablefmt,
        disable_numparse=True,
        colalign=["left" if i in left else "right" for i in range(len(header))],
    )


def mean_std(values: Sequence[float], digits: int) -> str:
    """Writes `mean ± sample standard deviation`, or a single value."""
    text = f"{statistics.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text


def signed(values: Sequence[float], digits: int = 1) -> str:
    """Writes a mean over seeds with half of its 95 % interval, `+4.2 ± 3.7`.

    It is in bold if the interval excludes 0, and "" without values.
    """
    if not values:
        return ""
    mean, half = statistics.fmean(values), half_width(values)
    text = f"{mean:+.{digits}f}"
    if half is None:
        return text
    text += f" ± {half:.{digits}f}"
    return f"**{text}**" if abs(mean) > half else text


def between(first: pd.Series, second: pd.Series, scale: float = 100) -> list[float]:
    """Returns the differences of two cells, seed by seed.

    Args:
        first: The metric of each run by its seed.
        second: The same of the cell to subtract.
        scale: The factor; 100 makes points of a share.
    """
    both = pd.concat([first, second], axis=1, join="inner").dropna()
    return (scale * both.iloc[:, 0] - scale * both.iloc[:, 1]).tolist()
