"""Tables: their bytes, and that no digit is lost."""

from experiments.common import table


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
