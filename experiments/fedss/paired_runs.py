"""Runs of two cells compared seed by seed.

Runs of the same seed share what the seed decides, the start of the weights and the
order of the clients or of the examples, so that the mean of their differences says more
than the difference of two means.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from experiments.common import results, table


@dataclasses.dataclass(frozen=True)
class Difference:
    """A mean over seeds with its interval.

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


def between(
    first: Sequence[results.Run],
    second: Sequence[results.Run],
    metric: str,
    scale: float = 100,
) -> Difference | None:
    """Compares two cells by the seeds that are finished in both.

    Args:
        first: The runs of what is compared.
        second: Those of what it is compared with.
        metric: A column of metrics.csv.
        scale: What to multiply it by: 100 makes points of a share.

    Returns:
        How much more `first` has; None without a common seed.

    Raises:
        InvalidInputError: If a finished run did not measure it.
    """
    theirs = {run.seed: run.final(metric, scale) for run in second if run.is_done}
    common = [run for run in first if run.is_done and run.seed in theirs]
    if not common:
        return None
    return Difference(
        tuple(run.final(metric, scale) - theirs[run.seed] for run in common)
    )


def in_bold(difference: Difference | None) -> str:
    """Writes it for Markdown: bold if the interval excludes zero, "" of None."""
    if difference is None:
        return ""
    return f"**{difference}**" if difference.is_told else str(difference)


def as_markdown(
    what: str, titles: Sequence[str], rows: Mapping[str, Sequence[Difference | None]]
) -> str:
    """Writes differences as a table, with a caption that says what they are.

    Args:
        what: Of what, and in which unit, such as "top-1, in points".
        titles: What is compared with what: one for each column.
        rows: A difference for each column, or None, by the title of the row.

    Returns:
        A blank line, the caption, a blank line, and the table without the rows and
        columns that have nothing; "" if none has anything.
    """
    shown = {title: row for title, row in rows.items() if any(row)}
    kept = [i for i in range(len(titles)) if any(row[i] for row in shown.values())]
    if not kept:
        return ""
    text = table.as_markdown(
        ["", *(titles[i] for i in kept)],
        [[title, *(in_bold(row[i]) for i in kept)] for title, row in shown.items()],
    )
    return f"\n{caption(what)}\n\n{text}\n"


def caption(what: str) -> str:
    """Says what a table of differences shows; see `as_markdown`."""
    return (
        f"Differences in {what}: the mean over finished runs of the same seeds, ± half "
        "of its 95 % interval (Student's t). Bold: the interval excludes zero."
    )
