"""Tables: their bytes, and that no digit is lost."""

import math
import statistics

import pytest

from experiments.common import table


def test_an_interval_is_students():
    """t of 0.975 with two degrees of freedom is 4.303."""
    values = [50.0, 53.0, 54.0]
    expected = 4.3027 * statistics.stdev(values) / math.sqrt(3)
    assert table.half_width(values) == pytest.approx(expected, rel=1e-4)
    assert table.half_width([50.0]) is None


def test_markdown_stands_in_line():
    text = table.as_markdown(
        ["|S_k|", "n", "n", "note"],
        [["a", 1, None, "0.10"], ["bb", 22, "", "x"]],
        (0, 3),
    )
    assert text.splitlines() == [
        r"| \|S_k\| |  n | n | note |",
        "|:--------|---:|--:|:-----|",
        "| a       |  1 |   | 0.10 |",
        "| bb      | 22 |   | x    |",
    ]


def test_mean_and_standard_deviation():
    assert table.mean_std([], 1) == ""
    assert table.mean_std([1.25], 1) == "1.2"
    assert table.mean_std([1000.0, 1002.0], 2) == "1,001.00 ± 1.41"
