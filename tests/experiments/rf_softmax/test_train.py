import csv
import json

import numpy as np
import pytest

from tests.datasets.images import own_images
from tests.experiments import program_server
from tests.experiments.killing import kill_after_a_checkpoint

SMALL_TEXT = (
    "--task=ptb",
    "--num_negatives=5",
    "--num_units=8",
    "--embedding_dim=6",
    "--batch_size=2",
    "--num_steps=4",
    "--num_frequencies=10",
    "--steps_per_round=3",
    "--rounds_per_evaluation=2",
)


@pytest.fixture(scope="module")
def run():
    """Runs the program in its own process: flags -> (exit code, stdout, stderr)."""
    with program_server.serve("experiments.rf_softmax.train") as run:
        yield run


@pytest.fixture
def text(tmp_path):
    """A language of 40 words, in which each is followed by one of two."""
    folder = tmp_path / "text"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part in ("train", "valid", "test"):
        word, words = 0, []
        for _ in range(600):
            word = (3 * word + generator.integers(1, 3)) % 40
            words.append(f"w{word}")
        if part == "train":
            words += [f"w{i}" for i in range(40)]
        (folder / f"ptb.{part}.txt").write_text(" ".join(words) + "\n")
    return folder


@pytest.fixture
def labelled_rows(tmp_path):
    """Rows whose feature is their label."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for part, count in (("train", 60), ("test", 20)):
        lines = [f"{i % 12},{(i + 1) % 12} {i % 12}:1" for i in range(count)]
        header = f"{count} 12 12"
        (folder / f"{part}.txt").write_text("\n".join([header, *lines]) + "\n")
    return folder


def test_a_run_leaves_a_folder_that_explains_it(run, text, tmp_path):
    folder = tmp_path / "run"
    flags = (*SMALL_TEXT, f"--data_dir={text}", "--sampler=rff", "--rounds=3")
    code, output, errors = run(*flags, f"--results_dir={folder}")
    assert code == 0, errors
    assert "n=41 words" in output and "rff: perplexity" in output
    names = {path.name for path in folder.iterdir()}
    assert {"metrics.csv", "speed.csv", "curves.png", "rff.npz", "run.json"} <= names
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["steps"] for row in rows] == ["", "3", "6", "9"]
    assert [bool(row["perplexity"]) for row in rows] == [True, False, True, True]
    assert all(0 <= float(row["clipped_share"]) < 1 for row in rows[1:])
    assert [bool(row["effective_samples"]) for row in rows] == [0, 0, 1, 0]
    assert 0 < float(rows[2]["effective_samples"]) <= 5
    assert 0 <= float(rows[2]["clipped_mass"]) <= 1
    assert f"effective m {float(rows[2]['effective_samples']):.1f}" in errors
    assert "of m=5 negatives " in output and " are effective" in output
    done = json.loads((folder / "done.json").read_text())
    assert done["perplexity"] == float(rows[-1]["perplexity"])

    again = tmp_path / "again"
    code, _, errors = run(
        f"--flagfile={folder / 'flags.txt'}", f"--results_dir={again}"
    )
    assert code == 0, errors
    for name in ("metrics.csv", "rff.npz"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    code, output, _ = run(*flags, f"--results_dir={folder}")
    assert code == 0 and "Done before, nothing to run." in output
    code, _, errors = run(*flags, "--nu=3", f"--results_dir={folder}")
    assert code == 2 and "--nu=4.0 there, --nu=3.0 here" in errors


def test_a_nu_that_is_too_large_for_its_features_is_told(run, text, tmp_path):
    def errors_of(nu):
        code, _, errors = run(
            *SMALL_TEXT,
            f"--data_dir={text}",
            "--sampler=rff",
            f"--nu={nu}",
            "--rounds=2",
            f"--results_dir={tmp_path / str(nu)}",
        )
        assert code == 0, errors
        return errors

    told = errors_of(12)
    assert "Warning: round 2: of m=5 negatives" in told
    assert "Lower --nu=12, or raise --num_frequencies=10." in told
    assert "Warning" not in errors_of(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["rff", "quadratic"])
def test_a_killed_run_goes_on_to_the_same_bytes(run, text, tmp_path, sampler):
    flags = (
        *SMALL_TEXT,
        f"--data_dir={text}",
        f"--sampler={sampler}",
        "--rounds=60",
        "--rounds_per_checkpoint=2",
    )
    code, _, errors = run(*flags, f"--results_dir={tmp_path / 'whole'}")
    assert code == 0, errors
    folder = tmp_path / "killed"
    kill_after_a_checkpoint(
        "experiments.rf_softmax.train", sampler, flags, folder, seconds=240
    )
    code, output, errors = run(*flags, f"--results_dir={folder}")
    assert code == 0, errors
    assert f"{sampler}: goes on after round" in output
    for name in ("metrics.csv", f"{sampler}.npz"):
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (folder / name).read_bytes() == whole, name


@pytest.mark.parametrize("sampler, mask", [("full", False), ("exp", True)])
def test_labels_are_learned(run, labelled_rows, tmp_path, sampler, mask):
    code, output, errors = run(
        "--task=extreme",
        f"--data_dir={labelled_rows}",
        f"--sampler={sampler}",
        f"--mask_positives={mask}",
        "--num_negatives=4",
        "--embedding_dim=12",
        "--steps_per_round=50",
        "--rounds=4",
        f"--results_dir={tmp_path / 'run'}",
    )
    assert code == 0, errors
    assert "v=12 features, n=12 labels" in output
    *_, last = csv.DictReader((tmp_path / "run/metrics.csv").open())
    # Two labels a row: no more than 2 of 3 and 2 of 5 can be right.
    assert float(last["precision_at_1"]) == 1.0
    assert float(last["precision_at_3"]) == pytest.approx(2 / 3)
    assert float(last["precision_at_5"]) == pytest.approx(2 / 5)


def test_images_are_trained_on(run, tmp_path):
    code, output, errors = run(
        "--task=glyphs",
        "--sampler=uniform",
        "--rounds=1",
        "--steps_per_round=2",
        f"--results_dir={tmp_path / 'run'}",
    )
    assert code == 0, errors
    assert "n=500 classes" in output and "uniform: top1" in output


def test_own_images_are_trained_on(run, tmp_path):
    folder = own_images.of_classes(tmp_path / "own", *"abcdefgh", count=5)
    code, output, errors = run(
        "--task=images",
        f"--data_dir={folder}",
        "--sampler=uniform",
        "--num_negatives=3",
        "--batch_size=8",
        "--test=images",
        "--test_share=0.4",
        "--rounds=1",
        "--steps_per_round=2",
        f"--results_dir={tmp_path / 'run'}",
    )
    assert code == 0, errors
    assert "n=8 classes" in output and "uniform: top1" in output
    assert "test: 40% of the images" in output


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--task=ptb"], "--task=ptb needs --data_dir=DIR"),
        (["--task=extreme"], "--task=extreme needs --data_dir=DIR"),
        (["--task=sop"], "--task=sop: value should be one of <ptb|extreme|glyphs"),
        (["--sampler=best"], "--sampler=best: value should be one of <full|uniform"),
        (["--data_dir=/no/such"], "--data_dir=/no/such does not exist"),
        (["--task=extreme", "--data_dir=/no/such"], "--data_dir=/no/such must hold"),
        (["--task=glyphs", "--data_dir=."], "--task=glyphs takes no --data_dir"),
        (
            ["--task=images"],
            "--task=images needs --data_dir=DIR",
        ),
        (["--task=tfds"], "--task=tfds needs --tfds_name=NAME"),
        (
            ["--task=glyphs", "--tfds_name=mnist"],
            "--tfds_name goes with --task=tfds only, found --task=glyphs",
        ),
        (["--nu=0"], "--nu=0"),
        (["--mask_positives"], "--mask_positives goes with --task=extreme"),
    ],
)
def test_bad_input_is_one_clear_line(run, tmp_path, flags, message):
    code, output, errors = run(*flags, f"--results_dir={tmp_path / 'run'}")
    assert code == 2, errors
    assert output == "" and errors.count("\n") == 1
    assert message in errors
    assert not (tmp_path / "run").exists()


def test_a_text_that_is_too_short_is_named(run, text, tmp_path):
    code, _, errors = run(
        *SMALL_TEXT,
        f"--data_dir={text}",
        "--batch_size=200",
        f"--results_dir={tmp_path / 'run'}",
    )
    assert code == 2 and "are more than a text of 601 has" in errors


def test_help_shows_the_flags_by_topic(run):
    code, output, _ = run("--help")
    assert code == 0
    for text in ("./run.sh rf_softmax", "\nSampling:\n", "--num_frequencies", "--nu"):
        assert text in output
