"""Runs of two cells compared seed by seed.

Runs of the same seed share what the seed decides, the start of the weights and the
order of the clients or of the examples, so that the mean of their differences says more
than the difference of two means.
"""

import dataclasses
import statistics
from collections.abc import Sequence

import pandas as pd

from experiments.common import table

CAPTION = (
    "the mean over finished runs of the same seeds, ± half of its 95 % interval "
    "(Student's t). Bold: the interval excludes zero."
)


@dataclasses.dataclass(frozen=True)
class Difference:
    """A mean over seeds with its interval.

    Attributes:
        values: The value of each seed.
        digits: How many to write after the point.
    """

    values: Sequence[float]
    digits: int = 1

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def is_significant(self) -> bool:
        """Whether the 95 % interval of the mean excludes zero; it needs two seeds."""
        half = table.half_width(self.values)
        return half is not None and abs(self.mean) > half

    def __str__(self) -> str:
        """Writes `+4.2 ± 3.7` for Markdown, in bold if significant; "" of no seed."""
        if not self.values:
            return ""
        text = table.signed_mean(self.values, self.digits)
        return f"**{text}**" if self.is_significant else text


def between(
    first: pd.Series, second: pd.Series, scale: float = 100, digits: int = 1
) -> Difference:
    """Compares a metric of two cells by the seeds that have it in both.

    Args:
        first: The metric of each run by its seed.
        second: That of the cell to compare with.
        scale: What to multiply it by: 100 makes points of a share.
        digits: See `Difference`.

    Returns:
        How much more `first` has.
    """
    both = pd.concat([first, second], axis=1, join="inner").dropna()
    values = scale * both.iloc[:, 0] - scale * both.iloc[:, 1]
    return Difference(values.tolist(), digits)
