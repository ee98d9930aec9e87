"""The benchmark of growth: its tables, and one look at what it measures."""

import csv
import dataclasses

import pytest

from experiments.benchmarks import growth


def _row(**values):
    return {
        "series": "n_d64",
        **dataclasses.asdict(growth.Case()),
        "classifier_mib": 1.0,
        "seconds": 1.0,
        "seconds_min": 1.0,
        "seconds_max": 1.0,
        "images_per_second": 6144.0,
        "build_seconds": 2.0,
        "first_seconds": 4.0,
        "peak_mib": 700.0,
        "bytes_down": 43520.0,
        "bytes_up": 44200.0,
        **values,
    }


def test_ratios_are_to_the_first_row_of_a_series(tmp_path):
    rows = [
        _row(),
        _row(num_classes=10**6, classifier_mib=245.0, seconds=1.2, peak_mib=1310.0),
        _row(series="cohort", seconds=0.5),
    ]
    text = growth._as_markdown(rows, repeats=5)
    lines = [line for line in text.splitlines() if line.startswith("| fedss")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[1][:6] == ["fedss", "1,000,000", "64", "64", "1.20", "1.20"]
    assert cells[1][8] == "3.3"  # The first round over the median.
    assert cells[1][11] == "2.50"  # (1310 - 700) / (245 - 1).
    assert cells[0][5] == cells[2][5] == "1.00" and cells[0][11] == ""
    growth._plot(rows, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


@pytest.mark.slow
def test_measures_cases_in_processes_of_their_own(tmp_path, monkeypatch, capsys):
    cases = [growth.Case(num_classes=n, cohort_size=2) for n in (200, 400)]
    monkeypatch.setitem(growth._CASES, "n_d64", cases)
    growth.measure(["n_d64"], repeats=1, folder=tmp_path)
    assert "fedss n=400 d=64 K=2" in capsys.readouterr().out
    first, second = csv.DictReader((tmp_path / "growth.csv").open())
    assert float(first["seconds"]) > 0 and float(first["peak_mib"]) > 100
    # 90 positives and 80 negatives, a row of 64 floats each.
    assert float(second["bytes_down"]) == 170 * 64 * 4
    assert (tmp_path / "growth.md").exists() and (tmp_path / "growth.png").exists()
