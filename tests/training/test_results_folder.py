import csv
import json

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_fedss.errors import InvalidInputError
from tff_fedss.training import ResultsFolder

FLAGS = {"rounds": "3", "dataset": "glyphs"}


def test_nothing_is_written_before_open(tmp_path):
    ResultsFolder(tmp_path / "run", FLAGS)
    assert not (tmp_path / "run").exists()


def test_rows_are_on_disk_at_once(tmp_path):
    folder = ResultsFolder(tmp_path / "run", FLAGS)
    folder.open()
    for round_num in range(3):
        folder.release({"method": "fedss", "round": round_num, "loss": 0.5})
        rows = list(csv.DictReader((tmp_path / "run/metrics.csv").open()))
        assert len(rows) == round_num + 1
        assert rows[-1]["round"] == str(round_num)
        assert rows[-1]["loss"] == "0.5" and rows[-1]["top1"] == ""


def test_the_folder_tells_its_flags_and_versions(tmp_path):
    ResultsFolder(tmp_path, FLAGS).open()
    assert (tmp_path / "flags.txt").read_text() == "--rounds=3\n--dataset=glyphs\n"
    versions = json.loads((tmp_path / "versions.json").read_text())
    assert versions["tensorflow_federated"] == tff.__version__


def test_the_same_flags_may_come_back(tmp_path):
    ResultsFolder(tmp_path, FLAGS).open()
    ResultsFolder(tmp_path, FLAGS).open()


def test_other_flags_are_refused_with_the_difference(tmp_path):
    ResultsFolder(tmp_path, FLAGS).open()
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(InvalidInputError) as error:
        ResultsFolder(tmp_path, {"rounds": "4", "seed": "1", "dataset": "glyphs"})
    assert "--rounds=3 there, --rounds=4 here" in str(error.value)
    assert "--seed=(unset) there, --seed=1 here" in str(error.value)
    assert "dataset" not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInputError, match="not a run's folder"):
        ResultsFolder(tmp_path, FLAGS)


def test_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InvalidInputError, match="is a file"):
        ResultsFolder(tmp_path / "run", FLAGS)


def test_a_folder_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="cannot be created: Not a directory"):
        ResultsFolder(tmp_path / "file" / "run", FLAGS).open()


def test_weights_come_back(tmp_path):
    folder = ResultsFolder(tmp_path, FLAGS)
    folder.open()
    w = [np.arange(3.0), np.ones((2, 2)), np.full((5, 2), 7.0)]
    folder.write_weights("fedss.npz", tff.learning.models.ModelWeights(w, []))
    with np.load(tmp_path / "fedss.npz") as loaded:
        assert sorted(loaded) == ["W", "phi_000", "phi_001"]
        np.testing.assert_array_equal(loaded["phi_001"], w[1])
        np.testing.assert_array_equal(loaded["W"], w[2])
