"""What the server gets to see, as flags of `./run.sh train`."""

import csv

import numpy as np
import pytest

from experiments.common import config
from experiments.fedss import defences_config, run_config, train
from tests.experiments.fedss.test_train import SMALL
from tests.experiments.killing import kill_after_a_checkpoint

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
            ["--negatives=pool"],
            "'pool' needs size; for example --negatives=pool:size=10.",
        ),
        (["--negatives=randomized_response"], "'randomized_response' needs epsilon"),
        (["--negatives=memoised:size=9"], "'memoised' has no option size; it has none"),
        (["--aggregation=plain:threshold=2"], "'plain' has no option threshold"),
        (
            ["--aggregation=secure:threshold=4"],
            "the threshold is more than --clients_per_round=3",
        ),
        (
            ["--negatives=pool:size=4"],
            "--negatives=pool:size=4: expected a size from --num_negatives = 5 to ",
        ),
        (
            ["--negatives=randomized_response:epsilon=1", "--num_negatives=40"],
            "needs --num_negatives below n = 40, found 40",
        ),
        (
            ["--method=pos_only", "--negatives=memoised"],
            "--negatives=memoised has no effect on pos_only, which draws no negatives",
        ),
        (
            ["--method=full_softmax", "--requests=union"],
            "--requests=union has no effect on full_softmax, which asks for no rows",
        ),
        (
            ["--method=centralized", "--aggregation=secure"],
            "--aggregation=secure has no effect on centralized, which has no rows of W",
        ),
        (
            ["--requests=union", "--cluster=local"],
            "--requests=union cannot be trained on a cluster",
        ),
        (["--requests=some"], "--requests=some: value should be one of <sampled|unio"),
    ],
)
def test_a_flag_without_effect_is_one_clear_line(run_train, tmp_path, flags, message):
    folder = tmp_path / "run"
    code, _, errors = run_train(*SMALL, *flags, f"--results_dir={folder}")
    assert code == 2, errors
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert message in errors
    assert not folder.exists()


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
    plain = run_config.with_defaults(train.Config())
    assert not set(defences_config.DefencesConfig.flags()) & plain.deciding().keys()


def read(folder):
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    (table,) = csv.DictReader((folder / "table.csv").open())
    return rows[1:], {k: v for k, v in table.items() if k != "method"}


def test_a_run_that_hides_tells_what_it_costs(run_train, tmp_path):
    folder = tmp_path / "run"
    flags = [*DEFENCES["union"], *DEFENCES["secure"], *DEFENCES["pool"]]
    code, output, errors = run_train(
        *SMALL, *flags, "--rounds=2", f"--results_dir={folder}"
    )
    assert code == 0, errors
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
@pytest.mark.parametrize("name", DEFENCES)
def test_a_killed_run_resumes_to_the_same_bytes(run_train, tmp_path, name):
    flags = [*SMALL, *DEFENCES[name], "--rounds=9", "--rounds_per_checkpoint=2"]
    code, _, errors = run_train(*flags, f"--results_dir={tmp_path / 'whole'}")
    assert code == 0, errors
    folder = tmp_path / "killed"
    kill_after_a_checkpoint(
        "experiments.fedss.train", "fedss", flags, folder, seconds=600
    )
    code, output, errors = run_train(*flags, f"--results_dir={folder}")
    assert code == 0, errors
    assert "fedss: resumes after round" in output
    for file in ("metrics.csv", "fedss.npz", "table.csv"):
        whole = (tmp_path / "whole" / file).read_bytes()
        assert (folder / file).read_bytes() == whole, file


@pytest.mark.slow
@pytest.mark.parametrize("name", ["union", "all"])
def test_what_else_is_sent_changes_no_weight(run_train, tmp_path, name):
    for folder, flags in (("sampled", []), (name, DEFENCES[name])):
        code, _, errors = run_train(
            *SMALL, *flags, "--rounds=4", f"--results_dir={tmp_path / folder}"
        )
        assert code == 0, errors
    before, after = (tmp_path / folder / "fedss.npz" for folder in ("sampled", name))
    with np.load(before) as a, np.load(after) as b:
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
    ours, theirs = (
        [{k: v for k, v in row.items() if k[:6] != "bytes_"} for row in read(f)[0]]
        for f in (tmp_path / name, tmp_path / "sampled")
    )
    assert ours == theirs
