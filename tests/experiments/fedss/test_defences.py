"""What protects clients, as flags of `./run.sh train`: DP, and what the server sees."""

import csv
import json

import pytest

from experiments.common import config
from experiments.fedss import privacy_config, run_config, train
from tests.experiments import central_runs
from tests.experiments.fedss.test_train import SMALL, TRAIN
from tff_fedss.privacy import accounting

GAUSSIAN = "--dp=gaussian:noise=0.2"
FTRL = "--dp=ftrl:noise=0.2"
DEFENCES = {
    "memoised": ["--negatives=memoised"],
    "randomized_response": ["--negatives=randomized_response:epsilon=3.0"],
    "pool": ["--negatives=pool:size=12"],
    "union": ["--requests=union"],
    "all": ["--requests=all"],
    "secure": ["--aggregation=secure:threshold=2"],
}


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            ["--aggregation=secure:threshold=4"],
            "the threshold is more than --clients_per_round=3",
        ),
        (
            ["--negatives=pool:size=4"],
            "--negatives=pool:size=4: size=4 must be at least 5 and at most ",
        ),
        (
            ["--negatives=randomized_response:epsilon=1", "--num_negatives=40"],
            "epsilon=1.0: --num_negatives=40 must be at least 1 and at most 39",
        ),
        (
            ["--method=pos_only", "--negatives=memoised"],
            "--negatives=memoised has no effect on pos_only: it is for fedss, neg_only",
        ),
        (
            ["--requests=union", "--cluster=local"],
            "--requests=union cannot be trained on a cluster",
        ),
        (
            [GAUSSIAN, "--aggregation=secure:threshold=2"],
            "--aggregation=secure:threshold=2 and --dp=gaussian:noise=0.2 cannot be",
        ),
        (
            ["--dp=gaussian:noise=0.9,adaptive=true"],
            "--dp=gaussian:noise=0.9,adaptive=true: noise_multiplier=0.9 must be below",
        ),
        (
            ["--dp=ftrl:noise=2,adaptive=true"],
            "--dp=ftrl:noise=2,adaptive=true: an adaptive clip changes only where a",
        ),
        (
            ["--method=centralized", "--xla"],
            "--xla=True has no effect on centralized: it is for fedss, neg_only",
        ),
    ],
)
def test_a_flag_that_cannot_be_is_one_clear_line(run_train, tmp_path, flags, message):
    central_runs.assert_refused(
        run_train, (*SMALL, *flags), message, tmp_path / "run", prints=True
    )


def test_what_says_nothing_new_belongs_to_the_folders_of_before():
    asked = config.parse(
        train.Config(),
        "--negatives=fresh",
        "--requests=sampled",
        "--aggregation=secure:threshold=1",
        "--results_dir=x",
    )
    flags = run_config.with_defaults(asked).deciding()
    expected = train.Config(aggregation="secure", results_dir="x")
    expected = run_config.with_defaults(expected).deciding()
    assert flags == expected and flags["aggregation"] == "secure"
    assert not {"negatives", "requests"} & flags.keys()


def read(folder):
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    (table,) = csv.DictReader((folder / "table.csv").open())
    return rows[1:], {k: v for k, v in table.items() if k != "method"}


def test_a_run_that_hides_tells_what_it_costs(run_train, tmp_path, one_layer):
    folder = tmp_path / "run"
    flags = [*DEFENCES["union"], *DEFENCES["secure"], *DEFENCES["pool"]]
    output, _ = run_train(*SMALL, *flags, "--rounds=2", f"--results_dir={folder}").ok()
    written = (folder / "flags.txt").read_text().splitlines()
    assert set(flags) <= set(written)
    rows, table = read(folder)
    assert all(0 < int(row["w/dropped_rows"]) < 40 for row in rows)
    # A union of three: more than one client's own, at most n; d = 64.
    down, up = ([float(row[f"bytes_{way}"]) for row in rows] for way in ("down", "up"))
    assert down == up
    rows_down = float(table["classifier_parameters"]) / 64
    own = float(table["classes_percent"]) / 100 * 40
    assert own < rows_down <= 40
    assert float(table["classifier_bytes_down"]) == pytest.approx(rows_down * 65 * 4)
    assert float(table["classifier_bytes_up"]) == pytest.approx(rows_down * 65 * 4)
    assert f"{rows_down * 64:,.0f}" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        *DEFENCES.values(),
        [f"{FTRL},adaptive=true,restart_every=4"],
        [f"{GAUSSIAN},sampling=poisson", "--method=full_softmax"],
    ],
)
def test_a_killed_run_resumes_to_the_same_bytes(run_train, tmp_path, flags):
    method = "full_softmax" if "--method=full_softmax" in flags else "fedss"
    flags = [*SMALL, *flags, "--rounds=9", "--rounds_per_checkpoint=2"]
    learned = (f"{method}.npz", "table.csv")
    central_runs.assert_resumed(run_train, TRAIN, method, flags, tmp_path, learned)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["union", "all"])
def test_what_else_is_sent_changes_no_weight(run_train, tmp_path, name):
    for folder, flags in (("sampled", []), (name, DEFENCES[name])):
        run_train(
            *SMALL, *flags, "--rounds=4", f"--results_dir={tmp_path / folder}"
        ).ok()
    before, after = (tmp_path / folder / "fedss.npz" for folder in ("sampled", name))
    assert after.read_bytes() == before.read_bytes()
    ours, theirs = (
        [{k: v for k, v in row.items() if k[:6] != "bytes_"} for row in read(f)[0]]
        for f in (tmp_path / name, tmp_path / "sampled")
    )
    assert ours == theirs


def test_without_it_nothing_belongs_to_other_flags():
    plain = train.Config(results_dir="x")
    flags = run_config.with_defaults(config.parse(plain, "--dp=none"))
    plain = run_config.with_defaults(plain)
    assert flags.deciding() == plain.deciding()
    assert not set(privacy_config.PrivacyConfig().flags()) & plain.deciding().keys()


def test_epsilon_is_in_metrics_progress_table_and_record(
    run_train, tmp_path, one_layer
):
    folder = tmp_path / "run"
    flags = (*SMALL, f"{GAUSSIAN},sampling=poisson,delta=0.01")
    output, errors = run_train(*flags, "--rounds=2", f"--results_dir={folder}").ok()
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
        "epsilon_by": pytest.approx(accountant.bounds(2)),
        "delta": 0.01,
        "neighbours": "a client is added or removed",
    }
