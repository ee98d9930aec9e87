"""Figures that are written whole or not at all."""

import contextlib
import pathlib
from collections.abc import Iterator

import matplotlib

matplotlib.use("Agg")  # No screen is needed.

import matplotlib.pyplot as plt

from experiments.common import output_files


@contextlib.contextmanager
def png(path: pathlib.Path, *grid: int, **options) -> Iterator[tuple]:
    """Makes a figure and, unless the body fails, writes it.

    Args:
        path: The file, in a folder that exists; replaced whole or not at all.
        *grid: Rows and columns of panels.
        **options: For `plt.subplots`.

    Yields:
        The figure and its panels.

    Raises:
        InvalidInputError: If it cannot be written.
    """
    options.setdefault("figsize", (6, 4))
    figure, axes = plt.subplots(*grid, layout="constrained", **options)
    try:
        yield figure, axes
        output_files.write_png(path, figure)
    finally:
        plt.close(figure)
