"""The words of --server_optimizer, --schedule and --method=fedprox at work."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.fedss import optimizers, train
from tests.experiments import central_runs

pytestmark = pytest.mark.usefixtures("one_layer")


def rates(text, whose="clients", rounds=4):
    config = train.Config(schedule=text, rounds=rounds)
    fn = config.learning_rate_fn(whose, 0.8)
    return fn and [float(fn(tf.constant(k))) for k in range(rounds)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("cosine", [0.8, 0.4 + 0.4 * 0.5**0.5, 0.4, 0.4 - 0.4 * 0.5**0.5]),
        ("step:every=2,factor=0.5", [0.8, 0.8, 0.4, 0.4]),
        ("step:every=1,of=both", [0.8, 0.08, 0.008, 0.0008]),
    ],
)
def test_rates_of_rounds(text, expected):
    np.testing.assert_allclose(rates(text), expected, rtol=1e-5)


def test_whose_rates_they_are():
    assert rates(None) is None and rates("cosine", "server") is None
    assert rates("cosine:of=server") is None
    assert rates("cosine:of=server", "server") == rates("cosine")


def run(run_train, folder, *more):
    run_train(
        *("--dataset=glyphs:num_classes=40", "--warm_start_epochs=0", "--rounds=2"),
        *("--clients_per_round=2", "--num_negatives=4", f"--results_dir={folder}"),
        *("--rounds_per_evaluation=2", "--image_size=14", *more),
    ).ok()
    (weights,) = folder.glob("*.npz")
    with np.load(weights) as arrays:
        classifier = arrays["W"]
    return central_runs.rows_of(folder), classifier


def test_they_change_a_run_as_they_should(run_train, tmp_path):
    plain, w = run(run_train, tmp_path / "plain")
    # A step by 1 after each round is no step; FedProx with mu = 0 is FedSS.
    flags = ("--schedule=step:every=1,factor=1,of=both", "--method=fedprox:mu=0")
    rows, same = run(run_train, tmp_path / "same", *flags)
    np.testing.assert_array_equal(w, same)
    assert [row["loss"] for row in rows] == [row["loss"] for row in plain]
    # The first round has the whole rate, the second one none: only the momentum moves.
    rows, moved = run(run_train, tmp_path / "none", "--schedule=step:every=1,factor=0")
    assert rows[1]["loss"] == plain[1]["loss"] and (moved != w).any()
    _, close = run(run_train, tmp_path / "close", "--method=fedprox:mu=10")
    assert (close != w).any()
    _, adam = run(run_train, tmp_path / "adam", "--server_optimizer=adam")
    assert np.isfinite(adam).all() and (adam != w).any()
    assert optimizers.Adam().epsilon == 1e-3


def test_a_centralized_run_follows_the_schedule(run_train, tmp_path):
    flags = ("--method=centralized", "--schedule=step:every=1,factor=0")
    _, w = run(run_train, tmp_path / "two", *flags)
    _, first = run(run_train, tmp_path / "one", flags[0], "--rounds=1")
    # The first round has the whole rate, the second none; SGD has no momentum here.
    np.testing.assert_array_equal(w, first)
