"""User-level differential privacy as flags of `./run.sh train`."""

import csv
import json

import pytest

from experiments.common import config
from experiments.fedss import dp_config, run_config, train
from tests.experiments.fedss.test_train import SMALL
from tests.experiments.killing import kill_after_a_checkpoint
from tff_fedss.privacy import accounting

GAUSSIAN = "--dp=gaussian:noise=0.2"
FTRL = "--dp=ftrl:noise=0.2"


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            ["--dp=gaussian"],
            "--dp=gaussian: 'gaussian' needs noise; for example --dp=gaussian:noise=1.",
        ),
        (["--dp=none:delta=0.1"], "'none' has no option delta; it has none"),
        ([f"{FTRL},sampling=poisson"], "'ftrl' has no option sampling; it has noise"),
        ([f"{GAUSSIAN},restart_every=9"], "'gaussian' has no option restart_every"),
        ([f"{GAUSSIAN},delta=1"], "delta is a number of at least 1e-300, at most 0.9"),
        (
            [GAUSSIAN, "--method=centralized"],
            "--dp=gaussian:noise=0.2 has no effect on centralized, which has no clie",
        ),
        (
            [GAUSSIAN, "--aggregation=secure:threshold=2"],
            "--aggregation=secure:threshold=2 and --dp=gaussian:noise=0.2 cannot both",
        ),
        (
            ["--dp=gaussian:noise=0.9,adaptive=true"],
            "--dp=gaussian:noise=0.9,adaptive=true with --clients_per_round=3: "
            "noise_multiplier=0.9 leaves",
        ),
    ],
)
def test_a_flag_that_cannot_be_is_one_clear_line(run_train, tmp_path, flags, message):
    folder = tmp_path / "run"
    code, _, errors = run_train(*SMALL, *flags, f"--results_dir={folder}")
    assert code == 2, errors
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert message in errors
    assert not folder.exists()


def test_without_it_nothing_belongs_to_other_flags():
    plain = train.Config(results_dir="x")
    flags = run_config.with_defaults(config.parse(plain, "--dp=none"))
    plain = run_config.with_defaults(plain)
    assert flags.deciding() == plain.deciding()
    assert not set(dp_config.DpConfig.flags()) & plain.deciding().keys()


def test_epsilon_is_in_metrics_progress_table_and_record(run_train, tmp_path):
    folder = tmp_path / "run"
    flags = (*SMALL, f"{GAUSSIAN},sampling=poisson,delta=0.01")
    code, output, errors = run_train(*flags, "--rounds=2", f"--results_dir={folder}")
    assert code == 0, errors
    dataset_size = 8  # Glyphs of 40 classes.
    accountant = accounting.PoissonSampling(0.2, 0.01, dataset_size, 3)
    with (folder / "metrics.csv").open() as file:
        start, *rows = csv.DictReader(file)
    assert not start["epsilon"]
    expected = [accountant.epsilon(1), accountant.epsilon(2)]
    assert [float(row["epsilon"]) for row in rows] == pytest.approx(expected)
    assert all(float(row["dp/clip"]) == 1 for row in rows)
    assert f"epsilon {expected[1]:.3g}" in errors
    assert "neighbours: a client is added or removed" in output
    (table,) = csv.DictReader((folder / "table.csv").open())
    assert float(table["epsilon"]) == pytest.approx(expected[1])
    done = json.loads((folder / "done.json").read_text())
    assert done["outcomes"]["fedss"]["epsilon"] == pytest.approx(expected[1])
    assert done["user_level_dp"]["fedss"] == {
        "epsilon": pytest.approx(expected[1]),
        "delta": 0.01,
        "neighbours": "a client is added or removed",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        [f"{FTRL},adaptive=true,restart_every=4"],
        [f"{GAUSSIAN},sampling=poisson", "--method=full_softmax"],
    ],
)
def test_a_killed_run_resumes_to_the_same_bytes(run_train, tmp_path, flags):
    flags = [*SMALL, *flags, "--rounds=9", "--rounds_per_checkpoint=2"]
    method = "full_softmax" if "--method=full_softmax" in flags else "fedss"
    code, _, errors = run_train(*flags, f"--results_dir={tmp_path / 'whole'}")
    assert code == 0, errors
    folder = tmp_path / "killed"
    kill_after_a_checkpoint(
        "experiments.fedss.train", method, flags, folder, seconds=400
    )
    code, output, errors = run_train(*flags, f"--results_dir={folder}")
    assert code == 0, errors
    assert f"{method}: resumes after round" in output
    for file in ("metrics.csv", f"{method}.npz", "table.csv"):
        whole = (tmp_path / "whole" / file).read_bytes()
        assert (folder / file).read_bytes() == whole, file
