"""Steps of Partial FC by n and r: ratios, and one look at what is measured."""

import csv

import pandas as pd
import pytest

from experiments.partial_fc import scale


def test_rates_are_compared_with_the_full_softmax():
    columns = [
        "num_classes",
        "sample_rate",
        "seconds",
        "w_and_momentum_mib",
        "peak_mib",
    ]
    rows = [(2**20, 1.0, 3.0, 512, 1024), (2**20, 0.1, 0.5, 512, 768)]
    table = scale.with_ratios(pd.DataFrame(rows, columns=columns))
    assert table.of_full.tolist() == [1, 6]
    assert table.peak_over_w_and_momentum.tolist() == [2, 1.5]


@pytest.mark.slow
def test_measures_cases_in_processes_of_their_own(tmp_path):
    small = dict(num_devices=2, batch_size=8, embedding_dim=8)
    cases = [scale.Case(4000, rate, **small) for rate in (1.0, 0.1)]
    scale.measure(cases, 1, tmp_path)
    first, second = csv.DictReader((tmp_path / "partial_fc.csv").open())
    assert float(first["classes_per_step"]) == 4000
    assert float(second["classes_per_step"]) == pytest.approx(407, abs=4)
    assert float(second["seconds"]) > 0 and float(second["peak_mib"]) > 100
    assert (tmp_path / "partial_fc.md").exists()
