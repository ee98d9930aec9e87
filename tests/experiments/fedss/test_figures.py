"""Figures 3 to 10: what they show, and the files."""

import dataclasses
import statistics

import numpy as np
import pytest
import tensorflow as tf

from experiments.common import cells as cells_lib
from experiments.common import plots, report
from experiments.fedss import (
    figures,
    model_figures,
    noise_figure,
    result_figures,
    table_results,
)
from experiments.fedss.methods import METHODS
from experiments.fedss.table_results import Setting
from tests.algorithms import toy
from tests.experiments import run_folders
from tff_fedss import tasks
from tff_fedss.datasets import synthetic
from tff_fedss.datasets.federated import partitioners
from tff_fedss.datasets.federated.clients import InMemoryClientData
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.errors import InvalidInputError


@pytest.fixture
def results(tmp_path):
    run_folders.write_table(tmp_path / "runs")
    return table_results.read(tmp_path / "runs")


def mean_curve(cell):
    """Rounds, mean and standard deviation, as they are drawn."""
    series = result_figures._series(cell, "", plots.REFERENCE)
    (curve,) = plots.panel([series], "round", "top1", "", "", scale=100).curves
    return curve.x, curve.y, curve.std


def lines_of(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_learning_curves_show_mean_and_spread(results, tmp_path, drawn):
    figures.draw(3, tmp_path / "figure3.png", results)
    run_folders.check_figure(tmp_path / "figure3.png")
    (axes,) = drawn
    lines = lines_of(axes)
    assert list(lines) == [
        "FedSS (m = 20)",  # the middle one of 5, 20 and 80
        "NegOnly (m = 20)",
        "PosOnly",
        "FedAwS",
        "FullSoftmax",
        "Centralized",
        "chance",
    ]
    rounds, mean = lines["PosOnly"].get_data()
    np.testing.assert_array_equal(rounds, [0, 2, 4])
    finals = run_folders.PERCENTS["omniglot_pos_only"]
    half = statistics.mean(finals) / 2
    np.testing.assert_allclose(mean, [0, half, 2 * half])
    assert lines["PosOnly"].get_color() == METHODS["pos_only"].style.color
    top = axes.collections[2].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(2 * half + statistics.stdev(finals))
    assert axes.get_xlabel() == "round"
    assert axes.get_ylabel() == "top-1 on held-out images (%)"


def test_an_unfinished_cell_is_drawn_as_far_as_all_its_runs_are(tmp_path):
    for seed, done in enumerate((3, 2)):
        run_folders.write_run(tmp_path, "omniglot_fedaws", seed, 40, rounds_done=done)
    cell = table_results.read(tmp_path).cells[Setting("fedaws")]
    rounds, mean, std = mean_curve(cell)
    np.testing.assert_array_equal(rounds, [0, 2])
    np.testing.assert_allclose(mean, [0, 20])
    np.testing.assert_allclose(std, [0, 0])
    # A finished one counts alone.
    run_folders.write_run(tmp_path, "omniglot_fedaws", 2, 80)
    cell = table_results.read(tmp_path).cells[Setting("fedaws")]
    rounds, mean, _ = mean_curve(cell)
    np.testing.assert_array_equal(rounds, [0, 2, 4])
    np.testing.assert_allclose(mean, [0, 40, 80])


def test_convergence_has_a_panel_for_each_reading(tmp_path, drawn):
    run_folders.write_table(tmp_path / "runs")
    run_folders.write_run(tmp_path / "runs", "omniglot_fedss_m5_uncorrected", 0, 44.0)
    figures.draw(4, tmp_path / "4.png", table_results.read(tmp_path / "runs"))
    run_folders.check_figure(tmp_path / "4.png")
    corrected, uncorrected = drawn
    assert list(lines_of(corrected)) == [
        "|S_k| = 25",
        "|S_k| = 40",
        "|S_k| = 100",
        "FullSoftmax",
        "chance",
    ]
    assert list(lines_of(uncorrected)) == ["|S_k| = 25", "FullSoftmax", "chance"]
    assert lines_of(uncorrected)["|S_k| = 25"].get_ydata()[-1] == pytest.approx(44)


@pytest.mark.parametrize("number", [5, 10])
def test_traffic(results, tmp_path, drawn, number):
    figures.draw(number, tmp_path / "5.png", results)
    run_folders.check_figure(tmp_path / "5.png")
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


def stars(axes):
    return [x.get_data() for x in axes.get_lines() if x.get_label() == "the paper"]


@pytest.mark.parametrize("number", [3, 4, 5])
def test_the_papers_values_are_stars_at_its_own_scale(results, tmp_path, drawn, number):
    figures.draw(number, tmp_path / "none.png", results)
    assert not stars(drawn.pop())
    paper = {Setting("fedss", 20): 54.0, Setting("full_softmax"): 56.8}
    at_scale = dataclasses.replace(results, paper=paper)
    figures.draw(number, tmp_path / "stars.png", at_scale)
    run_folders.check_figure(tmp_path / "stars.png")
    assert sorted(y for _, (y,) in stars(drawn.pop())) == [54.0, 56.8]


def test_the_table_at_the_papers_scale_alone_gets_its_values(tmp_path, monkeypatch):
    run_folders.write_table(tmp_path / "runs")
    seen = []
    monkeypatch.setitem(figures._OF_RESULTS, 5, lambda x, path: seen.append(x.paper))
    of_cells = cells_lib.tables_of("fedss")["1", "mini"]
    for scale in ("mini", "paper"):
        report.write_table(
            ("1", scale), of_cells, tmp_path / "runs", 3, ["x"], tmp_path / scale
        )
    assert seen[0] == {} and seen[1][Setting("fedss", 5)] == 51.7
    assert Setting("fedss", 5, is_corrected=False) not in seen[1]


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
    pairs = result_figures.compositions(results)
    # 5 + 20 - 1 and 20 + 20 - 1.
    assert [(a.setting.num_negatives, b.setting.num_negatives) for a, b in pairs] == [
        (5, 24),
        (20, 39),
    ]
    figures.draw(6, tmp_path / "6.png", results)
    run_folders.check_figure(tmp_path / "6.png")
    heights = [bar.get_height() for bar in drawn[0].patches]
    np.testing.assert_allclose(heights, [50, 24, 55, 39])


def test_composition_compares_like_with_like(tmp_path):
    write_composition(tmp_path / "runs")
    for cell, percent in (
        ("omniglot_fedss_m5_uncorrected", 51.0),
        ("omniglot_fedss_m20_uncorrected", 56.0),
        ("omniglot_neg_only_m39_uncorrected", 38.0),
    ):
        run_folders.write_run(tmp_path / "runs", cell, 0, percent, correction="none")
    pairs = result_figures.compositions(table_results.read(tmp_path / "runs"))
    assert [(str(a.setting), str(b.setting)) for a, b in pairs] == [
        ("FedSS (m = 5)", "NegOnly (m = 24)"),
        ("FedSS (m = 20)", "NegOnly (m = 39)"),
        ("FedSS, no correction (m = 20)", "NegOnly, no correction (m = 39)"),
    ]


def test_the_table_alone_has_no_composition(results, tmp_path):
    """NegOnly with the m of another FedSS is not meant for figure 6."""
    assert result_figures.compositions(results) == []
    with pytest.raises(figures.NothingToDraw, match=r"no pair of FedSS with m"):
        figures.draw(6, tmp_path / "6.png", results)
    assert not (tmp_path / "6.png").exists()


def test_a_result_that_the_rows_do_not_have_is_refused(tmp_path):
    done = run_folders.write_run(tmp_path, "omniglot_fedaws", 0, 40.0) / "done.json"
    done.write_text(done.read_text().replace("40.0", "41.0"))
    with pytest.raises(InvalidInputError, match="top1 is 40 %, but .* says 41 %"):
        table_results.read(tmp_path)


def test_two_cells_of_one_setting_are_refused(tmp_path):
    for name in ("omniglot_fedaws", "other_fedaws"):
        run_folders.write_run(tmp_path, name, 0, 40.0)
    with pytest.raises(InvalidInputError, match="other_fedaws are two cells of FedAwS"):
        table_results.read(tmp_path)


def toy_task(*labels):
    """A client for each list; an image is a single pixel at the place of its class."""
    examples = {}
    for name, own in zip(("anna", "ben"), labels, strict=False):
        images = np.zeros([len(own), 4, 4, 1], np.uint8)
        images.reshape(len(own), 16)[np.arange(len(own)), own] = 255
        examples[name] = (images, np.array(own, np.int32))
    clients = InMemoryClientData(examples)
    images, own = examples["anna"]
    dataset = FederatedDataset(
        name="toy",
        num_classes=16,
        image_shape=(4, 4, 1),
        train=clients,
        test=HeldOut.from_arrays(images, own),
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
        return toy_task([7, 2, 2, 9], [7, 9])

    matrices = model_figures.figure7(results, tmp_path / "7.png", load_task)
    run_folders.check_figure(tmp_path / "7.png")
    assert asked == [("5", "1")]
    # Rows and columns: classes 2, 7 and 9.
    np.testing.assert_array_equal(matrices["fedss"], np.diag([2, 1, 1]))
    np.testing.assert_array_equal(
        matrices["neg_only"], [[2, 0, 0], [1, 0, 0], [1, 0, 0]]
    )
    rates = drawn[1].images[0].get_array()
    np.testing.assert_array_equal(rates, [[100, 0, 0]] * 3)
    # Without class 2, NegOnly takes the other one of two.
    assert [axes.get_title() for axes in drawn[:2]] == [
        "FedSS: 100 % right\nmean of 2 clients: 100 % right, 2.5 classes predicted",
        "NegOnly: 50 % right\nmean of 2 clients: 25 % right, 1.5 classes predicted",
    ]
    # Pictures: FedSS confuses nothing, NegOnly takes places 1 and 2 for place 0.
    assert drawn[2].get_title() == "nothing is confused"
    texts = [text.get_text() for text in drawn[3].texts]
    assert texts[:2] == ["1 as 0\n1x", "2 as 0\n1x"]
    assert len(drawn[3].images) == 1


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
    task = model_figures.load_task_of_flags(
        {
            "dataset": "glyphs:num_classes=40",
            "task": "classification",
            "image_size": "28",
            "model": "small_cnn",
            "embedding_dim": "16",
            "seed": "4",
        }
    )
    assert task.dataset.num_classes == 40 and task.metric == "top1"
    assert task.dataset.name == synthetic.glyphs(40).name
    assert task.feature_extractor_fn().output_shape == (None, 16)


def test_every_option_of_the_data_counts(monkeypatch):
    """A figure of other data than the run's would look like any."""
    asked = []

    def load(**keywords):
        asked.append(keywords)
        return synthetic.glyphs(40)

    spec = tasks.DATASETS["images"]
    monkeypatch.setattr(spec.__class__, "open", lambda self, kind, **k: load(**k))
    model_figures.load_task_of_flags(
        {
            "dataset": "images:folders=class,test_share=0.25,num_public_classes=3",
            "data_dir": "somewhere",
            "partition": "dirichlet:alpha=0.25",
            "image_size": "28",
            "validation_share": "0.1",
            "on_validation": "true",
            "task": "classification",
            "model": "small_cnn",
            "embedding_dim": "16",
            "seed": 1,
        }
    )
    assert asked == [
        dict(
            data_dir="somewhere",
            partition=partitioners.Dirichlet(alpha=0.25),
            image_size=28,
            num_public_classes=3,
            test_share=0.25,
            validation_share=0.1,
            on_validation=True,
            folders="class",
        )
    ]


def test_data_that_are_gone_are_a_reason(tmp_path):
    flags = {
        "dataset": "omniglot",
        "data_dir": str(tmp_path / "gone"),
        "task": "classification",
        "partition": "mixed",
        "image_size": "28",
    }
    with pytest.raises(figures.NothingToDraw, match="the data of the runs: .*gone"):
        model_figures.load_task_of_flags(flags)
    flags["image_size"] = "many"
    with pytest.raises(InvalidInputError, match="flags.txt of a run: .*image_size"):
        model_figures.load_task_of_flags(flags)


# --- Figures 8 and 9 --------------------------------------------------------------


def test_share_of_the_last_layer(tmp_path, drawn, monkeypatch):
    """With the parameters that tests/models counts in the real networks."""

    class Network:
        def __init__(self, embedding_dim):
            self.embedding_dim = embedding_dim

        def count_params(self):
            return {64: 3_677_016, 1280: 3_595_032}[self.embedding_dim]

    monkeypatch.setattr(model_figures.models, "paper_feature_extractor", Network)
    shares = model_figures.figure8(tmp_path / "8.png")
    run_folders.check_figure(tmp_path / "8.png")
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
        test=HeldOut.from_arrays(*clients.client_arrays("anna")),
    )
    task = tasks.Classification(dataset, toy.dense_features)
    with pytest.raises(figures.NothingToDraw, match=r"n - \|P_k\| = 8"):
        noise_figure.figure9(task, tmp_path / "9.png", num_negatives=(9,))
    noises = noise_figure.figure9(
        task,
        tmp_path / "9.png",
        num_negatives=(1, 8, 9),
        num_batches=2,
        cohort_size=2,
    )
    run_folders.check_figure(tmp_path / "9.png")
    assert list(noises) == [1, 8]
    assert noises[1].model.shape == (2,)
    assert noises[1].mean > 1e-4
    assert noises[8].mean < 1e-6  # S_k = [n]
    (line,) = (x for x in drawn[-1].get_lines() if x.get_label() == "all parameters")
    np.testing.assert_allclose(line.get_ydata(), [n.mean for n in noises.values()])


def test_each_law_of_decrease_is_distinguished_from_the_other():
    m = np.array([5, 10, 20, 40, 80])
    exponential = noise_figure.laws(m, 3 * np.exp(-0.05 * m))
    power = noise_figure.laws(m, 3 * m**-0.5)
    (by_exp, by_power), (other_exp, other_power) = (
        found.values() for found in (exponential, power)
    )
    assert by_exp == pytest.approx((0.05, 1.0))
    assert other_power == pytest.approx((0.5, 1.0))
    assert by_power.r_squared < 0.9 and other_exp.r_squared < 0.9


def test_gradient_noise_is_measured_with_the_settings_of_the_run(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        noise_figure, "figure9", lambda *_, **options: asked.append(options)
    )
    for name in ("pos_only", "fedss_m5", "fedss_m20"):
        run_folders.write_run(
            tmp_path / "runs",
            f"omniglot_{name}",
            3,
            50.0,
            flags={"clients_per_round": 7, "initial_norm": 0.1},
        )
    results = table_results.read(tmp_path / "runs")
    noise_figure.figure9_of_results(results, tmp_path / "9.png", lambda _: None)
    assert asked == [
        {
            "client_learning_rate": 0.03,
            "seed": 3,
            "num_negatives": [5, 20],
            "cohort_size": 7,
            "initial_norm": 0.1,
        }
    ]
