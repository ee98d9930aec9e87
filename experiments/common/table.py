"""Tables as CSV, as Markdown and for the terminal, by pandas and tabulate."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import tabulate

_LEVEL = 0.95
# tabulate would make columns wider than their headers.
tabulate.MIN_PADDING = 0
_RULE = tabulate.Line("", "-", "--", "")
_ROW = tabulate.DataRow("", "  ", "")
_TEXT = tabulate.TableFormat(_RULE, _RULE, None, _RULE, _ROW, _ROW, 0, None)


def as_csv(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> str:
    """Writes rows of values by column, with a header and all digits.

    Args:
        rows: What a row lacks, or has as None, stays empty.
        columns: By default those of the first row, which must be there then.
    """
    rows = list(rows)
    columns = list(rows[0]) if columns is None else list(columns)
    cells = [["" if row.get(c) is None else row[c] for c in columns] for row in rows]
    # Objects: a whole number in a column with an empty cell stays one.
    frame = pd.DataFrame(cells, columns=columns, dtype=object)
    return frame.to_csv(index=False, na_rep="nan", lineterminator="\n")


def as_markdown(
    header: Sequence[str], rows: Iterable[Sequence[Any]], left: Sequence[int] = (0,)
) -> str:
    """Writes a table of texts in Markdown, its columns in line.

    Args:
        header: The titles of the columns.
        rows: A text for each column; None is a blank.
        left: Which columns are flush left; the others are flush right.
    """
    return _as_table("pipe", header, rows, left, lambda x: x.replace("|", r"\|"))


def as_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Writes a table of texts for the terminal, between rules; see `as_markdown`."""
    return _as_table(_TEXT, header, rows, (0,), str)


def half_width(values: Sequence[float]) -> float | None:
    """Returns half of the 95 % interval of a mean, by Student's t.

    Args:
        values: Of independent seeds.

    Returns:
        It; None for fewer than two values.
    """
    if len(values) < 2:
        return None
    # Takes a second to import, and most tables do without.
    from scipy import stats

    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(stats.t.ppf((1 + _LEVEL) / 2, len(values) - 1)) * error


def signed_mean(values: Sequence[float], digits: int) -> str:
    """Writes `+mean ± half of the 95 % interval`, see `half_width`; the one, of one.

    Args:
        values: Of independent seeds; at least one.
        digits: After the point.
    """
    text = f"{statistics.fmean(values):+.{digits}f}"
    half = half_width(values)
    return text if half is None else f"{text} ± {half:.{digits}f}"


def _as_table(tablefmt, header, rows, left, escape) -> str:
    rows = [["" if cell is None else escape(str(cell)) for cell in row] for row in rows]
    return pd.DataFrame(rows, columns=[*map(escape, header)], dtype=object).to_markdown(
        index=False,
        tablefmt=tablefmt,
        disable_numparse=True,
        colalign=["left" if i in left else "right" for i in range(len(header))],
    )


def mean_std(values: Sequence[float], digits: int) -> str:
    """Writes `mean ± sample standard deviation`; the one value, of one; "" of none."""
    if not values:
        return ""
    text = f"{statistics.mean(values):,.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):,.{digits}f}"
    return text
