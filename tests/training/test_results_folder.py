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


def row(method, round_num, **metrics):
    return {"method": method, "round": round_num, **metrics}


def test_rows_are_in_the_files_at_once(tmp_path):
    folder = ResultsFolder(tmp_path / "run", FLAGS)
    folder.open()
    folder.start({})
    for round_num in range(3):
        folder.release(
            row("fedss", round_num, loss=0.5), row("fedss", round_num, round_seconds=2)
        )
        rows = list(csv.DictReader((tmp_path / "run/metrics.csv").open()))
        assert len(rows) == round_num + 1
        assert rows[-1]["round"] == str(round_num)
        assert rows[-1]["loss"] == "0.5" and rows[-1]["top1"] == ""
        speed = list(csv.DictReader((tmp_path / "run/speed.csv").open()))
        assert speed[-1]["round_seconds"] == "2"
    assert list((tmp_path / "run/tensorboard/fedss").glob("events.out.*"))


def test_a_restart_drops_the_rounds_that_will_be_run_again(tmp_path):
    folder = ResultsFolder(tmp_path, FLAGS)
    folder.open()
    folder.start({})
    released = [
        row(method, i, loss=i + 0.25, num_examples=10**12, top1=1e-7)
        for i in range(4)
        for method in ("fedss", "pos_only", "centralized")
    ]
    for metrics in released:
        folder.release(metrics, row(metrics["method"], metrics["round"]))
    before = (tmp_path / "metrics.csv").read_bytes()
    with (tmp_path / "metrics.csv").open("a") as half:
        half.write("fedss,2,0.")
    folder._files["lock"].close()  # As the end of the process would.

    again = ResultsFolder(tmp_path, FLAGS)
    again.open()
    again.start({"fedss": 2, "pos_only": 1})
    assert again.rows == [
        metrics
        for metrics in released
        if metrics["round"] <= {"fedss": 2, "pos_only": 1}.get(metrics["method"], -1)
    ]
    # Methods that went on from different rounds end in the order of an undisturbed run.
    for metrics in released:
        if metrics not in again.rows:
            again.release(metrics, row(metrics["method"], metrics["round"]))
    again.finish({"top1": 0.5})
    assert (tmp_path / "metrics.csv").read_bytes() == before
    assert again.result == {"top1": 0.5}
    assert ResultsFolder(tmp_path, FLAGS).result == {"top1": 0.5}


def test_the_folder_tells_where_it_comes_from(tmp_path):
    ResultsFolder(tmp_path, FLAGS).open()
    assert (tmp_path / "flags.txt").read_text() == "--rounds=3\n--dataset=glyphs\n"
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["versions"]["tensorflow_federated"] == tff.__version__
    assert described["flags"] == FLAGS and len(described["fingerprint"]) == 64
    assert described["machine"]["cpus"] >= 1 and described["machine"]["memory_gib"] > 0


def test_the_same_flags_may_come_back(tmp_path):
    first = ResultsFolder(tmp_path, FLAGS)
    first.open()
    second = ResultsFolder(tmp_path, FLAGS)
    with pytest.raises(InvalidInputError, match="in use by another process"):
        second.open()
    first._files["lock"].close()  # As the end of the process would.
    second.open()


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
