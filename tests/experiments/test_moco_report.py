import csv
import json

import numpy as np
import pytest

from experiments import moco_report
from tff_fedss.errors import InvalidInputError


def write_run(folder, cell, seed, accuracy, losses=None):
    path = folder / cell / f"seed{seed}"
    path.mkdir(parents=True)
    (path / "done.json").write_text(json.dumps({"linear_accuracy": accuracy}))
    if losses is not None:
        np.savez(path / "losses.npz", **losses)


@pytest.fixture
def runs(tmp_path):
    rng = np.random.default_rng(0)
    for seed, accuracy in enumerate((0.5, 0.52, 0.51)):
        losses = {
            "plain": rng.uniform(1, 3, 50),
            "clustered": np.full(50, 0.25),
            "filtered": rng.uniform(0, 1, 50),
        }
        write_run(tmp_path / "runs", "a_gamma0", seed, accuracy, losses)
    write_run(tmp_path / "runs", "d_gamma0.5", 0, 0.5625)
    write_run(tmp_path / "runs", "untrained", 0, 0.4)
    return tmp_path / "runs"


def test_tables_stand_beside_the_paper_s(runs, tmp_path):
    out = tmp_path / "out"
    text = moco_report.write(runs, out)
    lines = text.splitlines()
    assert "| 0 | 81.7 | 51.00 ± 1.00 | 3 |" in lines
    assert "| 0.5 | 84.9 | 56.25 | 1 |" in lines
    assert "| 2 | 85.0 |  |  |" in lines  # Not run: blank.
    assert "Random encoder, not trained: 40.00 %." in lines
    assert "Table 2" not in text and "Table 4" in text
    assert "| clustered | 4 | 0.25 | 0.25 | 100.0 |" in lines
    assert (out / "linear_accuracy.md").read_text() == text
    rows = {
        row["cell"]: row for row in csv.DictReader((out / "linear_accuracy.csv").open())
    }
    assert len(rows) == 17
    assert rows["a_gamma0"] == {
        "cell": "a_gamma0",
        "paper": "81.7",
        "mean": "51.00",
        "deviation": "1.00",
        "seeds": "3",
    }
    assert (out / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_measured_model_there_is_no_figure(tmp_path):
    write_run(tmp_path / "runs", "b_gamma1", 0, 0.5)
    text = moco_report.write(tmp_path / "runs", tmp_path / "out")
    assert "Table 2" in text and "Loss of each example" not in text
    assert not (tmp_path / "out/losses.png").exists()


def test_what_cannot_be_read_is_named(runs, tmp_path):
    with pytest.raises(InvalidInputError, match=r"none holds no finished run in CELL"):
        moco_report.write(tmp_path / "none", tmp_path / "out")
    losses = runs / "a_gamma0/seed1/losses.npz"
    losses.write_bytes(losses.read_bytes()[:500])
    with pytest.raises(InvalidInputError, match=r"seed1/losses.npz is damaged"):
        moco_report.write(runs, tmp_path / "out")
    (runs / "d_gamma0.5/seed0/done.json").write_text("{")
    with pytest.raises(InvalidInputError, match=r"seed0/done.json is damaged"):
        moco_report.write(runs, tmp_path / "out")
