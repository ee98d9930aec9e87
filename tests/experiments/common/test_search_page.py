import csv
import dataclasses
import math

import pytest

from experiments.common import cells as cells_lib
from experiments.fedss import report
from experiments.partial_fc import report as partial_fc_report
from tests.experiments import run_folders


def test_a_search_has_a_page_with_every_cell(tmp_path):
    key = ("long", "mini")
    table = cells_lib.tables_of("fedss")[key]
    table = dataclasses.replace(
        table,
        cells={
            name: table.cells[name]
            for name in (
                "omniglot_fedss_m10",
                "omniglot_pos_only",
                "omniglot_fedss_m20",
            )
        },
    )
    for seed, percent in enumerate((60.0, 62.0)):
        run_folders.write_run(tmp_path, "omniglot_fedss_m10", seed, percent)
    run_folders.write_run(tmp_path, "omniglot_pos_only", 0, 40.0, rounds_done=2)
    run_folders.write_run(tmp_path, "omniglot_neg_only_m5", 0, 5.0)  # Another's.
    text = report.write_table(key, table, tmp_path, 3, ["./run.sh", "table", "long"])
    assert (tmp_path / "search.md").read_text() == text
    assert "- Command: `./run.sh table long`" in text and "NegOnly" not in text
    with (tmp_path / "search.csv").open() as file:
        fedss, pos_only, missing = sorted(
            csv.DictReader(file), key=lambda row: row["seeds"], reverse=True
        )
    assert fedss["cell"] == "FedSS, m = 10" and fedss["seeds"] == "2/3"
    assert float(fedss["mean"]) == pytest.approx(61.0)
    assert float(fedss["std"]) == pytest.approx(math.sqrt(2))
    # Measured after rounds 0, 2 and 4: the last quarter begins at round 3.
    assert float(fedss["last_quarter"]) > 0
    assert {pos_only["seeds"], missing["seeds"]} == {"0/3"}
    assert pos_only["mean"] == missing["mean"] == ""
    run_folders.check_figure(tmp_path / "search.png")


def test_methods_are_compared_and_values_of_a_flag_are_not(tmp_path):
    for key, names in (
        ("long", ("omniglot_fedss_m10", "omniglot_full_softmax")),
        ("rates", ("omniglot_full_softmax_0.01", "omniglot_full_softmax_0.03")),
    ):
        for name, percents in zip(names, ((60.0, 62.5), (64.0, 66.0))):
            for seed, percent in enumerate(percents):
                run_folders.write_run(tmp_path / key, name, seed, percent)
        table = cells_lib.tables_of("fedss")[key, "mini"]
        text = report.write_table((key, "mini"), table, tmp_path / key, 2, ["x"])
        row = "| FedSS − FullSoftmax | **-3.8 ± 3.2** | |"
        assert (row in run_folders.table_rows(text)) == (key == "long")
        assert text.endswith("\n") and not text.endswith("\n\n")


def test_cells_on_validation_look_at_no_test():
    for name in ("rates", "retrieval_rates", "spreadout"):
        table = cells_lib.tables_of("fedss")[name, "mini"]
        for cell in table.cells.values():
            assert cell.settings["on_validation"] is True
            assert cell.settings["validation_share"] > 0


def test_the_rates_of_partial_fc_have_one_too(tmp_path):
    key = ("rates", "mini")
    table = cells_lib.tables_of("partial_fc")[key]
    assert all(c.settings["evaluate_on"] == "validation" for c in table.cells.values())
    for name, percent in (("pprn_0.1_0.001", 12.0), ("pprn_0.1_0.003", 14.5)):
        run_folders.write_own_run(
            tmp_path / name / "seed0",
            "partial_fc",
            "pprn_0.1",
            [{"steps": 9.0 * k, "map_at_r": k * percent / 400} for k in range(5)],
        )
    text = partial_fc_report.write_table(key, table, tmp_path, 1, ["./run.sh"])
    rows = run_folders.table_rows(text)
    assert any("learning rate 0.001 | 1/1 | 12.0 |" in row for row in rows)
    assert any("learning rate 0.003 | 1/1 | 14.5 |" in row for row in rows)
    assert "MAP@R in percent" in text
