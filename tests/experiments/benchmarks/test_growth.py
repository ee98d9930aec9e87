"""The benchmark of growth: its ratios, and one look at what it measures."""

import csv

import pandas as pd
import pytest

from experiments.benchmarks import growth


def test_ratios_are_to_the_first_row_of_a_series():
    columns = ["series", "seconds", "first_seconds", "classifier_mib", "peak_mib"]
    rows = [
        ("n_d64", 1.0, 4.0, 1.0, 700.0),
        ("n_d64", 1.2, 4.0, 245.0, 1310.0),
        ("cohort", 0.5, 1.0, 1.0, 700.0),
    ]
    table = growth.with_ratios(pd.DataFrame(rows, columns=columns))
    assert table.of_first.tolist() == [1, 1.2, 1]
    assert table.first_round[1] == pytest.approx(4 / 1.2)
    assert table.memory_over_w[1] == pytest.approx(2.5)  # (1310 - 700) / (245 - 1).
    assert table.memory_over_w[[0, 2]].isna().all()


@pytest.mark.slow
def test_measures_cases_in_processes_of_their_own(tmp_path):
    cases = [growth.Case(num_classes=n, cohort_size=2) for n in (200, 400)]
    growth.measure({"n_d64": cases}, repeats=1, folder=tmp_path)
    first, second = csv.DictReader((tmp_path / "growth.csv").open())
    assert float(first["seconds"]) > 0 and float(first["peak_mib"]) > 100
    # 90 positives and 80 negatives, a row of 64 floats each.
    assert float(second["bytes_down"]) == 170 * 64 * 4
    assert (tmp_path / "growth.md").exists()
