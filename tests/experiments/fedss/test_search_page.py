import csv
import dataclasses
import math

import pytest

from experiments.common import cells as cells_lib
from experiments.fedss import report
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


def test_cells_on_validation_look_at_no_test():
    for name in ("rates", "retrieval_rates", "spreadout"):
        table = cells_lib.tables_of("fedss")[name, "mini"]
        for cell in table.cells.values():
            assert cell.settings["on_validation"] is True
            assert cell.settings["validation_share"] > 0
