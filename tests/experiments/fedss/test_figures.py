"""The figures: what they show, when there is nothing to draw, and the files."""

import statistics

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from experiments.fedss import figures, table_results
from experiments.fedss.table_results import Setting
from tests.algorithms import toy
from tests.experiments import run_folders
from tff_fedss import tasks
from tff_fedss.datasets import synthetic
from tff_fedss.datasets.federated.clients import InMemoryClientData, dataset_from_arrays
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError


def check_png(path):
    """There is a picture, with something in it, and nothing is left beside it."""
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 300 and image.shape[1] > 400
    assert image[..., :3].std() > 0.05
    assert not list(path.parent.glob(".*"))


@pytest.fixture
def results(tmp_path):
    run_folders.write_table(tmp_path / "runs")
    return table_results.read(tmp_path / "runs")


@pytest.fixture
def drawn(monkeypatch):
    """Keeps the panels of the figures that are drawn."""
    panels = []
    subplots = figures.plt.subplots

    def spy(*args, **kwargs):
        figure, axes = subplots(*args, **kwargs)
        panels.extend(np.ravel(axes))
        return figure, axes

    monkeypatch.setattr(figures.plt, "subplots", spy)
    return panels


def lines_of(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_learning_curves_show_mean_and_spread(results, tmp_path, drawn):
    figures.draw(3, tmp_path / "figure3.png", results)
    check_png(tmp_path / "figure3.png")
    (axes,) = drawn
    lines = lines_of(axes)
    assert list(lines) == [
        "FedSS (m = 20)",  # the middle one of 5, 20 and 80
        "NegOnly (m = 20)",
        "PosOnly",
        "FedAwS",
        "FullSoftmax",
        "Centralized",
    ]
    rounds, mean = lines["PosOnly"].get_data()
    np.testing.assert_array_equal(rounds, [0, 2, 4])
    finals = run_folders.PERCENTS["omniglot_pos_only"]
    half = statistics.mean(finals) / 2
    np.testing.assert_allclose(mean, [0, half, 2 * half])
    assert lines["PosOnly"].get_color() == figures.METHOD_COLORS["pos_only"]
    top = axes.collections[2].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(2 * half + statistics.stdev(finals))
    assert axes.get_xlabel() == "round"
    assert axes.get_ylabel() == "top-1 on held-out images (%)"


def test_an_unfinished_cell_is_drawn_as_far_as_all_its_runs_are(tmp_path):
    for seed, done in enumerate((3, 2)):
        run_folders.write_run(tmp_path, "omniglot_fedaws", seed, 40, rounds_done=done)
    cell = table_results.read(tmp_path).cells[Setting("fedaws")]
    rounds, mean, std = figures.mean_curve(cell, "top1")
    np.testing.assert_array_equal(rounds, [0, 2])
    np.testing.assert_allclose(mean, [0, 20])
    np.testing.assert_allclose(std, [0, 0])
    # A finished one counts alone.
    run_folders.write_run(tmp_path, "omniglot_fedaws", 2, 80)
    cell = table_results.read(tmp_path).cells[Setting("fedaws")]
    rounds, mean, _ = figures.mean_curve(cell, "top1")
    np.testing.assert_array_equal(rounds, [0, 2, 4])
    np.testing.assert_allclose(mean, [0, 40, 80])


def test_convergence_has_a_panel_for_each_reading(tmp_path, drawn):
    run_folders.write_table(tmp_path / "runs")
    run_folders.write_run(tmp_path / "runs", "omniglot_fedss_m5_uncorrected", 0, 44.0)
    figures.draw(4, tmp_path / "4.png", table_results.read(tmp_path / "runs"))
    check_png(tmp_path / "4.png")
    corrected, uncorrected = drawn
    assert list(lines_of(corrected)) == [
        "|S_k| = 25",
        "|S_k| = 40",
        "|S_k| = 100",
        "FullSoftmax",
    ]
    assert list(lines_of(uncorrected)) == ["|S_k| = 25", "FullSoftmax"]
    assert lines_of(uncorrected)["|S_k| = 25"].get_ydata()[-1] == pytest.approx(44)


@pytest.mark.parametrize("number", [5, 10])
def test_traffic(results, tmp_path, drawn, number):
    figures.draw(number, tmp_path / "5.png", results)
    check_png(tmp_path / "5.png")
    (axes,) = drawn
    points = {
        c.get_label(): np.array(c.lines[0].get_data(), float) for c in axes.containers
    }
    # |S_k| d, with the exact mean of |S_k|.
    np.testing.assert_allclose(
        points["FedSS"], [[24.6 * 64, 39.6 * 64, 99.6 * 64], [52, 167.5 / 3, 58.5]]
    )
    np.testing.assert_allclose(
        points["FullSoftmax"], [[659 * 64], [statistics.mean((60.0, 61.5, 61.0))]]
    )
    (line,) = (x for x in axes.get_lines() if "Centralized" in str(x.get_label()))
    assert set(line.get_ydata()) == {64.0}


def write_composition(folder):
    for cell, percent in (
        ("omniglot_fedss_m5", 50.0),
        ("omniglot_fedss_m20", 55.0),
        ("omniglot_neg_only_m5", 5.0),
        ("omniglot_neg_only_m20", 20.0),
        ("omniglot_neg_only_m24", 24.0),
        ("omniglot_neg_only_m39", 39.0),
    ):
        run_folders.write_run(folder, cell, 0, percent)


def test_composition_pairs_equal_numbers_of_pushing_classes(tmp_path, drawn):
    write_composition(tmp_path / "runs")
    results = table_results.read(tmp_path / "runs")
    pairs = figures.compositions(results)
    # 5 + 20 - 1 and 20 + 20 - 1.
    assert [(a.setting.num_negatives, b.setting.num_negatives) for a, b in pairs] == [
        (5, 24),
        (20, 39),
    ]
    figures.draw(6, tmp_path / "6.png", results)
    check_png(tmp_path / "6.png")
    heights = [bar.get_height() for bar in drawn[0].patches]
    np.testing.assert_allclose(heights, [50, 24, 55, 39])


def test_the_table_alone_has_no_composition(results, tmp_path):
    """NegOnly with the m of another FedSS is not meant for figure 6."""
    assert figures.compositions(results) == []
    with pytest.raises(figures.NothingToDraw, match=r"no pair of FedSS with m"):
        figures.draw(6, tmp_path / "6.png", results)
    assert not (tmp_path / "6.png").exists()


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 10])
def test_nothing_to_draw(tmp_path, number):
    with pytest.raises(figures.NothingToDraw, match="needs the results"):
        figures.draw(number, tmp_path / "x.png")
    run_folders.write_run(
        tmp_path / "runs", "omniglot_centralized", 0, 1, rounds_done=0
    )
    (tmp_path / "runs/omniglot_centralized/seed0/metrics.csv").unlink()
    results = table_results.read(tmp_path / "runs")
    with pytest.raises(figures.NothingToDraw):
        figures.draw(number, tmp_path / "x.png", results)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


# --- Figure 7 ---------------------------------------------------------------------


def toy_task(labels):
    """One client; an image is a single pixel at the place of its class."""
    images = np.zeros([len(labels), 4, 4, 1], np.uint8)
    images.reshape(len(labels), 16)[np.arange(len(labels)), labels] = 255
    clients = InMemoryClientData({"anna": (images, np.array(labels, np.int32))})
    dataset = FederatedDataset(
        name="toy",
        num_classes=16,
        image_shape=(4, 4, 1),
        train=clients,
        num_examples=clients.num_examples,
        positives=clients.positives,
        max_positives=clients.max_positives,
        test=dataset_from_arrays(images, np.array(labels, np.int32)),
        num_test_examples=len(labels),
    )

    def features():
        pixels = tf.keras.Input([4, 4, 1])
        x = tf.keras.layers.Flatten()(pixels)
        return tf.keras.Model(pixels, tf.keras.layers.Dense(16, use_bias=False)(x))

    return tasks.Classification(dataset, features)


def write_confusing_runs(folder):
    """FedSS is always right; NegOnly takes everything for class 2."""
    classifiers = {"fedss": np.eye(16), "neg_only": -np.eye(16)}
    classifiers["neg_only"][2] = 1
    for m in (5, 20):
        for method, classifier in classifiers.items():
            for seed in (0, 1):
                path = run_folders.write_run(
                    folder, f"omniglot_{method}_m{m}", seed, 50.0
                )
                if m == 5 and seed == 1:
                    np.savez(
                        path / f"{method}.npz",
                        phi_000=np.eye(16, dtype=np.float32),
                        W=classifier.astype(np.float32),
                    )
        if m == 5:  # Only seed 1 is finished in both.
            (folder / "omniglot_neg_only_m5/seed0/done.json").unlink()


def test_confusion_of_one_client(tmp_path, drawn):
    write_confusing_runs(tmp_path / "runs")
    results = table_results.read(tmp_path / "runs")
    asked = []

    def load_task(flags):
        asked.append((flags["num_negatives"], flags["seed"]))
        return toy_task([7, 2, 2, 9])

    matrices = figures.figure7(results, tmp_path / "7.png", load_task)
    check_png(tmp_path / "7.png")
    assert asked == [("5", "1")]
    # Rows and columns: classes 2, 7 and 9.
    np.testing.assert_array_equal(matrices["fedss"], np.diag([2, 1, 1]))
    np.testing.assert_array_equal(
        matrices["neg_only"], [[2, 0, 0], [1, 0, 0], [1, 0, 0]]
    )
    rates = drawn[1].images[0].get_array()
    np.testing.assert_array_equal(rates, [[100, 0, 0]] * 3)
    assert "50 % right" in drawn[1].get_title()


def test_confusion_without_weights(tmp_path):
    write_confusing_runs(tmp_path / "runs")
    path = tmp_path / "runs/omniglot_neg_only_m5/seed1/neg_only.npz"
    results = table_results.read(tmp_path / "runs")

    def draw():
        figures.draw(7, tmp_path / "7.png", results, lambda _: toy_task([1]))

    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InvalidInputError, match=r"neg_only\.npz is damaged"):
        draw()
    np.savez(path, phi_000=np.eye(16), phi_001=np.eye(16), W=np.eye(16))
    with pytest.raises(InvalidInputError, match="2 arrays of phi .*the model, which h"):
        draw()
    np.savez(path, phi_000=np.eye(16), W=np.eye(16)[:15])
    with pytest.raises(InvalidInputError, match=r"W of shape \(15, 16\); they do not"):
        draw()
    path.unlink()
    with pytest.raises(figures.NothingToDraw, match=r"neg_only\.npz is missing"):
        draw()


def test_a_task_is_loaded_from_the_flags_of_a_run():
    task = figures.load_task_of_flags(
        {
            "dataset": "glyphs",
            "task": "classification",
            "partition": "mixed",
            "image_size": "28",
            "num_classes": "40",
            "model": "small_cnn",
            "embedding_dim": "16",
            "seed": "4",
        }
    )
    assert task.dataset.num_classes == 40 and task.metric == "top1"
    assert task.dataset.name == synthetic.glyphs(40).name
    assert task.feature_extractor_fn().output_shape == (None, 16)


def test_data_that_are_gone_are_a_reason(tmp_path):
    with pytest.raises(figures.NothingToDraw, match="the data of the runs: .*gone"):
        figures.load_task_of_flags(
            {
                "dataset": "omniglot",
                "data_dir": str(tmp_path / "gone"),
                "task": "classification",
                "partition": "mixed",
                "image_size": "28",
            }
        )


# --- Figures 8 and 9 --------------------------------------------------------------


def test_share_of_the_last_layer(tmp_path, drawn, monkeypatch):
    """With the parameters that tests/models counts in the real networks."""

    class Network:
        def __init__(self, embedding_dim):
            self.embedding_dim = embedding_dim

        def count_params(self):
            return {64: 3_677_016, 1280: 3_595_032}[self.embedding_dim]

    monkeypatch.setattr(figures.models, "paper_feature_extractor", Network)
    shares = figures.figure8(tmp_path / "8.png")
    check_png(tmp_path / "8.png")
    num_classes, share = drawn[0].get_lines()[0].get_data()
    at = np.argmin(abs(num_classes - 11_318))
    n = num_classes[at]
    assert share[at] == pytest.approx(100 * n * 64 / (3_677_016 + n * 64))
    assert share[at] == pytest.approx(16, abs=1)  # the paper's
    assert np.all(shares[1280] > shares[64])
    assert np.all(np.diff(shares[64]) > 0) and shares[1280][-1] > 99


def test_gradient_noise_falls_with_more_negatives(tmp_path, drawn):
    rng = np.random.default_rng(0)
    clients = InMemoryClientData(
        {
            name: (
                rng.integers(0, 256, (40, *toy.IMAGE_SHAPE)).astype(np.uint8),
                np.resize(rng.permutation(13)[:5], 40).astype(np.int32),
            )
            for name in ("anna", "ben", "chloe")
        }
    )
    dataset = FederatedDataset(
        name="toy",
        num_classes=toy.NUM_CLASSES,
        image_shape=toy.IMAGE_SHAPE,
        train=clients,
        num_examples=clients.num_examples,
        positives=clients.positives,
        max_positives=clients.max_positives,
        test=clients.create_tf_dataset_for_client("anna"),
        num_test_examples=40,
    )
    task = tasks.Classification(dataset, toy.dense_features)
    with pytest.raises(figures.NothingToDraw, match=r"n - \|P_k\| = 8"):
        figures.figure9(task, tmp_path / "9.png", num_negatives=(9,))
    noises = figures.figure9(
        task,
        tmp_path / "9.png",
        num_negatives=(1, 8, 9),
        num_batches=2,
        cohort_size=2,
    )
    check_png(tmp_path / "9.png")
    assert list(noises) == [1, 8]
    assert noises[1].model.shape == (2,)
    assert noises[1].mean > 1e-4
    assert noises[8].mean < 1e-6  # S_k = [n]
    (line,) = (x for x in drawn[-1].get_lines() if x.get_label() == "all parameters")
    np.testing.assert_allclose(line.get_ydata(), [n.mean for n in noises.values()])


@pytest.mark.parametrize("name", ["image_size", "num_clients", "dirichlet_alpha"])
def test_flags_of_a_run_that_are_no_numbers(name):
    flags = {"dataset": "omniglot", "task": "classification", name: "many"}
    with pytest.raises(InvalidInputError, match=f"--{name}=many in its flags.txt"):
        figures.load_task_of_flags(flags)
