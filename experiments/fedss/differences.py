"""How far apart the methods of a table are, and what can be told from their seeds.

Runs of the same seed share the start of phi and the clients of every round, so that
methods are compared run by run: the mean of the differences, and its 95 % interval by
Student's t.
"""

import dataclasses
from collections.abc import Sequence

from experiments.common import results as results_lib
from experiments.common import table
from experiments.fedss import paired_runs as paired
from experiments.fedss import table_results
from experiments.fedss.methods import METHODS
from experiments.fedss.table_results import Cell, Setting

# What a reader of the paper asks: each method beside FedSS, and each with its twin.
# Of both, m is still to be filled in.
_PAIRS = (
    (Setting("fedss"), Setting("full_softmax")),
    (Setting("fedss"), Setting("centralized")),
    (Setting("fedss"), Setting("neg_only")),
    (Setting("fedss"), Setting("pos_only")),
    (Setting("fedss"), Setting("fedaws")),
    (Setting("fedss"), Setting("fedss", is_corrected=False)),
    (Setting("fedss", is_corrected=False), Setting("neg_only", is_corrected=False)),
    (Setting("neg_only"), Setting("neg_only", is_corrected=False)),
    (Setting("neg_only"), Setting("full_softmax")),
    (Setting("neg_only"), Setting("pos_only")),
    (Setting("neg_only"), Setting("fedaws")),
    (Setting("fedaws"), Setting("pos_only")),
    (Setting("centralized"), Setting("full_softmax")),
)


def late_gain(cell: Cell, metric: str) -> paired.Difference | None:
    """Returns what the last quarter of the rounds has brought, see `late_start`.

    Args:
        cell: Its finished runs count.
        metric: A column of metrics.csv that holds shares.

    Returns:
        The gain; None if no run is finished, or none was measured before.
    """
    gains = [run.late_gain(metric) for run in cell.finished]
    gains = [gain for gain in gains if gain is not None]
    return paired.Difference(tuple(gains)) if gains else None


def as_markdown(
    results: table_results.Results, sizes: Sequence[int], metric: str, metric_title: str
) -> list[str]:
    """Writes how far methods are apart as a table, a column for each m.

    Args:
        results: The runs.
        sizes: The values of m that have a column.
        metric: A column of metrics.csv that holds shares.
        metric_title: How to write it.

    Returns:
        Lines; none if nothing is finished.
    """
    rows = [
        *_pair_rows(results, sizes, metric),
        *_growth_rows(results, sizes, metric),
    ]
    return _section(paired.caption(f"{metric_title}, in points"), sizes, rows)


def late_as_markdown(
    results: table_results.Results, sizes: Sequence[int], metric: str, metric_title: str
) -> list[str]:
    """Writes what the last quarter of the rounds brought, to follow `as_markdown`.

    Args:
        results: See `as_markdown`.
        sizes: See `as_markdown`.
        metric: See `as_markdown`.
        metric_title: See `as_markdown`.

    Returns:
        Lines; none if nothing is finished.
    """
    note = results_lib.late_note(results.runs, metric)
    return _section(
        f"What the last quarter of the rounds brought in {metric_title}, likewise: "
        f"what still rises has not shown its end.{note}",
        sizes,
        _late_rows(results, sizes, metric),
    )


def _section(
    title: str, sizes: Sequence[int], rows: Sequence[Sequence[str]]
) -> list[str]:
    if not rows:
        return []
    header = ["", *(f"m = {m}" for m in sizes), "no negatives"]
    return [title, "", table.as_markdown(header, rows), ""]


def _pair_rows(
    results: table_results.Results, sizes: Sequence[int], metric: str
) -> list[list[str]]:
    rows = []
    known = {side.method for pair in _PAIRS for side in pair}
    others = [(Setting("fedss"), Setting(x)) for x in METHODS if x not in known]
    for pair in (*_PAIRS, *others):
        draws = any(METHODS[side.method].draws_negatives for side in pair)
        row = []
        for m in (*sizes, None):
            first, second = (results.cells.get(_at(side, m)) for side in pair)
            is_place = draws == (m is not None) and first and second
            row.append(_between(first, second, metric) if is_place else "")
        if any(row):
            rows.append([" − ".join(side.title for side in pair), *row])
    return rows


def _between(first: Cell, second: Cell, metric: str) -> str:
    return paired.in_bold(paired.between(first.runs, second.runs, metric))


def _growth_rows(
    results: table_results.Results, sizes: Sequence[int], metric: str
) -> list[list[str]]:
    """What more negatives bring."""
    smallest = Setting("fedss", sizes[0]) if sizes else None
    if smallest not in results.cells or len(sizes) < 2:
        return []
    row = [""]
    for m in sizes[1:]:
        cell = results.cells.get(Setting("fedss", m))
        row.append(_between(cell, results.cells[smallest], metric) if cell else "")
    return [[f"FedSS − {smallest}", *row, ""]] if any(row) else []


def _at(setting: Setting, m: int | None) -> Setting:
    """With m, if the method draws negatives."""
    if METHODS[setting.method].draws_negatives:
        return dataclasses.replace(setting, num_negatives=m)
    return setting


def _late_rows(
    results: table_results.Results, sizes: Sequence[int], metric: str
) -> list[list[str]]:
    rows = []
    for method in METHODS:
        for corrected in (True, False):
            settings = [Setting(method, m, corrected) for m in (*sizes, None)]
            cells = map(results.cells.get, settings)
            row = [paired.in_bold(cell and late_gain(cell, metric)) for cell in cells]
            if any(row):
                rows.append([settings[0].title, *row])
    return rows
