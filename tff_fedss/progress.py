"""Progress of work on many items: bars on a terminal, lines in a log."""

import io
import sys
from collections.abc import Iterable

import tqdm

SECONDS_BETWEEN_LINES = 10.0
_COUNT = "{desc}  {n_fmt}/{total_fmt}{unit}"


class _Lines(tqdm.tqdm):
    """Writes a line every ten seconds instead of a bar."""

    _last = None

    def display(self, *_args, **_options) -> None:
        if self.n != self._last:  # The end is shown again when the bar is closed.
            self._last = self.n
            eta = "" if self.total is None else "  ETA {remaining}"
            self.bar_format = _COUNT + eta
            print(self, file=sys.stderr, flush=True)


def bar(
    what: str,
    total: int | None = None,
    unit: str = "images",
    items: Iterable | None = None,
    **options,
) -> tqdm.tqdm:
    """Makes a progress bar, which shows after two seconds on standard error.

    If that is not a terminal, lines are written instead, every ten seconds.

    Args:
        what: What is being done, such as "Reading".
        total: How many units there are; by default as many as there are items.
        unit: What is counted. "B" is shortened: kB, MB, GB.
        items: To iterate over the bar instead of calling its `update`.

    Returns:
        The bar, a context manager and an iterator over the items.
    """
    options = {"delay": 2, "unit_scale": unit == "B", **options}
    unit = unit if unit == "B" else f" {unit}"
    if sys.stderr.isatty():
        return tqdm.tqdm(items, what, total, unit=unit, **options)
    options.update(
        file=io.StringIO(),  # Gets what would clear a bar.
        mininterval=SECONDS_BETWEEN_LINES,
        delay=SECONDS_BETWEEN_LINES,
    )
    return _Lines(items, what, total, unit=unit, **options)
