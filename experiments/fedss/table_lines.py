"""The cells of a table of the paper, summed up over seeds, with the paper's numbers."""

import dataclasses
import statistics
from collections.abc import Collection, Iterable, Sequence

from experiments.fedss import paper_values, table_results
from experiments.fedss.methods import METHODS, best_of_seeds
from experiments.fedss.table_results import Setting
from tff_fedss import tasks
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Statistics:
    """A metric over the finished seeds of a cell, in percent.

    Attributes:
        num_seeds: How many seeds.
        mean: Their mean.
        std: Their sample standard deviation (ddof = 1); None for a single seed.
        best: The best of them.
    """

    num_seeds: int
    mean: float
    std: float | None
    best: float


@dataclasses.dataclass(frozen=True)
class Line:
    """A cell of the table, with the paper's value: a row of the CSV.

    Attributes:
        setting: The cell.
        name: Its name.
        metric: The metric.
        ours: What our runs gave; None if no seed is finished.
        expected_seeds: How many seeds there are to be.
        paper: What the paper prints; None where it is unknown.
        class_set_size: |S_k|; None where unknown, or there are no clients.
        rounds: How many rounds; None if no run has begun.
        hours: Of all runs of the cell together.
        num_collapsed: How many of the finished seeds ended with features that are all
            alike, or at chance.
    """

    setting: Setting
    name: str
    metric: str
    ours: Statistics | None
    expected_seeds: int
    paper: paper_values.Value | None
    class_set_size: int | None
    rounds: int | None
    hours: float
    num_collapsed: int = 0

    @property
    def headline(self) -> float | None:
        """The number that stands in the paper's table."""
        if self.ours is None:
            return None
        if METHODS[self.setting.method].is_best_of_seeds:
            return self.ours.best
        return self.ours.mean

    def __str__(self) -> str:
        """Writes it as in the paper's tables; `-` while nothing is finished."""
        if self.ours is None:
            return "-"
        text = f"{self.headline:.1f}"
        is_best = METHODS[self.setting.method].is_best_of_seeds
        if not is_best and self.ours.std is not None:
            text += f" ± {self.ours.std:.{1 if self.ours.std >= 0.1 else 2}f}"
        if self.ours.num_seeds < self.expected_seeds:
            text += f" ({self.ours.num_seeds}/{self.expected_seeds})"
        return text + (" †" if self.num_collapsed else "")


def expected_cells(names: Iterable[str]) -> dict[Setting, str]:
    """Finds out what the cells are that there are to be.

    Args:
        names: Of the cells; those that say nothing are left out.

    Returns:
        The name of each cell, by its setting.
    """
    by_setting = {table_results.setting_of_name(name): name for name in sorted(names)}
    by_setting.pop(None, None)
    return by_setting


def cells_of_table(
    results: table_results.Results,
    paper: paper_values.Table,
    expected: Collection[Setting],
) -> table_results.Results:
    """Leaves out the cells of Table 2 from the folder that Table 4 shares with it.

    Args:
        results: The runs.
        paper: The paper's table.
        expected: The cells that there are to be. If there are none, FedSS at its
            largest |S_k|, FullSoftmax and Centralized are.

    Returns:
        The runs of the table.

    Raises:
        InvalidInputError: If there is none.
    """
    if len(paper.metrics) == 1:
        return results
    largest = max(results.num_negatives("fedss"), default=None)
    wanted = expected or [
        Setting("fedss", largest),
        *(Setting(method) for method in best_of_seeds()),
    ]
    cells = {s: cell for s, cell in results.cells.items() if s in wanted}
    if not cells:
        raise InvalidInputError(
            f"Table {paper.number} is of {', '.join(map(str, wanted))}: "
            f"{results.runs[0].path.parents[1]} has runs of none of them."
        )
    return table_results.Results(cells)


def lines_of(
    results: table_results.Results,
    paper: paper_values.Table,
    expected: dict[Setting, str],
    num_seeds: int,
) -> list[Line]:
    """Sums up each cell that is there or is to be, in the order of the paper's rows.

    Args:
        results: The runs.
        paper: The paper's table.
        expected: From `expected_cells`.
        num_seeds: How many seeds a cell is to have.

    Returns:
        A line for each cell and metric, the table's and those of `more_metrics`; the
        metrics of a cell stand together.

    Raises:
        InvalidInputError: If the runs measure something else than the table.
    """
    if results.task.metric != paper.metrics[-1]:
        raise InvalidInputError(
            f"Table {paper.number} is of {paper.metrics[-1]}, but "
            f"{results.runs[0].path} measures {results.task.metric}."
        )
    names = {**expected, **{s: cell.name for s, cell in results.cells.items()}}
    order = list(METHODS)
    settings = sorted(
        names,
        key=lambda s: (
            order.index(s.method),
            not s.is_corrected,
            s.num_negatives or 0,
        ),
    )
    return [
        line_of(
            results,
            setting,
            names[setting],
            paper.values.get(metric, {}).get((setting.method, setting.num_negatives)),
            num_seeds,
            metric,
        )
        for setting in settings
        for metric in (*paper.metrics, *more_metrics(results))
    ]


def more_metrics(results: table_results.Results) -> tuple[str, ...]:
    """Returns what the runs measure beside the table's metrics.

    Args:
        results: The runs.
    """
    measured = any(
        tasks.UNSEEN_METRIC in row for run in results.runs for row in run.rows
    )
    return (tasks.UNSEEN_METRIC,) if measured else ()


def line_of(
    results: table_results.Results,
    setting: Setting,
    name: str,
    paper_value: paper_values.Value | None,
    num_seeds: int,
    metric: str | None = None,
) -> Line:
    """Sums up a cell.

    Args:
        results: The runs.
        setting: The cell; it need not have begun.
        name: Its name.
        paper_value: What the paper prints there.
        num_seeds: How many seeds it is to have.
        metric: A column of metrics.csv; by default the metric of the task. What runs
            measure on other images, see `more_metrics`, has a best seed of its own.
    """
    cell = results.cells.get(setting)
    runs = cell.runs if cell else ()
    metric = metric or results.task.metric
    by = metric if metric in more_metrics(results) else results.task.metric
    finished = cell.finished if cell else []
    return Line(
        setting=setting,
        name=name,
        metric=metric,
        ours=_statistics(
            [run.final(metric) for run in finished],
            [run.final(by) for run in finished],
        ),
        expected_seeds=max(num_seeds, len(runs)),
        paper=paper_value,
        class_set_size=results.class_set_size(setting),
        rounds=runs[0].num_rounds if runs else None,
        hours=sum(run.hours for run in runs),
        num_collapsed=sum(run.has_collapsed for run in finished),
    )


def _statistics(values: Sequence[float], by: Sequence[float]) -> Statistics | None:
    """Sums up; the best seed is the one with the largest `by`."""
    if not values:
        return None
    return Statistics(
        num_seeds=len(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        best=values[by.index(max(by))],
    )
