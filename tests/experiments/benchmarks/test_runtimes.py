"""The benchmark of the runtimes: one look at everything that it measures."""

import csv

import pytest

from experiments.benchmarks import runtimes


@pytest.mark.slow
def test_measures_training_and_exchange(tmp_path, capsys):
    runtimes.measure(["small_cnn"], [200], [2], native=True, repeats=1, folder=tmp_path)
    assert "select + aggregate + server step, n = 200" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "runtimes.csv").open()))
    names = ["plain", "in_process, 2 at once", "native"]
    assert [row["runtime"] for row in rows] == 2 * names
    assert all(float(row["seconds_median"]) > 0 for row in rows)
    assert [bool(row["images_per_second"]) for row in rows] == 3 * [True] + 3 * [False]
    assert rows[0]["speed_of_plain"] == "1.0"
    text = (tmp_path / "runtimes.md").read_text()
    assert "## small_cnn, 28x28" in text and text.count("| native |") == 2
