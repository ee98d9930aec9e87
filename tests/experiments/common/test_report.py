"""The page of a table beside numbers that pandas and SciPy give by another way."""

import io
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import experiments
from experiments.common import cells, report
from tests.experiments import run_folders
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("undrawn")
COMMAND = ("./run.sh", "table", "toy/1")
# A paper in a folder of its own: two rows, two columns, and a cell without a column.
CELLS = '''
"""A toy paper."""
from experiments.common import results
from experiments.common.cells import Cell, Metric, table

KIND = results.RunKind(
    paper="toy",
    run_name=lambda flags: "toy",
    cell_flags=frozenset({"sample_rate", "sampling", "margin"}),
)
METRICS = (
    Metric("top1", "top-1"),
    Metric("tar_at_far", "TAR", ".3f", 1, has_std=False, difference_scale=0),
)
CELLS = [
    Cell(
        f"{row}_{rate}",
        {"sampling": row, "sample_rate": rate},
        f"{row}, rate {rate}",
        row=row,
        column=f"r = {rate}",
    )
    for row in ("pprn", "all_random")
    for rate in (0.1, 0.5)
] + [Cell("full", {"sampling": "pprn", "sample_rate": 1.0}, "full", row="full")]
PAGE = dict(
    kind=KIND,
    metrics=METRICS,
    pairs=(
        ("pprn", "all_random"),
        ("pprn", "full"),
        ("pprn", ("pprn", "r = 0.1")),
    ),
    best_of=("full",),
    no_column="none",
    has_late=True,
)
TABLES = {
    ("1", "mini"): table("Toy", CELLS, "toy", is_pivot=True, **PAGE),
    ("flat", "mini"): table("Flat", CELLS, "toy", **PAGE),
}
'''
PAPER = """table,cell,metric,value,std,source
1,"pprn, r = 0.1",top1,51.7,0.40,Table 1
1,full,top1,56.8,,Table 1
1,"other, r = 0.1",top1,43.1,,section 2
"""
# By cell, the metric after the last round of each seed; a quarter of it came late.
VALUES = {
    "pprn_0.1": {0: 0.501, 1: 0.532, 2: 0.518},
    "pprn_0.5": {0: 0.61, 1: 0.645, 2: 0.63},
    "all_random_0.1": {0: 0.42, 1: 0.431, 2: 0.44},
    "all_random_0.5": {2: 0.55, 3: 0.56},
    "full": {0: 0.7012, 1: 0.7004, 2: 0.699},
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The tables of the toy paper, which is a folder with cells.py and paper.csv."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "cells.py").write_text(CELLS)
    (tmp_path / "toy" / "paper.csv").write_text(PAPER)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    yield cells.tables_of("toy")
    for name in [x for x in sys.modules if x.startswith("experiments.toy")]:
        del sys.modules[name]


def write(folder, cell, seed, value, **flags):
    row, _, rate = cell.rpartition("_")
    rows = [{"tar_at_far": 0.25, "top1": x * value} for x in (0, 0.25, 0.5, 0.75, 1)]
    own = {"sampling": row or "pprn", "sample_rate": rate if row else 1.0}
    return run_folders.write_own_run(
        folder / cell / f"seed{seed}",
        "toy",
        rows,
        flags={**own, "seed": seed, **flags},
    )


@pytest.fixture
def runs(tmp_path):
    for cell, values in VALUES.items():
        for seed, value in values.items():
            write(tmp_path / "runs", cell, seed, value)
    return tmp_path / "runs"


def page(toy, runs, name="1"):
    key = (name, "mini")
    return report.write_table(key, toy[key], runs, 3, COMMAND)


def tables(text):
    """The Markdown tables of a page, as frames of texts by row and column."""
    found, lines = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(line.strip("|"))
        elif lines:
            frame = pd.read_csv(
                io.StringIO("\n".join([lines[0], *lines[2:]])),
                sep="|",
                dtype=str,
                keep_default_na=False,
                skipinitialspace=True,
            ).map(str.strip)
            frame.columns = [column.strip() for column in frame.columns]
            found.append(frame.set_index(frame.columns[0]))
            lines = []
    return found


def interval(first, second):
    """The paired 95 % interval of SciPy, in points, as the page writes it."""
    seeds = sorted(set(first) & set(second))
    a, b = ([100 * x[seed] for seed in seeds] for x in (first, second))
    ahead = np.subtract(a, b)
    low, high = stats.t.interval(0.95, len(ahead) - 1, ahead.mean(), stats.sem(ahead))
    text = f"{ahead.mean():+.1f} ± {(high - low) / 2:.1f}"
    return f"**{text}**" if stats.ttest_rel(a, b).pvalue < 0.05 else text


def test_a_pivot_has_means_and_deviations_of_the_seeds(toy, runs):
    values = tables(page(toy, runs))[0]
    for cell, row, column in (
        ("pprn_0.1", "pprn", "r = 0.1"),
        ("pprn_0.5", "pprn", "r = 0.5"),
        ("all_random_0.1", "all_random", "r = 0.1"),
    ):
        own = 100 * pd.Series(VALUES[cell])
        assert values.loc[row, column] == f"{own.mean():.1f} ± {own.std(ddof=1):.1f}"
    own = 100 * pd.Series(VALUES["all_random_0.5"])
    expected = f"{own.mean():.1f} ± {own.std(ddof=1):.1f} (2/3)"
    assert values.loc["all_random", "r = 0.5"] == expected
    assert values.loc["full (best)", "none"] == "70.1"
    assert values.loc["full (best)", "r = 0.1"] == ""


def test_the_papers_numbers_stand_as_they_are_printed(toy, runs):
    text = page(toy, runs)
    values, *_, other = tables(text)
    assert values.loc["pprn, paper", "r = 0.1"] == "51.7 ± 0.40"
    assert values.loc["full, paper", "none"] == "56.8"
    assert "all_random, paper" not in values.index
    assert other.loc["other, r = 0.1", "top-1"] == "43.1"
    assert "- The paper's numbers: Table 1, section 2." in text


def test_differences_are_paired_by_seed(toy, runs):
    (differences,) = (x for x in tables(page(toy, runs)) if "pprn − full" in x.index)
    for rate in (0.1, 0.5):
        pprn, other = VALUES[f"pprn_{rate}"], VALUES[f"all_random_{rate}"]
        column = f"r = {rate}"
        if rate == 0.1:
            expected = interval(pprn, other)
        else:  # One seed in common, and so no interval.
            expected = f"{100 * (pprn[2] - other[2]):+.1f}"
        assert differences.loc["pprn − all_random", column] == expected
        expected = interval(pprn, VALUES["full"])
        assert differences.loc["pprn − full", column] == expected
    growth = differences.loc["pprn − pprn (r = 0.1)"]
    assert growth["r = 0.5"] == interval(VALUES["pprn_0.5"], VALUES["pprn_0.1"])
    assert growth["r = 0.1"] == ""


def test_the_late_gain_is_that_of_the_last_quarter(toy, runs):
    late = tables(page(toy, runs))[-3]
    gains = {seed: value / 4 for seed, value in VALUES["pprn_0.1"].items()}
    expected = interval(gains, dict.fromkeys(gains, 0.0))
    assert late.loc["pprn", "r = 0.1"] == expected


def test_a_flat_page_has_a_row_for_each_cell(toy, runs):
    (values, differences) = tables(page(toy, runs, "flat"))
    own = 100 * pd.Series(VALUES["pprn_0.5"])
    row = values.loc["pprn, rate 0.5"]
    assert row["top-1"] == f"{own.mean():.1f} ± {own.std(ddof=1):.1f}"
    assert (row["TAR"], row["seeds"]) == ("0.250", "3/3")
    assert values.loc["all_random, rate 0.5", "seeds"] == "2/3"
    assert "pprn − all_random" in differences.index


def test_the_frame_has_a_row_for_each_run(toy, runs):
    page(toy, runs)
    frame = pd.read_csv(runs / "table1.csv")
    expected = {
        (cell, seed): value
        for cell, values in VALUES.items()
        for seed, value in values.items()
    }
    found = frame.set_index(["cell", "seed"])["top1"].to_dict()
    assert found == expected
    assert frame["rounds"].unique().tolist() == [4]


def test_an_archive_of_several_tables_gives_the_same_page(toy, runs, tmp_path):
    expected = page(toy, runs)
    several = tmp_path / "several"
    write(several, "pprn_0.1", 0, 0.1)  # Of a table with cells of the same names.
    runs.rename(several / "toy")
    assert page(toy, several) == expected


def test_missing_and_unfinished_runs_are_said(toy, runs):
    for seed in VALUES["full"]:
        (runs / "full" / f"seed{seed}" / "done.json").unlink()
    text = page(toy, runs)
    assert tables(text)[0].loc["full (best)", "none"] == "-"
    assert "11 of 15 runs are done" in text and "no finished run" in text
    assert "- Rounds: 4; not there yet: full seed 0 (after 4), full seed 1" in text
    assert "pprn − full" not in text
    (runs / "full").rename(runs / "elsewhere")
    text = page(toy, runs)
    assert "none yet in full" in text and "- Seeds: 0, 1, 2 in " in text
    assert "- Rounds: 4\n" in text  # Those of the runs.


def text_of(path, old, new):
    def change(runs):
        text = (runs / path).read_text()
        assert old in text
        (runs / path).write_text(text.replace(old, new))

    return change


RUN = "pprn_0.1/seed1"
BAD = [  # What else may be wrong in a run: test_results.py.
    (
        text_of(f"{RUN}/flags.txt", "sample_rate=0.1", "sample_rate=0.5"),
        f"{RUN}/flags.txt: --sample_rate=0.5, but the cell pprn_0.1 has 0.1",
    ),
    (
        text_of(f"{RUN}/flags.txt", "learning_rate=0.001", "learning_rate=9"),
        "runs of a cell differ in --seed alone",
    ),
    (
        lambda runs: [
            text_of(f"full/seed{i}/flags.txt", "rate=0.001", "rate=9")(runs)
            for i in range(3)
        ],
        "one table cannot hold both",
    ),
    (
        text_of(f"{RUN}/metrics.csv", "4,0.25,0.532", "4,0.25,"),
        f"{RUN}/metrics.csv:6: the run is done, but its last row has no top1",
    ),
    (  # A flag in which cells may differ, but these do not.
        lambda runs: [
            text_of(f"full/seed{i}/flags.txt", "--seed", "--margin=x\n--seed")(runs)
            for i in range(3)
        ],
        r"full/seed0/flags.txt: --margin=x, but .*pprn_0.1/seed0 has \(unset\), and",
    ),
]


@pytest.mark.parametrize("damage, message", BAD)
def test_what_would_give_a_wrong_number_is_refused(toy, runs, damage, message):
    damage(runs)
    with refused(message):
        page(toy, runs)
