"""`./run.sh rf_softmax`, and random Maclaurin features."""

import numpy as np
import pytest

from experiments.common import run_encoder
from experiments.rf_softmax import sampler_quality
from tests.datasets.images import own_images
from tests.experiments import central_runs
from tests.faults import programs

PROGRAM = "experiments.rf_softmax.train"
SMALL_TEXT = (*programs.RF_SOFTMAX, "--rounds_per_evaluation=2")


@pytest.fixture
def text(tmp_path):
    programs.text(tmp_path / "text")
    return tmp_path / "text"


@pytest.fixture
def labelled_rows(tmp_path):
    programs.labelled_rows(tmp_path / "rows")
    return tmp_path / "rows"


def test_a_run_leaves_a_folder_that_explains_it(run, text, tmp_path):
    folder = tmp_path / "run"
    flags = (*SMALL_TEXT, f"--data_dir={text}", "--sampler=rff", "--rounds=3")
    output, errors = run(*flags, f"--results_dir={folder}").ok()
    assert "n=41 words" in output and "rff: perplexity" in output
    rows = central_runs.rows_of(folder)
    assert [row["steps"] for row in rows] == ["", "3", "6", "9"]
    assert [bool(row["perplexity"]) for row in rows] == [True, False, True, True]
    assert all(0 <= float(row["clipped_share"]) < 1 for row in rows[1:])
    assert [bool(row["effective_samples"]) for row in rows] == [0, 0, 1, 1]
    assert all(0 < float(row["effective_samples"]) <= 5 for row in rows[2:])
    assert all(0 <= float(row["clipped_mass"]) <= 1 for row in rows[2:])
    assert f"effective m {float(rows[2]['effective_samples']):.1f}" in errors
    assert "of m=5 negatives " in output and " are effective" in output
    central_runs.assert_explained(run, flags, folder, ["rff.npz"], "perplexity")


def test_a_nu_that_is_too_large_for_its_features_is_named(run, text, tmp_path):
    def errors_of(nu):
        _, errors = run(
            *SMALL_TEXT,
            f"--data_dir={text}",
            "--sampler=rff",
            f"--nu={nu}",
            "--rounds=2",
            f"--results_dir={tmp_path / str(nu)}",
        ).ok()
        return errors

    errors = errors_of(12)
    assert "Warning: round 2: of m=5 negatives" in errors
    assert "Lower --nu=12, or raise --num_frequencies=10." in errors
    assert "Warning" not in errors_of(0.1)


@pytest.mark.parametrize("sampler, mask", [("full", False), ("exp", True)])
def test_labels_are_learned(run, labelled_rows, tmp_path, sampler, mask):
    output, _ = run(
        "--task=extreme",
        f"--data_dir={labelled_rows}",
        f"--sampler={sampler}",
        f"--mask_positives={mask}",
        "--num_negatives=4",
        "--embedding_dim=12",
        "--steps_per_round=50",
        "--rounds=4",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()
    assert "v=12 features, n=12 labels" in output
    *_, last = central_runs.rows_of(tmp_path / "run")
    # Two labels a row: no more than 2 of 3 and 2 of 5 can be right.
    assert float(last["precision_at_1"]) == 1.0
    assert float(last["precision_at_3"]) == pytest.approx(2 / 3)
    assert float(last["precision_at_5"]) == pytest.approx(2 / 5)


def test_own_images_are_trained_on(run, tmp_path):
    folder = own_images.of_classes(tmp_path / "own", *"abcdefgh", count=5)
    output, _ = run(
        "--task=images:test=images,test_share=0.4",
        f"--data_dir={folder}",
        "--sampler=uniform",
        "--num_negatives=3",
        "--batch_size=8",
        "--rounds=1",
        "--steps_per_round=2",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()
    assert "n=8 classes" in output and "uniform: top1" in output
    _, phi, image_input = run_encoder.read(tmp_path / "run")
    assert image_input == run_encoder.federated_input("images", phi.input_shape[1])
    assert "test: 40% of the images" in output


def test_unseen_classes_are_measured(run, tmp_path):
    programs.tiny_imagenet(tmp_path / "photographs")
    run(
        "--task=tiny_imagenet:num_unseen_classes=2",
        f"--data_dir={tmp_path / 'photographs'}",
        "--sampler=uniform",
        "--rounds=1",
        "--steps_per_round=1",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()
    rows = central_runs.rows_of(tmp_path / "run")
    assert all(0 <= float(row["unseen_map_at_10"]) <= 1 for row in rows)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--task=ptb"], "--task=ptb needs --data_dir=DIR"),
        (["--nu=400"], "--nu=400: expected a number of at least 1e-06, at most 300"),
        (["--alpha=1e300"], "--alpha=1e300: expected a number of at least 0"),
        (["--task=extreme", "--data_dir=/no/such"], "--data_dir=/no/such must hold"),
        (["--task=glyphs", "--data_dir=."], "has no effect on --task=glyphs"),
        (
            [*SMALL_TEXT, "--data_dir=text", "--batch_size=200"],
            "--batch_size=200 parts of --num_steps=4 words and a last one are more ",
        ),
    ],
)
def test_bad_input_is_one_clear_line(run, text, tmp_path, flags, message):
    flags = [flag.replace("=text", f"={text}") for flag in flags]
    central_runs.assert_refused(run, flags, message, tmp_path / "run")


def test_maclaurin_features_are_unbiased_and_vary_by_the_formula():
    generator = np.random.Generator(np.random.Philox(0))
    h = generator.standard_normal((6, 512))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    other = generator.standard_normal(h.shape)
    other -= (other * h).sum(1, keepdims=True) * h
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    cosines = np.linspace(-0.5, 0.9, 6)
    c = cosines[:, np.newaxis] * h + np.sqrt(1 - cosines**2)[:, np.newaxis] * other
    tau, num_features, repeats = 0.6, 200, 400
    estimates = np.array(
        [
            sampler_quality.maclaurin(
                h.astype("f4"), c.astype("f4"), tau, num_features, seed
            )
            for seed in range(repeats)
        ]
    )
    variance = sampler_quality.maclaurin_variance(tau, cosines, num_features)
    errors = np.sqrt(variance / repeats)
    assert (np.abs(estimates.mean(0) - np.exp(tau * cosines)) < 4 * errors).all()
    # Heavy tails: the mean over pairs of the ratio, not each.
    assert abs(np.mean(estimates.var(0) / variance) - 1) < 0.2
