"""Progress bars, shown on terminals only, not in logs."""

from collections.abc import Iterable

import tqdm


def bar(
    what: str,
    total: int | None = None,
    unit: str = "images",
    items: Iterable | None = None,
    **options,
) -> tqdm.tqdm:
    """Makes a progress bar, which shows after two seconds.

    Args:
        what: What is being done, such as "Reading".
        total: How many units there are; by default as many as there are items.
        unit: What is counted. "B" is shortened: kB, MB, GB.
        items: To iterate over the bar instead of calling its `update`.

    Returns:
        The bar, a context manager and an iterator over the items.
    """
    options = {"delay": 2, "disable": None, "unit_scale": unit == "B", **options}
    unit = unit if unit == "B" else f" {unit}"
    return tqdm.tqdm(items, what, total, unit=unit, **options)
