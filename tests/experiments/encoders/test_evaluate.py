import json
import shutil

import numpy as np
import pytest

from experiments.encoders import embed, evaluate, vectors
from tests.datasets.images import own_images
from tff_fedss import metrics


@pytest.fixture(scope="module")
def vectors_file(encoder_file, pictures, tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "v.parquet"
    embed.main(
        embed.Config(model=str(encoder_file), images=str(pictures), output=str(path))
    )
    return path


def test_measures_all_classes_and_the_trained_and_new_ones_apart(
    run, encoder_file, pictures, vectors_file, tmp_path
):
    path = tmp_path / "measured.json"
    flags = f"--model={encoder_file}", f"--images={pictures}"
    output, _ = run(evaluate, *flags, f"--output={path}", "--far=0.01").ok()
    # Of the three classes, training had "a b"; alone, it is no task.
    content = json.loads(path.read_text())
    assert list(content["measured"]) == ["all", "new classes"]
    assert content["measured"]["all"]["images"] == 45
    assert content["measured"]["new classes"]["classes"] == 2
    # phi is untrained, and three colours look alike to it.
    warning, _, header, _, *rows, _ = output.splitlines()
    assert warning.startswith("WARNING: the encoder has collapsed")
    assert header.split() == ["mine", "all", "new", "classes"]
    assert [row.partition("  ")[0] for row in rows] == [
        "images",
        "classes",
        "MAP@10",
        "MAP@R",
        "Recall@1",
        "Recall@10",
        "R-precision",
        "top-1, nearest centre",
        "TAR@FAR=0.01",
    ]

    kept = vectors.read(vectors_file)
    labels = np.array([sorted(set(kept.labels)).index(name) for name in kept.labels])
    pairs = metrics.draw_pairs(labels, 100_000, 0)
    cosines = metrics.pair_cosines(kept.vectors, pairs)
    expected = {
        "map_at_10": metrics.map_at_r(kept.vectors, labels, 10),
        "r_precision": metrics.retrieval_scores(kept.vectors, labels).r_precision,
        "center_top1": metrics.center_accuracy(kept.vectors, labels),
        "tar_at_far": metrics.tar_at_far(cosines, pairs.is_same, 0.01),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(content["measured"]["all"][name], value)
        assert f"{100 * value:.1f} %" in output

    of_file, _ = run(evaluate, *flags, f"--vectors={vectors_file}", "--far=0.01").ok()
    assert of_file == output


def test_vectors_of_other_images_are_refused(
    run, encoder_file, pictures, vectors_file, tmp_path
):
    other = tmp_path / "other"
    shutil.copytree(pictures, other)
    next(other.rglob("*.png")).unlink()
    flags = f"--model={encoder_file}", f"--images={other}"
    for path, message in (
        (vectors_file, "is of other images than --model, --images"),
        (tmp_path / "none", "is not a file"),
    ):
        run(evaluate, *flags, f"--vectors={path}").refused(message)


def test_a_collapsed_encoder_is_said_first():
    rng = np.random.default_rng(0)
    direction = np.eye(8)[0]
    alike = direction + 0.01 * rng.normal(size=(50, 8))
    warning = vectors.collapse_warning(alike.astype(np.float32))
    assert "mean cosine 0.999" in warning and "of 8" in warning
    assert not vectors.collapse_warning(rng.normal(size=(50, 8)).astype(np.float32))


@pytest.mark.parametrize(
    "names, message",
    [
        (["a/1.png", "b/1.png"], "nothing to measure: pairs need"),
        (["a/1.png", "a/2.png", "b/1.png"], "takes more than 10 images"),
        (["1.png", "2.png"], "1.png is not in a folder"),
    ],
)
def test_too_little_to_measure_is_said(names, message, run, encoder_file, tmp_path):
    folder = own_images.write(tmp_path / "few", own_images.images(*names))
    outcome = run(evaluate, f"--model={encoder_file}", f"--images={folder}")
    assert outcome.refused(message).startswith(f"error: --images={folder}")


@pytest.mark.parametrize(
    "output, message",
    [(".", "is a folder"), ("none/measured.json", "has no folder")],
)
def test_an_output_that_is_no_file_is_refused_before_the_encoder_is_read(
    output, message, run, tmp_path
):
    flags = "--model=none.keras", "--images=none", f"--output={tmp_path / output}"
    run(evaluate, *flags).refused(message)
