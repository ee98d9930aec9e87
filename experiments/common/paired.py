"""Runs of two cells compared seed by seed.

Runs of the same seed share what the seed decides, the start of the weights and the
order of the clients or of the examples, so that the mean of their differences says more
than the difference of two means.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from experiments.common import results, table


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


def between(
    first: Sequence[results.Run], second: Sequence[results.Run], metric: str
) -> Difference | None:
    """Compares two cells by the seeds that are finished in both.

    Args:
        first: The runs of what is compared.
        second: Those of what it is compared with.
        metric: A column of metrics.csv that holds shares.

    Returns:
        How far `first` is ahead; None without a common seed.

    Raises:
        InvalidInputError: If a finished run did not measure it.
    """
    theirs = {run.seed: run.final(metric) for run in second if run.is_done}
    common = [run for run in first if run.is_done and run.seed in theirs]
    if not common:
        return None
    return Difference(tuple(run.final(metric) - theirs[run.seed] for run in common))


def in_bold(difference: Difference | None) -> str:
    """Writes it for Markdown: bold if the interval excludes zero, "" of None."""
    if difference is None:
        return ""
    return f"**{difference}**" if difference.is_told else str(difference)
