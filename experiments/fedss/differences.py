"""How far apart the methods of a table are, and what can be told from their seeds.

Runs of the same seed share the start of phi and the clients of every round, so that
methods are compared run by run: the mean of the differences, and its 95 % interval by
Student's t.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from experiments.common import table
from experiments.fedss import table_results
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


@dataclasses.dataclass(frozen=True)
class Difference:
    """A mean over seeds with its interval, in points of a hundred.

    Attributes:
        values: Of each seed.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def is_told(self) -> bool:
        """Whether the 95 % interval of the mean excludes zero; it needs two seeds."""
        half = table.half_width(self.values)
        return half is not None and abs(self.mean) > half

    def __str__(self) -> str:
        """Writes `+4.2 ± 3.7`, or `+4.2` of one seed."""
        return table.signed_mean(self.values, 1)


def between(first: Cell, second: Cell, metric: str) -> Difference | None:
    """Compares two cells by the seeds that are finished in both.

    Args:
        first: What is compared.
        second: With what.
        metric: A column of metrics.csv that holds shares.

    Returns:
        How far `first` is ahead; None without a common seed.
    """
    theirs = {run.seed: run.final(metric) for run in second.finished}
    common = [run for run in first.finished if run.seed in theirs]
    if not common:
        return None
    return Difference(tuple(run.final(metric) - theirs[run.seed] for run in common))


def late_gain(cell: Cell, metric: str) -> Difference | None:
    """Returns what the last quarter of the rounds has brought.

    Args:
        cell: Its finished runs count.
        metric: A column of metrics.csv that holds shares.

    Returns:
        The gain; None if no run is finished, or none was measured before.
    """
    gains = [run.late_gain(metric) for run in cell.finished]
    gains = [gain for gain in gains if gain is not None]
    return Difference(tuple(gains)) if gains else None


def as_markdown(
    results: table_results.Results, sizes: Sequence[int], metric: str, metric_title: str
) -> list[str]:
    """Writes both as tables, a column for each m.

    Args:
        results: The runs.
        sizes: The values of m that have a column.
        metric: A column of metrics.csv that holds shares.
        metric_title: How to write it.

    Returns:
        Lines; none if nothing is finished.
    """
    header = ["", *(f"m = {m}" for m in sizes), "no negatives"]
    text = []
    rows = [
        *_pair_rows(results, sizes, metric),
        *_growth_rows(results, sizes, metric),
    ]
    if rows:
        text += [
            f"Differences in {metric_title}, in points: the mean over runs of the same "
            "seeds, ± half of its 95 % interval (Student's t). Bold: the interval "
            "excludes zero.",
            "",
            table.as_markdown(header, rows),
            "",
        ]
    rows = _late_rows(results, sizes, metric)
    if rows:
        text += [
            f"What the last quarter of the rounds brought in {metric_title}, likewise: "
            "what still rises has not shown its end.",
            "",
            table.as_markdown(header, rows),
            "",
        ]
    return text


def _pair_rows(
    results: table_results.Results, sizes: Sequence[int], metric: str
) -> list[list[str]]:
    rows = []
    for pair in _PAIRS:
        draws = any(side.method in table_results.DRAW_NEGATIVES for side in pair)
        row = []
        for m in (*sizes, None):
            first, second = (results.cells.get(_at(side, m)) for side in pair)
            is_place = draws == (m is not None) and first and second
            row.append(_bold(between(first, second, metric)) if is_place else "")
        if any(row):
            rows.append([" − ".join(side.title for side in pair), *row])
    return rows


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
        row.append(_bold(cell and between(cell, results.cells[smallest], metric)))
    return [[f"FedSS − {smallest}", *row, ""]] if any(row) else []


def _at(setting: Setting, m: int | None) -> Setting:
    """With m, if the method draws negatives."""
    if setting.method in table_results.DRAW_NEGATIVES:
        return dataclasses.replace(setting, num_negatives=m)
    return setting


def _late_rows(
    results: table_results.Results, sizes: Sequence[int], metric: str
) -> list[list[str]]:
    rows = []
    for method in table_results.METHOD_TITLES:
        for corrected in (True, False):
            settings = [Setting(method, m, corrected) for m in (*sizes, None)]
            cells = map(results.cells.get, settings)
            row = [_bold(cell and late_gain(cell, metric)) for cell in cells]
            if any(row):
                rows.append([settings[0].title, *row])
    return rows


def _bold(difference: Difference | None) -> str:
    if difference is None:
        return ""
    return f"**{difference}**" if difference.is_told else str(difference)
