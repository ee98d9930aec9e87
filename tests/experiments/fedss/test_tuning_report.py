import csv
import json

import pytest

from experiments.common import flagfiles, results
from experiments.fedss import report
from experiments.fedss.tuning_report import Search, Trial
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError


@pytest.fixture
def search(tmp_path):
    """Makes a search: percents (None: diverged) by rate, or by (m, rate)."""

    def make(percents, num_images=400, **options):
        trials = []
        for key, percent in percents.items():
            m, rate = key if isinstance(key, tuple) else (20, key)
            folder = run_folders.write_run(
                tmp_path,
                f"m{m}_rate_{rate}",
                0,
                percent or 1.0,
                method="fedss",
                m=m,
                rounds_done=3 if percent is None else None,
                flags={"client_learning_rate": rate},
                **options,
            )
            told = {"data": {"test images": num_images}}
            (folder / "data.json").write_text(json.dumps(told))
            run = results.read_run(folder, report.KIND, report.RUN)
            trials.append(Trial(run, "has diverged" if percent is None else None))
        return Search(trials, isinstance(next(iter(percents)), tuple))

    return make


def rows_of(text):
    """The cells of a table in Markdown, without those of its header."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def said(search, tmp_path, **options):
    return search.write(tmp_path, ["./run.sh", "tune"], **options)


def test_the_highest_metric_is_taken(search, tmp_path):
    text = said(search({0.01: 40.0, 0.03: 61.0, 0.1: 50.0, 0.3: None}), tmp_path)
    assert "Taken: --client_learning_rate=0.03, the highest top-1" in text
    # sqrt(0.61 * 0.39 / 400)
    assert "61.00 ± 2.44 % on 400 images of validation clients, after 4" in text
    assert rows_of(text)[1] == ["0.03", "**61.00**", "2.44", "4"]
    assert rows_of(text)[3] == ["0.3", "diverged", "", "3"]
    assert "noise" not in text and "edge" not in text
    assert flagfiles.read(tmp_path / "tuned.flags") == {"client_learning_rate": "0.03"}
    written = (tmp_path / "tuning.md").read_text()
    assert written.startswith("# Search on validation clients") and text in written
    rows = list(csv.DictReader((tmp_path / "tuning.csv").open()))
    assert [row["top1_percent"] for row in rows] == ["40.0", "61.0", "50.0", ""]
    assert [row["outcome"] for row in rows] == [*["done"] * 3, "has diverged"]
    assert [row["is_taken"] for row in rows] == ["False", "True", "False", "False"]
    assert (tmp_path / "tuning.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_within_noise_is_named(search, tmp_path):
    # Two standard errors of the difference: 2 * sqrt(2) * 2.44 = 6.9.
    text = said(search({0.01: 30.0, 0.03: 61.0, 0.1: 55.0, 0.3: 53.0}), tmp_path)
    assert "Within noise of it, 2 standard errors: rate 0.1 (55.00 %). More" in text


@pytest.mark.parametrize(
    "percents, expected",
    [
        ({0.01: 60.0, 0.1: 30.0}, "rate 0.01 is the smallest"),
        ({0.01: 30.0, 0.1: 60.0}, "rate 0.1 is the largest"),
        # A larger one was tried.
        ({0.01: 30.0, 0.1: 60.0, 1.0: None}, None),
        ({0.1: 60.0}, None),
    ],
)
def test_the_best_at_an_edge_is_told(search, tmp_path, percents, expected):
    text = said(search(percents), tmp_path)
    if expected is None:
        assert "edge" not in text
    else:
        assert f"At the edge: {expected} of --client_learning_rates;" in text


def test_m_is_searched_too(search, tmp_path):
    text = said(
        search({(5, 0.1): 50.0, (5, 0.3): 20.0, (40, 0.1): 40.0, (40, 0.3): 80.0}),
        tmp_path,
    )
    assert rows_of(text)[3] == ["40", "0.3", "**80.00**", "2.00", "4"]
    assert "m 40 is the largest of --num_negatives_grid" in text
    assert flagfiles.read(tmp_path / "tuned.flags") == {
        "client_learning_rate": "0.3",
        "num_negatives": "40",
    }


def test_of_equal_ones_the_first_is_taken(search):
    assert search({0.01: 50.0, 0.1: 50.0}).chosen_flags() == {
        "client_learning_rate": "0.01"
    }


def test_nothing_is_chosen_while_runs_are_missing(search, tmp_path):
    text = said(search({0.01: 50.0, 0.1: 60.0}), tmp_path, num_missing=2)
    assert "Nothing is chosen yet. Runs still to be done: 2." in text
    assert not (tmp_path / "tuned.flags").exists()


def test_nothing_is_chosen_where_all_have_diverged(search, tmp_path):
    found = search({0.1: None, 1.0: None})
    assert found.best is None
    assert "Nothing is chosen: all runs have diverged." in said(found, tmp_path)
    assert not (tmp_path / "tuned.flags").exists()


def test_collapsed_runs_are_named(search, tmp_path):
    learned = search({0.01: 40.0}).trials
    text = said(
        Search([*learned, *search({0.1: 2.0}, collapsed=True).trials], False), tmp_path
    )
    assert "Collapsed, all images look alike to phi: rate 0.1." in text
    assert "nothing has been learned" not in text
    *_, last = csv.DictReader((tmp_path / "tuning.csv").open())
    assert last["outcome"] == "collapsed"


def test_a_collapsed_best_has_learned_nothing(search, tmp_path):
    text = said(search({0.01: 1.0, 0.1: 2.0}, collapsed=True), tmp_path)
    assert "But nothing has been learned" in text


def test_a_run_that_does_not_say_its_images_is_named(search, tmp_path):
    with pytest.raises(InvalidInputError, match=r"data.json: there is no number of"):
        said(search({0.1: 50.0}, num_images=None), tmp_path)


def test_retrieval_has_its_own_metric(search, tmp_path):
    text = said(search({0.1: 50.0, 0.3: 20.0}, metric="map_at_10"), tmp_path)
    assert "the highest MAP@10: 50.00" in text
    header = (tmp_path / "tuning.csv").read_text().splitlines()[0]
    assert "map_at_10_percent" in header
