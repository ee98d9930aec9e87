import re

import numpy as np
from scipy import stats

from experiments.fedss import differences, table_results
from tests.experiments import run_folders

SIZES = (5, 20, 80)


def page(folder):
    asked = table_results.read(folder), SIZES, "top1", "top-1"
    lines = differences.as_markdown(*asked) + differences.late_as_markdown(*asked)
    return run_folders.unpadded("\n".join(lines))


def row(lines, name, table=0):
    """The cells of the row `name`, of the first table or of the second."""
    rows = [x for x in lines if x.startswith(f"| {name} |")]
    return [x.strip() for x in rows[table].strip("|").split("|")[1:]]


def oracle(values):
    """By scipy's t-test, and its interval."""
    mean, error = np.mean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, mean, error)
    text = f"{mean:+.1f} ± {(high - low) / 2:.1f}"
    return f"**{text}**" if stats.ttest_1samp(values, 0).pvalue < 0.05 else text


def test_differences_are_of_runs_of_the_same_seed(tmp_path):
    run_folders.write_table(tmp_path)
    lines = page(tmp_path)
    percents = {
        name.removeprefix("omniglot_"): np.array(values)
        for name, values in run_folders.PERCENTS.items()
    }
    for title, method in (
        ("FullSoftmax", "full_softmax"),
        ("NegOnly", "neg_only"),
        ("FedAwS", "fedaws"),
    ):
        expected = [
            oracle(
                percents[f"fedss_m{m}"]
                - percents.get(method, percents.get(f"{method}_m{m}"))
            )
            for m in SIZES
        ]
        assert row(lines, f"FedSS − {title}") == [*expected, ""]
    apart = percents["fedaws"] - percents["pos_only"]
    assert row(lines, "FedAwS − PosOnly") == ["", "", "", oracle(apart)]
    few = percents["fedss_m5"]
    grown = [oracle(percents[f"fedss_m{m}"] - few) for m in (20, 80)]
    assert row(lines, "FedSS − FedSS (m = 5)") == ["", *grown, ""]
    # Some are told and some are not.
    cells = re.findall(r"\| ([*+-][^|]*±)", "\n".join(lines))
    assert {cell.startswith("**") for cell in cells} == {True, False}


def test_a_seed_that_one_of_them_lacks_is_left_out(tmp_path):
    for seed, percent in ((0, 50.0), (1, 60.0), (2, 90.0)):
        run_folders.write_run(tmp_path, "omniglot_fedss_m5", seed, percent)
    for seed, percent in ((2, 88.0), (3, 10.0)):
        run_folders.write_run(tmp_path, "omniglot_full_softmax", seed, percent)
    # One seed has no interval, and nothing is told by it.
    assert row(page(tmp_path), "FedSS − FullSoftmax")[0] == "+2.0"


def test_gain_of_the_last_quarter(tmp_path):
    gains = []
    for seed, percent in enumerate((40.0, 44.0, 60.0)):
        run = run_folders.write_run(
            tmp_path, "omniglot_pos_only", seed, percent, rounds=8
        )
        rows = [x.split(",") for x in (run / "metrics.csv").read_text().splitlines()]
        column = rows[0].index("top1")
        values = {int(x[1]): float(x[column]) for x in rows[1:] if x[column]}
        gains.append(100 * (values[8] - values[6]))
    assert row(page(tmp_path), "PosOnly") == ["", "", "", oracle(gains)]


def test_the_last_quarter_is_no_longer_than_what_was_measured(tmp_path):
    # Measured after 0, 4, ..., 28, 32, 36 and 40 rounds: 28 and 32 are equally near 30.
    run_folders.write_run(
        tmp_path, "omniglot_pos_only", 0, 40.0, rounds=40, rounds_per_evaluation=4
    )
    lines = page(tmp_path)
    # The metric grows evenly, to 40 after 40 rounds.
    assert row(lines, "PosOnly") == ["", "", "", "+8.0"]
    assert any("from round 32 of 40, the measurement nearest" in x for x in lines)


def test_nothing_is_written_of_nothing(tmp_path):
    run_folders.write_run(tmp_path, "omniglot_pos_only", 0, 40.0, rounds_done=2)
    assert page(tmp_path) == []
