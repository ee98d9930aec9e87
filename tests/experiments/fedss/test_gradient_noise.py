import csv
import types

import numpy as np
import pytest

from experiments.fedss import gradient_noise, model_figures
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError


def test_the_means_and_the_laws_are_written(tmp_path, monkeypatch, capsys):
    """What is measured is tested with `figure9`; here it is a power of |N_k|."""

    def figure9(task, path, *, num_negatives, cohort_size, **options):
        assert task == "elsewhere" and cohort_size == 32 and options["num_batches"] == 4
        assert options["weights_title"] == "FullSoftmax after round 4"
        noise = {m: np.array([1.0, 3.0]) * m**-0.5 for m in num_negatives}
        return {
            m: types.SimpleNamespace(model=x, feature_extractor=x, classifier=x / 2)
            for m, x in noise.items()
        }

    monkeypatch.setattr(model_figures, "figure9", figure9)
    monkeypatch.setattr(model_figures, "load_weights", lambda run: [np.zeros(3)])
    monkeypatch.setattr(
        model_figures, "load_task_of_flags", lambda flags: flags["data_dir"]
    )
    run = run_folders.write_run(tmp_path, "omniglot_full_softmax", 0, 60.0)
    gradient_noise.main(
        gradient_noise.Config(
            run=str(run),
            data_dir="elsewhere",
            num_negatives=("16", "4", "64"),
            clients_per_round=32,
        )
    )
    with (run / "gradient_noise/gradient_noise.csv").open() as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    assert [row["num_negatives"] for row in rows] == [4, 16, 64]
    assert [row["model"] for row in rows] == pytest.approx([1.0, 0.5, 0.25])
    assert [row["classifier"] for row in rows] == pytest.approx([0.5, 0.25, 0.125])
    assert "m^{-b} with b = 0.5: 1.000" in capsys.readouterr().out


def test_bad_runs_and_numbers_are_refused(tmp_path):
    done = run_folders.write_run(tmp_path, "omniglot_full_softmax", 0, 60.0)
    begun = run_folders.write_run(
        tmp_path, "omniglot_full_softmax", 1, 60.0, rounds_done=2
    )
    for run, sizes, message in (
        (done, ("5",), "full_softmax.npz is missing"),
        (begun, ("5",), "is not finished"),
        (done, ("5", "x"), "--num_negatives has 'x'"),
        (done, ("0",), "--num_negatives has '0'"),
        (tmp_path / "none", ("5",), "none"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            gradient_noise.main(
                gradient_noise.Config(run=str(run), num_negatives=sizes)
            )
