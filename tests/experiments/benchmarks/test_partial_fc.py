"""The benchmark of Partial FC: its tables, and one look at what it measures."""

import csv
import dataclasses

import pytest

from experiments.benchmarks import partial_fc


def row(num_classes, sample_rate, seconds, peak_mib):
    case = partial_fc.Case(num_classes, sample_rate)
    return {
        **dataclasses.asdict(case),
        "seconds": seconds,
        "seconds_min": seconds,
        "seconds_max": seconds,
        "examples_per_second": 64 / seconds,
        "classes_per_step": sample_rate * num_classes,
        "sampling_seconds": 0.01,
        "build_seconds": 1.0,
        "first_seconds": 2.0,
        "classifier_mib": case.classifier_bytes / 2**20,
        "peak_mib": peak_mib,
        "cores": 2,
    }


def test_rates_are_compared_with_the_full_softmax(tmp_path):
    rows = [row(2**20, 1.0, 3.0, 1024), row(2**20, 0.1, 0.5, 768)]
    lines = partial_fc._as_markdown(rows).splitlines()[-2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[1][:3] == ["1,048,576", "0.1", "0.500"]
    assert [line[5] for line in cells] == ["1.00 times", "6.00 times"]
    # 256 MiB of W, and as much of momentum.
    assert cells[1][8:] == ["512", "768", "1.50", "3.00"]
    partial_fc._plot(rows, tmp_path / "partial_fc.png")
    assert (tmp_path / "partial_fc.png").stat().st_size > 1000


@pytest.mark.slow
def test_measures_cases_in_processes_of_their_own_and_none_twice(tmp_path, capsys):
    small = partial_fc.Case(4000, 0.1, num_devices=2, batch_size=8, embedding_dim=8)
    full = dataclasses.replace(small, sample_rate=1.0)
    partial_fc.measure([small], 1, tmp_path)
    partial_fc.measure([full, small], 1, tmp_path)
    assert capsys.readouterr().out.count("n=4,000 r=0.1:") == 1
    first, second = csv.DictReader((tmp_path / "partial_fc.csv").open())
    assert float(first["sample_rate"]) == 1.0
    assert float(first["classes_per_step"]) == 4000
    assert float(second["classes_per_step"]) == pytest.approx(407, abs=4)
    assert float(second["seconds"]) > 0 and float(second["peak_mib"]) > 100
