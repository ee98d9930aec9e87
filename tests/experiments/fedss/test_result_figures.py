"""Figures 3 to 6 and 10: what they show, and the files."""

import statistics

import numpy as np
import pytest

from experiments.common import plots
from experiments.fedss import figures, result_figures, table_results
from experiments.fedss.methods import METHODS
from experiments.fedss.table_results import Setting
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError


@pytest.fixture
def results(tmp_path):
    run_folders.write_table(tmp_path / "runs")
    return table_results.read(tmp_path / "runs")


def mean_curve(cell):
    """Rounds, mean and standard deviation, as they are drawn."""
    series = result_figures._series(cell, "", plots.REFERENCE)
    (curve,) = plots.panel([series], "round", "top1", "", "", scale=100).curves
    return curve.x, curve.y, curve.std


def lines_of(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_learning_curves_show_mean_and_spread(results, tmp_path, drawn):
    figures.draw(3, tmp_path / "figure3.png", results)
    run_folders.check_figure(tmp_path / "figure3.png")
    (axes,) = drawn
    lines = lines_of(axes)
    assert list(lines) == [
        "FedSS (m = 20)",  # the middle one of 5, 20 and 80
        "NegOnly (m = 20)",
        "PosOnly",
        "FedAwS",
        "FullSoftmax",
        "Centralized",
    ]
    rounds, mean = lines["PosOnly"].get_data()
    np.testing.assert_array_equal(rounds, [0, 2, 4])
    finals = run_folders.PERCENTS["omniglot_pos_only"]
    half = statistics.mean(finals) / 2
    np.testing.assert_allclose(mean, [0, half, 2 * half])
    assert lines["PosOnly"].get_color() == METHODS["pos_only"].style.color
    top = axes.collections[2].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(2 * half + statistics.stdev(finals))
    assert axes.get_xlabel() == "round"
    assert axes.get_ylabel() == "top-1 on held-out images (%)"


def test_an_unfinished_cell_is_drawn_as_far_as_all_its_runs_are(tmp_path):
    for seed, done in enumerate((3, 2)):
        run_folders.write_run(tmp_path, "omniglot_fedaws", seed, 40, rounds_done=done)
    cell = table_results.read(tmp_path).cells[Setting("fedaws")]
    rounds, mean, std = mean_curve(cell)
    np.testing.assert_array_equal(rounds, [0, 2])
    np.testing.assert_allclose(mean, [0, 20])
    np.testing.assert_allclose(std, [0, 0])
    # A finished one counts alone.
    run_folders.write_run(tmp_path, "omniglot_fedaws", 2, 80)
    cell = table_results.read(tmp_path).cells[Setting("fedaws")]
    rounds, mean, _ = mean_curve(cell)
    np.testing.assert_array_equal(rounds, [0, 2, 4])
    np.testing.assert_allclose(mean, [0, 40, 80])


def test_convergence_has_a_panel_for_each_reading(tmp_path, drawn):
    run_folders.write_table(tmp_path / "runs")
    run_folders.write_run(tmp_path / "runs", "omniglot_fedss_m5_uncorrected", 0, 44.0)
    figures.draw(4, tmp_path / "4.png", table_results.read(tmp_path / "runs"))
    run_folders.check_figure(tmp_path / "4.png")
    corrected, uncorrected = drawn
    assert list(lines_of(corrected)) == [
        "|S_k| = 25",
        "|S_k| = 40",
        "|S_k| = 100",
        "FullSoftmax",
    ]
    assert list(lines_of(uncorrected)) == ["|S_k| = 25", "FullSoftmax"]
    assert lines_of(uncorrected)["|S_k| = 25"].get_ydata()[-1] == pytest.approx(44)


@pytest.mark.parametrize("number", [5, 10])
def test_traffic(results, tmp_path, drawn, number):
    figures.draw(number, tmp_path / "5.png", results)
    run_folders.check_figure(tmp_path / "5.png")
    (axes,) = drawn
    points = {
        c.get_label(): np.array(c.lines[0].get_data(), float) for c in axes.containers
    }
    # |S_k| d, with the exact mean of |S_k|.
    np.testing.assert_allclose(
        points["FedSS"], [[24.6 * 64, 39.6 * 64, 99.6 * 64], [52, 167.5 / 3, 58.5]]
    )
    np.testing.assert_allclose(
        points["FullSoftmax"], [[659 * 64], [statistics.mean((60.0, 61.5, 61.0))]]
    )
    (line,) = (x for x in axes.get_lines() if "Centralized" in str(x.get_label()))
    assert set(line.get_ydata()) == {64.0}


def write_composition(folder):
    for cell, percent in (
        ("omniglot_fedss_m5", 50.0),
        ("omniglot_fedss_m20", 55.0),
        ("omniglot_neg_only_m5", 5.0),
        ("omniglot_neg_only_m20", 20.0),
        ("omniglot_neg_only_m24", 24.0),
        ("omniglot_neg_only_m39", 39.0),
    ):
        run_folders.write_run(folder, cell, 0, percent)


def test_composition_pairs_equal_numbers_of_pushing_classes(tmp_path, drawn):
    write_composition(tmp_path / "runs")
    results = table_results.read(tmp_path / "runs")
    pairs = result_figures.compositions(results)
    # 5 + 20 - 1 and 20 + 20 - 1.
    assert [(a.setting.num_negatives, b.setting.num_negatives) for a, b in pairs] == [
        (5, 24),
        (20, 39),
    ]
    figures.draw(6, tmp_path / "6.png", results)
    run_folders.check_figure(tmp_path / "6.png")
    heights = [bar.get_height() for bar in drawn[0].patches]
    np.testing.assert_allclose(heights, [50, 24, 55, 39])


def test_composition_compares_like_with_like(tmp_path):
    write_composition(tmp_path / "runs")
    for cell, percent in (
        ("omniglot_fedss_m5_uncorrected", 51.0),
        ("omniglot_fedss_m20_uncorrected", 56.0),
        ("omniglot_neg_only_m39_uncorrected", 38.0),
    ):
        run_folders.write_run(tmp_path / "runs", cell, 0, percent, correction="none")
    pairs = result_figures.compositions(table_results.read(tmp_path / "runs"))
    assert [(str(a.setting), str(b.setting)) for a, b in pairs] == [
        ("FedSS (m = 5)", "NegOnly (m = 24)"),
        ("FedSS (m = 20)", "NegOnly (m = 39)"),
        ("FedSS, no correction (m = 20)", "NegOnly, no correction (m = 39)"),
    ]


def test_the_table_alone_has_no_composition(results, tmp_path):
    """NegOnly with the m of another FedSS is not meant for figure 6."""
    assert result_figures.compositions(results) == []
    with pytest.raises(figures.NothingToDraw, match=r"no pair of FedSS with m"):
        figures.draw(6, tmp_path / "6.png", results)
    assert not (tmp_path / "6.png").exists()


def test_a_result_that_the_rows_do_not_have_is_refused(tmp_path):
    done = run_folders.write_run(tmp_path, "omniglot_fedaws", 0, 40.0) / "done.json"
    done.write_text(done.read_text().replace("40.0", "41.0"))
    with pytest.raises(InvalidInputError, match="top1 is 40 %, but .* says 41 %"):
        table_results.read(tmp_path)


def test_two_cells_of_one_setting_are_refused(tmp_path):
    for name in ("omniglot_fedaws", "other_fedaws"):
        run_folders.write_run(tmp_path, name, 0, 40.0)
    with pytest.raises(InvalidInputError, match="other_fedaws are two cells of FedAwS"):
        table_results.read(tmp_path)
