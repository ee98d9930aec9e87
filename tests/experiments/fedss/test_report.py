import csv
import dataclasses
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys

import pytest

from experiments.common import cells as cells_lib
from experiments.fedss import paper_order, paper_values, report
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError


@pytest.fixture
def make_table(tmp_path):
    """Writes a report: -> (rows of the Markdown table, text, CSV rows by cell)."""

    def make(table=1, scale="mini", wanted=(), **options):
        table_1 = cells_lib.tables_of("fedss")["1", "mini"]
        own = {
            name: cells_lib.Cell(
                name, wanted[name] if isinstance(wanted, dict) else {}, name
            )
            for name in wanted
        }
        options.setdefault("figures", ())
        folder = tmp_path / "runs"
        text = report.write(
            folder,
            table,
            scale,
            cells=dataclasses.replace(table_1, cells=own),
            **options,
        )
        output = pathlib.Path(options.get("output_dir", folder))
        assert (output / f"table{table}.md").read_text("utf-8") == text
        assert not list(output.glob(".*"))
        rows = {}
        for line in text.splitlines():
            if line.startswith("| "):
                name, *cells = (
                    cell.strip().replace("\\|", "|")
                    for cell in line.strip("|").replace("\\|", "\0").split("|")
                )
                rows.setdefault(name.replace("\0", "|"), cells)
        with (output / f"table{table}.csv").open(newline="") as file:
            by_cell = {(x["cell"], x["metric"]): x for x in csv.DictReader(file)}
        return rows, text, by_cell

    return make


def test_a_finished_table(tmp_path, make_table):
    run_folders.write_table(tmp_path / "runs")
    rows, text, by_cell = make_table()
    # (50 + 52 + 54) / 3 = 52, sqrt((4 + 0 + 4) / 2) = 2.
    assert rows["|S_k|"] == ["25", "40", "100", "no negatives"]
    assert rows["% of n"] == ["3.8 %", "6.1 %", "15.2 %", ""]  # of 659
    assert rows["FedSS"] == ["52.0 ± 2.0", "55.8 ± 1.0", "58.5 ± 0.5", ""]
    assert rows["NegOnly"] == ["7.3 ± 3.5", "22.0 ± 1.0", "26.0 ± 0.00", ""]
    assert rows["PosOnly"] == ["", "", "", "41.3 ± 1.5"]
    assert rows["FullSoftmax (best)"] == ["", "", "", "61.5"]
    assert rows["Centralized (best)"] == ["", "", "", "65.0"]
    assert "FedSS, no correction" not in rows
    # The paper's, where they are known.
    assert rows["|S_k|, paper (Landmarks)"][:2] == ["95 (4.7 %)", "110 (5.4 %)"]
    assert rows["FedSS, paper (Landmarks)"] == ["51.7 ± 0.4", "", "56.0 ± 0.06", ""]
    assert rows["PosOnly, paper (Landmarks)"] == ["", "", "", ""]
    assert rows["FedAwS, paper (Landmarks)"] == ["", "", "", ""]
    assert rows["FullSoftmax, paper (Landmarks)"] == ["", "", "", "56.8"]
    assert "43.1 of the paper's Table 1 belongs to PosOnly or FedAwS" in text
    assert "not comparable" in text and "`-`" not in text

    assert len(by_cell) == len(run_folders.PERCENTS)
    for cell, percents in run_folders.PERCENTS.items():
        row = by_cell[cell, "top1"]
        assert row["table"] == "1" and row["seeds"] == "3" and row["rounds"] == "4"
        assert float(row["mean"]) == pytest.approx(statistics.mean(percents))
        spread = (
            sum((x - statistics.mean(percents)) ** 2 for x in percents) / 2
        ) ** 0.5
        assert float(row["std"]) == pytest.approx(spread)
        assert float(row["best"]) == pytest.approx(max(percents))
        # 4 rounds of 1.5 s and 3 evaluations of 0.5 s, 3 seeds.
        assert float(row["hours"]) == pytest.approx(22.5 / 3600, abs=1e-4)
    fedss = by_cell["omniglot_fedss_m5", "top1"]
    assert (fedss["method"], fedss["m"], fedss["S_k"]) == ("FedSS", "5", "25")
    assert float(fedss["percent_of_n"]) == pytest.approx(100 * 25 / 659)
    assert (fedss["paper_value"], fedss["paper_std"]) == ("51.7", "0.4")
    full = by_cell["omniglot_full_softmax", "top1"]
    assert (full["m"], full["S_k"], full["percent_of_n"]) == ("", "659", "100.0")
    assert (full["paper_value"], full["paper_std"]) == ("56.8", "")
    assert by_cell["omniglot_pos_only", "top1"]["paper_value"] == ""
    assert by_cell["omniglot_centralized", "top1"]["S_k"] == ""


def test_the_header_says_what_made_the_table(tmp_path, make_table):
    run_folders.write_table(
        tmp_path / "runs", command=["/somewhere/train.py", "--data_dir=my data"]
    )
    command = ["./run.sh", "table", "1", "--data_dir=my data"]
    _, text, _ = make_table(command=command)
    for part in (
        "# Table 1, --scale=mini: Omniglot",
        "Omniglot, n = 659 classes, |P_k| = 19.6 on average",
        "Rounds: 4 (paper: 5,000)",
        "Seeds: 0, 1, 2 in each of 10 cells; 30 of 30 runs are done\n",
        "Command: `./run.sh table 1 '--data_dir=my data'`\n",
        "Runs: `./run.sh train '--data_dir=my data'`\n",
        "tff_fedss 0.1.0, tensorflow 2.15.1",
        "Commit: c0ffee\n",
        "Abacus 3000, 2 CPUs, 23.5 GiB, no GPU",
        f"Hours: {30 * 7.5 / 3600:.2f},",
        # (659 - 100) * 64 of 50,000 + 659 * 64
        "At |S_k| = 100 a client is spared 38.8 % of the model's 92,176 parameters",
    ):
        assert part in text, part
    assert "differ between cells" not in text and "/somewhere" not in text


def test_commands_of_runs_that_differ_in_cell_and_seed_are_one(tmp_path, make_table):
    for cell in ("omniglot_pos_only", "omniglot_fedaws"):
        for seed in (0, 12):
            run_folders.write_run(
                tmp_path / "runs",
                cell,
                seed,
                40.0,
                command=[
                    "train.py",
                    f"--flagfile=cells/{cell}.flags",
                    f"--seed={seed}",
                    f"--results_dir=out/{cell}/seed{seed}",
                ],
            )
    _, text, _ = make_table()
    (line,) = (x for x in text.splitlines() if x.startswith("- Runs: "))
    assert line == (
        "- Runs: `./run.sh train --flagfile=cells/CELL.flags --seed=SEED "
        "--results_dir=out/CELL/seedSEED`"
    )
    assert "- Command:" not in text  # Python has written it.
    (tmp_path / "runs" / "omniglot_fedaws" / "seed0" / "run.json").unlink()
    assert "seedSEED`, 1 unknown\n" in make_table()[1]


def test_seeds_and_rounds_that_are_there(tmp_path, make_table):
    write = run_folders.write_run
    for cell, seeds in (
        ("omniglot_fedss_m5", (0, 1)),
        ("omniglot_fedss_m20", (0, 1)),
        ("omniglot_pos_only", (4,)),
    ):
        for seed in seeds:
            write(tmp_path / "runs", cell, seed, 50.0)
    write(tmp_path / "runs", "omniglot_fedaws", 0, 50.0, rounds_done=1)
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    _, text, _ = make_table(wanted=[*names, "omniglot_centralized"])
    assert (
        "Seeds: 0, 1 in omniglot_fedss_m20, omniglot_fedss_m5; 0 in omniglot_fedaws; "
        "4 in omniglot_pos_only; none yet in omniglot_centralized; 5 of 15 runs are "
        "done\n"
    ) in text
    assert (
        "Rounds: 4 (paper: 5,000); not there yet: omniglot_fedaws seed 0 (after 1)\n"
    ) in text
    assert "over the finished seeds (ddof = 1)" in text
    _, text, _ = make_table(wanted=[*names, "omniglot_centralized"], num_seeds=1)
    assert "; 5 of 7 runs are done" in text


def test_collapsed_runs_are_marked(tmp_path, make_table):
    for seed in range(3):
        run_folders.write_run(
            tmp_path / "runs", "omniglot_fedss_m5", seed, 5.0, collapsed=seed == 1
        )
    run_folders.write_run(tmp_path / "runs", "omniglot_pos_only", 0, 9.0)
    rows, text, by_cell = make_table()
    assert rows["FedSS"] == ["5.0 ± 0.00 †", ""]
    assert rows["PosOnly"] == ["", "9.0 (1/3)"]
    (note,) = (line for line in text.splitlines() if line.startswith("- †"))
    assert "collapsed (1 of 3 seeds of FedSS (m = 5))" in note
    assert "--warm_start_epochs, --pretrained" in note
    assert by_cell["omniglot_fedss_m5", "top1"]["collapsed"] == "1"
    assert by_cell["omniglot_pos_only", "top1"]["collapsed"] == "0"


def test_retrieval_of_unseen_classes_has_a_table_of_its_own(tmp_path, make_table):
    for cell, percent, unseen in (
        ("omniglot_fedss_m5", 50.0, (20.0, 22.0)),
        ("omniglot_pos_only", 40.0, (11.0, 13.0)),
    ):
        for seed in range(2):
            run_folders.write_run(
                tmp_path / "runs", cell, seed, percent, unseen_map_at_10=unseen[seed]
            )
    _, text, by_cell = make_table(num_seeds=2)
    table, more = text.split("MAP@10 of the images of classes that nobody has")
    assert "51.7 ± 0.4" in table and "| 50.0 ± 0.00" in table
    assert "21.0 ± 1.4" not in table
    assert "21.0 ± 1.4" in more and "12.0 ± 1.4" in more and "paper" not in more
    assert by_cell["omniglot_fedss_m5", "unseen_map_at_10"]["mean"] == "21.0"
    assert by_cell["omniglot_fedss_m5", "top1"]["mean"] == "50.0"


def test_the_best_retrieval_of_unseen_classes_is_the_best(tmp_path, make_table):
    for seed, (percent, unseen) in enumerate(((60.0, 20.0), (58.0, 23.0))):
        run_folders.write_run(
            tmp_path / "runs",
            "omniglot_full_softmax",
            seed,
            percent,
            unseen_map_at_10=unseen,
        )
    _, text, by_cell = make_table(num_seeds=2)
    table, more = text.split("MAP@10 of the images of classes that nobody has")
    assert "60.0" in table and "23.0" in more and "20.0" not in more
    assert by_cell["omniglot_full_softmax", "unseen_map_at_10"]["best"] == "23.0"


def test_unfinished_cells(tmp_path, make_table):
    write = run_folders.write_run
    folder = tmp_path / "runs"
    write(folder, "omniglot_fedss_m5", 0, 50.0)
    write(folder, "omniglot_fedss_m5", 1, 53.0)
    write(folder, "omniglot_fedss_m5", 2, 90.0, rounds_done=2)
    write(folder, "omniglot_pos_only", 0, 40.0)
    write(folder, "omniglot_full_softmax", 0, 60.0, rounds_done=0)
    rows, text, by_cell = make_table(
        wanted=[
            "omniglot_fedss_m5",
            "omniglot_fedss_m5_uncorrected",
            "omniglot_fedss_m10",
            "omniglot_pos_only",
            "omniglot_full_softmax",
            "omniglot_centralized",
        ]
    )
    assert rows["|S_k|"] == ["25", "30", "no negatives"]
    assert rows["FedSS"] == ["51.5 ± 2.1 (2/3)", "-", ""]
    assert rows["FedSS, no correction"] == ["-", "-", ""]
    assert rows["PosOnly"] == ["", "", "40.0 (1/3)"]
    assert rows["FullSoftmax (best)"] == rows["Centralized (best)"] == ["", "", "-"]
    assert "3 of 18 runs are done" in text
    assert "`-`: not finished" in text
    assert "cannot be told yet" in text and "still wait for seeds" in text
    waiting = by_cell["omniglot_fedss_m10", "top1"]
    assert waiting["seeds"] == "0" and waiting["mean"] == waiting["best"] == ""
    single = by_cell["omniglot_pos_only", "top1"]
    assert (single["seeds"], single["std"]) == ("1", "")
    assert float(single["mean"]) == pytest.approx(40)


def test_nothing_is_finished(tmp_path, make_table):
    run_folders.write_run(
        tmp_path / "runs", "omniglot_fedss_m5", 0, 50.0, rounds_done=0
    )
    rows, text, _ = make_table()
    assert rows["|S_k|"] == ["m = 5", "no negatives"] and rows["% of n"] == ["-", ""]
    assert rows["FedSS"] == ["-", ""]
    assert "0 of 3 runs are done" in text


def test_the_papers_own_data(tmp_path, make_table):
    percents = {
        name.replace("omniglot", "landmarks"): values
        for name, values in run_folders.PERCENTS.items()
    }
    run_folders.write_table(
        tmp_path / "runs", percents, flags={"dataset": "landmarks"}, num_classes=2028
    )
    rows, text, _ = make_table(scale="paper")
    assert rows["FedSS, paper"][0] == "51.7 ± 0.4"
    assert "(Landmarks)" not in text and "not comparable" not in text
    assert "3.38 %" in text and "a slip" in text


def test_settings_that_differ_are_told(tmp_path, make_table):
    run_folders.write_run(tmp_path / "runs", "omniglot_pos_only", 0, 40.0)
    run_folders.write_run(
        tmp_path / "runs",
        "omniglot_fedaws",
        0,
        40.0,
        flags={"client_learning_rate": 0.3, "spreadout_weight": 2, "data_dir": "x"},
        rounds=8,
    )
    with pytest.raises(InvalidInputError, match="learning_rate=0.1 --rounds=4 and"):
        make_table()
    # Unless the cells want it so.
    _, text, _ = make_table(
        wanted={
            "omniglot_pos_only": {"rounds": 4},
            "omniglot_fedaws": {"rounds": 8, "client_learning_rate": 0.3},
        }
    )
    assert "differ between cells: --client_learning_rate=0.1 and 0.3; --rounds" in text
    assert "Rounds: 8 in omniglot_fedaws; 4 in omniglot_pos_only (paper: 5,000)" in text


def test_more_negatives_for_figure_6_have_no_column(tmp_path, make_table):
    run_folders.write_run(tmp_path / "runs", "omniglot_fedss_m5", 0, 50.0)
    run_folders.write_run(tmp_path / "more", "omniglot_neg_only_m24", 0, 24.0)
    _, text, _ = make_table(figures=None, more_results_dirs=[tmp_path / "more"])
    assert "![Figure 6: " in text and (tmp_path / "runs/figure6.png").exists()
    run_folders.write_run(tmp_path / "runs", "omniglot_neg_only_m24", 0, 24.0)
    rows, _, by_cell = make_table()
    assert rows["|S_k|"] == ["25", "no negatives"]
    assert by_cell["omniglot_neg_only_m24", "top1"]["S_k"] == "44"


@pytest.mark.parametrize(
    "flagfiles", [(), ("omniglot_fedss_m80", "omniglot_full_softmax")]
)
def test_table_4(tmp_path, make_table, flagfiles):
    folder = tmp_path / "runs"
    options = {"metric": "map_at_10"}
    for cell, tests, trains in (
        ("omniglot_fedss_m80", (26, 27, 28), (97, 98, 99)),
        ("omniglot_full_softmax", (25, 24, 23), (98, 99, 99.5)),
    ):
        for seed, (test, train) in enumerate(zip(tests, trains)):
            run_folders.write_run(folder, cell, seed, test, train_top1=train, **options)
    # It stands in Table 2, and has no top-1 on training images.
    run_folders.write_run(folder, "omniglot_fedss_m5", 0, 99, **options)
    rows, text, by_cell = make_table(table=4, wanted=flagfiles)
    assert rows["method"] == [
        "top-1 (train)",
        "paper (SOP)",
        "MAP@10 (test)",
        "paper (SOP)",
    ]
    assert rows["FedSS, |S_k| = 100"] == [
        "98.0 ± 1.0",
        "97.6 ± 0.2",
        "27.0 ± 1.0",
        "26.5 ± 0.03",
    ]
    # The seed that is best on the test images.
    assert rows["FullSoftmax (best)"] == ["98.0", "99.9", "25.0", "25.7"]
    assert list(rows)[:3] == ["method", "FedSS, |S_k| = 100", "FullSoftmax (best)"]
    assert "(m = 5)" not in text
    assert by_cell["omniglot_full_softmax", "train_top1"]["best"] == "98.0"
    assert "FedSS > FullSoftmax > Centralized." in text
    assert "6 of 6 runs are done" in text


def test_table_4_without_its_cells(tmp_path, make_table):
    run_folders.write_run(
        tmp_path / "runs", "omniglot_pos_only", 0, 9, metric="map_at_10"
    )
    with pytest.raises(InvalidInputError, match="Table 4 is of .*runs of none of them"):
        make_table(table=4)


def test_results_of_another_task_are_refused(tmp_path, make_table):
    run_folders.write_run(
        tmp_path / "runs", "omniglot_fedss_m5", 0, 50.0, metric="map_at_10"
    )
    with pytest.raises(InvalidInputError, match="Table 1 is of top1, but .*map_at_10"):
        make_table()


# --- The order of the methods -----------------------------------------------------


@pytest.mark.parametrize(
    ("table", "chain"),
    [
        (1, "Centralized > FullSoftmax > FedSS > PosOnly or FedAwS > NegOnly; and"),
        (2, "FedSS > FullSoftmax > Centralized > PosOnly or FedAwS > NegOnly; and"),
        (3, "Centralized > FullSoftmax > FedSS > PosOnly or FedAwS > NegOnly"),
        (4, "FedSS > FullSoftmax > Centralized"),
    ],
)
def test_the_papers_order_follows_from_its_numbers(table, chain):
    paper = paper_values.TABLES[table]
    pairs = paper_order.of_paper(paper)
    assert paper_order._chain(paper, pairs).startswith(chain)
    # What the text says, and the numbers cannot: which of the two is PosOnly's.
    assert (("fedss", "pos_only") in pairs) == (table in (1, 2))
    assert ("neg_only", "pos_only") not in pairs


def order(text, name="FedSS"):
    (line,) = (x for x in text.splitlines() if x.startswith(f"Ours, with {name}: "))
    return line


def test_the_order_is_reproduced(tmp_path, make_table):
    run_folders.write_table(tmp_path / "runs")
    _, text, _ = make_table()
    # For each of 3 m: FedSS is below 2 methods and above 3; NegOnly is below
    # FullSoftmax, Centralized and one of PosOnly and FedAwS. Besides, Centralized is
    # above FullSoftmax, and both are above the better of PosOnly and FedAwS: 3 * 8 + 3.
    line = order(text)
    assert "the paper's order is reproduced, in all 27 comparisons." in line
    yes, no, open_ = map(int, re.findall(r"(\d+) (?:are|against|cannot)", line))
    # FedAwS and FullSoftmax, as far as their three seeds tell, are not above the rest.
    assert yes + open_ == 27 and no == 0 and open_ > 0


def test_an_order_that_is_not_the_papers(tmp_path, make_table):
    percents = dict(run_folders.PERCENTS)
    percents["omniglot_fedss_m5"] = (41.0, 42.0, 43.0)
    run_folders.write_table(tmp_path / "runs", percents)
    for seed in range(3):
        run_folders.write_run(
            tmp_path / "runs", "omniglot_fedss_m5_uncorrected", seed, 59.0
        )
    _, text, _ = make_table()
    line = order(text)
    assert "NOT reproduced: 1 of 27 comparisons" in line
    assert "FedSS (m = 5) 42.0 is not above FedAwS 42.7" in line
    # FedAwS and PosOnly are within a point and a half of FedSS, with wider intervals.
    assert re.search(r"(\d+) are as in the paper, 0 against it, and \d+ cannot", line)
    other = order(text, "FedSS, no correction")
    # Five comparisons at each of two m have no FedSS.
    assert "10 of 27 comparisons wait" in other and "17 agree" in other
    assert "NOT" not in other


# --- The program ------------------------------------------------------------------


def test_figures_stand_in_the_text(tmp_path, make_table):
    run_folders.write_table(tmp_path / "runs")
    _, text, _ = make_table(figures=None, output_dir=tmp_path / "docs" / "new")
    names = sorted(path.name for path in (tmp_path / "docs" / "new").iterdir())
    assert names == [
        *(f"figure{i}.{kind}" for i in (3, 4, 5) for kind in ("pdf", "png")),
        "table1.csv",
        "table1.md",
    ]
    for number in (3, 4, 5):
        assert f"](figure{number}.png)" in text
    assert not list((tmp_path / "runs").glob("*.*"))


def test_a_figure_that_cannot_be_drawn_is_no_error(tmp_path, make_table):
    run_folders.write_run(tmp_path / "runs", "omniglot_pos_only", 0, 40.0)
    _, text, _ = make_table(figures=(3, 4, 7))
    assert "](figure3.png)" in text
    assert "Figure 4 is not drawn: there is no cell of FedSS." in text
    assert "Figure 7 is not drawn: no FedSS and NegOnly" in text


PUBLISHED = pathlib.Path(report.__file__).parents[2] / "docs/results"


@pytest.mark.parametrize(
    "folder, table, scale",
    [
        ("table1_mini", 1, "mini"),
        ("table2_mini", 2, "mini"),
        ("table2_mini", 4, "mini"),
        ("photographs/table1", 1, "tiny_imagenet"),
    ],
)
def test_published_tables_follow_from_published_runs(
    tmp_path, monkeypatch, folder, table, scale
):
    """Byte for byte, by the command that stands in them; the pictures are not drawn."""
    monkeypatch.setattr(report.figures_lib, "draw", lambda *args: None)
    published = (PUBLISHED / folder / f"table{table}.md").read_bytes()
    (given,) = re.findall("^- Command: `(.*)`$", published.decode(), re.MULTILINE)
    command = shlex.split(given)
    assert f"--results_dir=docs/results/{folder}" in command
    report.write(PUBLISHED / folder, table, scale, output_dir=tmp_path, command=command)
    assert (tmp_path / f"table{table}.md").read_bytes() == published
    name = f"table{table}.csv"
    assert (tmp_path / name).read_bytes() == (PUBLISHED / folder / name).read_bytes()


def test_published_figure_6_follows_from_published_runs(tmp_path):
    text = report.write_figure(
        PUBLISHED / "table1_mini",
        6,
        output_dir=tmp_path,
        more_results_dirs=[PUBLISHED / "figure6_mini"],
    )
    readme = (PUBLISHED / "figure6_mini/README.md").read_text()
    for reading in ("", ", no correction"):
        pairs = re.findall(
            rf"FedSS{reading} \(m = (\d+)\): (.*?) %; "
            rf"NegOnly{reading} .*: (.*?) %; ahead by \+(.*)",
            text,
        )
        assert [m for m, *_ in pairs] == ["5", "10", "20", "40", "80"]
        _, ours, theirs, differences = zip(*pairs)
        for title, values in (
            (f"FedSS{reading}", ours),
            (f"NegOnly with m + 19{reading}", theirs),
            ("difference", differences),
        ):
            row = f"| {title} | {' | '.join(values)} |"
            assert row in readme.replace("**", "")


def test_a_figure_alone(tmp_path):
    for cell in ("omniglot_fedss_m5", "omniglot_neg_only_m24"):
        run_folders.write_run(tmp_path, cell, 0, 50.0)
        run_folders.write_run(tmp_path, cell, 1, 52.0)
    text = report.write_figure(tmp_path, 6)
    assert (tmp_path / "figure6.png").exists()
    assert str(tmp_path / "figure6.png") in text
    assert "FedSS (m = 5): 51.0 ± 1.4 (2/3) %" in text
    assert "NegOnly (m = 24): 51.0 ± 1.4 (2/3) %" in text


def test_no_runs(tmp_path):
    with pytest.raises(InvalidInputError, match="holds no run"):
        report.write(tmp_path, 1, "mini")
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_a_file(tmp_path, make_table):
    run_folders.write_run(tmp_path / "runs", "omniglot_pos_only", 0, 40.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="file cannot be created"):
        report.write(tmp_path / "runs", 1, "mini", output_dir=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say what to report"),
        ({"results_dir": ""}, "--results_dir= is empty"),
        ({"output_dir": "", "figures": ["8"]}, "--output_dir= is empty"),
        ({"figures": ["3"]}, "need --results_dir"),
        ({"figures": ["2"]}, "'2', expected numbers of 3, 4"),
        ({"figures": ["all"]}, "'all', expected numbers"),
    ],
)
def test_flags_that_make_no_sense(options, message):
    with pytest.raises(InvalidInputError, match=message):
        report.make(None, "mini", **options)


def test_the_program(tmp_path):
    """As ./run.sh starts it: with flags that other programs define too."""
    run_folders.write_run(tmp_path / "runs", "omniglot_fedss_m5", 0, 50.0)

    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "experiments.fedss.report",
            "--table=1",
            f"--results_dir={tmp_path / 'runs'}",
            "--figures=3",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert "| FedSS " in done.stdout and "50.0 (1/3)" in done.stdout
    assert (tmp_path / "runs" / "figure3.png").exists()
