"""What protects clients, as flags of `./run.sh train`: DP, and what the server sees."""

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
            ["--dp=gaussian:noise=1e6,sampling=poisson"],
            "noise is a number of at least 0, at most 100000, found '1e6'",
        ),
        (["--dp=ftrl:noise=1e-300"], "noise must be 0, or at least 1e-09."),
        (
            ["--dp=ftrl:noise=2,adaptive=true"],
            "--dp=ftrl:noise=2.0,adaptive=true: an adaptive clip changes only where a",
        ),
        (
            ["--method=centralized", "--xla"],
            "--xla=True has no effect on centralized: it is for fedss, neg_only",
        ),
        (
            ["--method=full_softmax", "--logit_correction=none"],
            "--logit_correction=none has no effect on full_softmax: it is for fedss, ",
        ),
        (
            ["--method=centralized", "--server_optimizer=adam"],
            "has no effect on centralized: it is for fedss, neg_only, pos_only, ",
        ),
        (
            ["--method=centralized", "--schedule=cosine:of=server"],
            "--schedule=cosine:of=server has no effect on centralized: it is for ",
        ),
    ],
)
def test_a_flag_that_cannot_be_is_one_clear_line(run_train, tmp_path, flags, message):
    central_runs.assert_refused(
        run_train, (*SMALL, *flags), message, tmp_path / "run", prints=True
    )


SECURE = ("--negatives=fresh", "--requests=sampled", "--aggregation=secure:threshold=1")


@pytest.mark.parametrize(
    "flags, said", [(["--dp=none"], {}), (SECURE, {"aggregation": "secure"})]
)
def test_what_says_nothing_new_belongs_to_the_folders_of_before(flags, said):
    asked = config.parse(train.Config(results_dir="x"), *flags)
    found = run_config.with_defaults(asked).deciding()
    expected = train.Config(results_dir="x", **said)
    assert found == run_config.with_defaults(expected).deciding()
    assert {*privacy_config.PrivacyConfig().flags()} & found.keys() == said.keys()


def test_a_run_that_hides_tells_what_it_costs(run_train, tmp_path, one_layer):
    folder = tmp_path / "run"
    flags = [*DEFENCES["union"], *DEFENCES["secure"], *DEFENCES["pool"]]
    output, _ = run_train(*SMALL, *flags, "--rounds=2", f"--results_dir={folder}").ok()
    written = (folder / "flags.txt").read_text().splitlines()
    assert set(flags) <= set(written)
    _, *rows = central_runs.rows_of(folder)
    (table,) = central_runs.rows_of(folder, "table.csv")
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


def test_epsilon_is_in_metrics_progress_table_and_record(
    run_train, tmp_path, one_layer
):
    folder = tmp_path / "run"
    flags = (*SMALL, f"{GAUSSIAN},sampling=poisson,delta=0.01")
    output, errors = run_train(*flags, "--rounds=2", f"--results_dir={folder}").ok()
    dataset_size = 8  # Glyphs of 40 classes.
    accountant = accounting.PoissonSampling(0.2, 0.01, dataset_size, 3)
    start, *rows = central_runs.rows_of(folder)
    assert not start["epsilon"]
    expected = [accountant.epsilon(1), accountant.epsilon(2)]
    assert [float(row["epsilon"]) for row in rows] == pytest.approx(expected)
    assert all(float(row["dp/clip"]) == 1 for row in rows)
    assert f"epsilon {expected[1]:.3g}" in errors
    assert "neighbouring data: a client is added or removed" in output
    (table,) = central_runs.rows_of(folder, "table.csv")
    assert float(table["epsilon"]) == pytest.approx(expected[1])
    done = json.loads((folder / "done.json").read_text())
    assert done["outcomes"]["fedss"]["epsilon"] == pytest.approx(expected[1])
    assert done["user_level_dp"]["fedss"] == {
        "epsilon": pytest.approx(expected[1]),
        "epsilon_by": pytest.approx(accountant.bounds(2)),
        "delta": 0.01,
        "neighbours": "a client is added or removed",
    }
