"""Figures 3 to 10: what they show, and the files."""

import dataclasses
import json
import statistics

import numpy as np
import pytest
import tensorflow as tf

from experiments.common import cells as cells_lib
from experiments.common import report, results
from experiments.fedss import figures, pages
from experiments.fedss.methods import METHODS
from experiments.fedss.run_config import RunConfig
from tests.algorithms import toy
from tests.experiments import run_folders
from tests.refusals import refused
from tff_fedss import tasks
from tff_fedss.datasets import splits, synthetic
from tff_fedss.datasets.federated import partitioners
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError


@pytest.fixture
def draw(tmp_path, drawn):
    """Draws the figures of a table from the runs in a folder; returns its panels."""

    def draw(name="1", scale="mini"):
        table = cells_lib.tables_of("fedss")[name, "mini"]
        text = report.write_table((name, scale), table, tmp_path, 3, ["x"])
        stem = "table1" if name == "1" else name
        assert f"({stem}.png)" in text
        run_folders.check_figure(tmp_path / f"{stem}.png")
        found = [axes for axes in drawn if axes.figure is not None]
        drawn.clear()
        return found

    return draw


def lines_of(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_learning_curves_show_mean_and_spread(tmp_path, draw):
    run_folders.write_table(tmp_path)
    axes, *_ = draw()
    lines = lines_of(axes)
    assert list(lines) == [
        "FedSS",
        "NegOnly",
        "PosOnly",
        "FedAwS",
        "FullSoftmax",
        "Centralized",
        "chance",
    ]
    # The middle one of 5, 20 and 80.
    assert axes.get_title() == "Figure 3: by method, m = 20"
    mean = statistics.mean(run_folders.PERCENTS["omniglot_fedss_m20"])
    assert lines["FedSS"].get_ydata()[-1] == pytest.approx(mean)
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


def test_an_unfinished_cell_is_drawn_as_far_as_all_its_runs_are(tmp_path, draw):
    for seed, done in enumerate((3, 2)):
        run_folders.write_run(tmp_path, "omniglot_fedaws", seed, 40, rounds_done=done)
    (axes,) = draw()
    rounds, mean = lines_of(axes)["FedAwS"].get_data()
    np.testing.assert_array_equal(rounds, [0, 2])
    np.testing.assert_allclose(mean, [0, 20])
    assert not axes.collections  # No spread.
    # A finished one counts alone.
    run_folders.write_run(tmp_path, "omniglot_fedaws", 2, 80)
    rounds, mean = lines_of(draw()[0])["FedAwS"].get_data()
    np.testing.assert_array_equal(rounds, [0, 2, 4])
    np.testing.assert_allclose(mean, [0, 40, 80])


def test_convergence_has_a_panel_for_each_reading(tmp_path, draw):
    run_folders.write_table(tmp_path)
    run_folders.write_run(tmp_path, "omniglot_fedss_m5_uncorrected", 0, 44.0)
    _, corrected, uncorrected, _ = draw()
    assert list(lines_of(corrected)) == [
        "FedSS, |S_k| = 25",
        "FedSS, |S_k| = 40",
        "FedSS, |S_k| = 100",
        "FullSoftmax",
        "chance",
    ]
    labels = ["FedSS, |S_k| = 25", "FullSoftmax", "chance"]
    assert list(lines_of(uncorrected)) == labels
    assert lines_of(uncorrected)[labels[0]].get_ydata()[-1] == pytest.approx(44)


def test_traffic(tmp_path, draw):
    run_folders.write_table(tmp_path)
    *_, axes = draw()
    points = {k: np.array(x.get_data(), float) for k, x in lines_of(axes).items()}
    # |S_k| d, with the exact mean of |S_k|.
    np.testing.assert_allclose(
        points["FedSS"], [[24.6 * 64, 39.6 * 64, 99.6 * 64], [52, 167.5 / 3, 58.5]]
    )
    np.testing.assert_allclose(
        points["FullSoftmax"], [[659 * 64], [statistics.mean((60.0, 61.5, 61.0))]]
    )
    assert set(points["Centralized"][1]) == {64.0}
    bars = [segment for x in axes.collections for segment in x.get_segments()]
    half = [(high - low) / 2 for (_, low), (_, high) in bars]
    expected = statistics.stdev(run_folders.PERCENTS["omniglot_fedss_m20"])
    assert min(abs(np.array(half) - expected)) < 1e-9


def test_the_papers_values_are_stars_at_its_own_scale(tmp_path, draw):
    run_folders.write_table(tmp_path)

    def stars(scale):
        found = [axes.get_lines() for axes in draw(scale=scale)]
        return [
            sorted(x.get_ydata()[0] for x in own if x.get_label() == "the paper")
            for own in found
        ]

    assert not any(stars("mini"))
    by_method, by_size, by_traffic = stars("paper")
    # Table 1, with FedSS at m = 20; of m = 5, 20 and 80; all.
    assert 56.8 in by_method and 51.7 not in by_method
    assert 51.7 in by_size and 51.7 in by_traffic and 56.8 in by_traffic


def test_composition_compares_equal_numbers_of_pushing_classes(tmp_path, draw):
    for cell, percent in (
        ("omniglot_fedss_m5", 50.0),
        ("omniglot_fedss_m20", 55.0),
        ("omniglot_fedss_m5_uncorrected", 51.0),
        ("omniglot_neg_only_m5", 5.0),  # Of Table 1.
        # 5 + 20 - 1 and 20 + 20 - 1.
        ("omniglot_neg_only_m24", 24.0),
        ("omniglot_neg_only_m39", 39.0),
        ("omniglot_neg_only_m24_uncorrected", 23.0),
    ):
        run_folders.write_run(tmp_path, cell, 0, percent)
    (axes,) = draw("figure6")
    points = {
        label: [(x, round(y, 9)) for x, y in zip(*line.get_data(), strict=True)]
        for label, line in lines_of(axes).items()
    }
    assert points == {
        "FedSS": [(5, 50), (20, 55)],
        "FedSS, no correction": [(5, 51)],
        "NegOnly, m + 19": [(5, 24), (20, 39)],
        "NegOnly, m + 19, no correction": [(5, 23)],
    }
    text = (tmp_path / "figure6.md").read_text()
    rows = run_folders.table_rows(text)
    assert "| FedSS − NegOnly, m + 19 | +26.0 | | +16.0 | | |" in rows
    label = "FedSS, no correction − NegOnly, m + 19, no correction"
    assert f"| {label} | +28.0 | | | | |" in rows


def toy_task(*labels):
    """A client for each list; an image is a single pixel at the place of its class."""
    examples = {}
    for name, own in zip(("anna", "ben"), labels, strict=False):
        images = np.zeros([len(own), 4, 4, 1], np.uint8)
        images.reshape(len(own), 16)[np.arange(len(own)), own] = 255
        examples[name] = (images, np.array(own, np.int32))
    dataset = FederatedDataset.from_arrays(examples, examples["anna"], num_classes=16)

    def features():
        pixels = tf.keras.Input([4, 4, 1])
        x = tf.keras.layers.Flatten()(pixels)
        return tf.keras.Model(pixels, tf.keras.layers.Dense(16, use_bias=False)(x))

    return tasks.Classification(dataset, features)


def read_run(folder):
    return results.read_run(folder, pages.KIND)


@pytest.fixture
def confusing(tmp_path):
    """FedSS is always right; NegOnly takes everything for class 2."""
    classifiers = {"fedss": np.eye(16), "neg_only": -np.eye(16)}
    classifiers["neg_only"][2] = 1
    runs = []
    for method, classifier in classifiers.items():
        path = run_folders.write_run(tmp_path, f"omniglot_{method}_m5", 1, 50.0)
        np.savez(
            path / f"{method}.npz",
            phi_000=np.eye(16, dtype=np.float32),
            W=classifier.astype(np.float32),
        )
        runs.append(read_run(path))
    return runs


def test_confusion_of_one_client(confusing, tmp_path, drawn):
    task = toy_task([7, 2, 2, 9], [7, 9])
    fedss, neg_only = figures.figure7(confusing, task, tmp_path / "7.png", 5)
    run_folders.check_figure(tmp_path / "7.png")
    # Rows and columns: classes 2, 7 and 9.
    np.testing.assert_array_equal(fedss, np.diag([2, 1, 1]))
    np.testing.assert_array_equal(neg_only, [[2, 0, 0], [1, 0, 0], [1, 0, 0]])
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


def test_only_methods_that_draw_negatives_have_a_size_of_s_k(
    confusing, tmp_path, drawn
):
    fedss, _ = confusing
    pos_only = dataclasses.replace(fedss, flags={**fedss.flags, "method": "pos_only"})
    (fedss.path / "fedss.npz").rename(fedss.path / "pos_only.npz")
    (fedss.path / "fedss.npz").symlink_to("pos_only.npz")
    for run, m, sizes in (
        (fedss, 5, "|P_k| = 3, |S_k| = 8"),
        (fedss, 14, "|P_k| = 3, |S_k| = 16"),  # All 16 classes.
        (pos_only, 5, "|P_k| = 3"),
    ):
        figures.figure7([run], toy_task([7, 2, 2, 9]), tmp_path / "7.png", m)
        title = drawn[-1].figure.get_suptitle()
        assert title.endswith(f"own images, {sizes}")


def test_weights_of_another_model_are_refused(confusing, tmp_path):
    wide = {"phi_000": np.ones([16, 32]), "W": np.ones([16, 32])}
    np.savez(confusing[1].path / "neg_only.npz", **wide)
    with refused("neg_only.npz does not fit .*: phi_000 is"):
        figures.figure7(confusing, toy_task([7, 2, 2, 9]), tmp_path / "7.png", 5)


@pytest.fixture
def opened(monkeypatch):
    """The keywords with which the data set of a figure, some glyphs, is opened."""
    asked = []

    def open_glyphs(self, task, **keywords):
        asked.append(keywords)
        validation = {k: v for k, v in keywords.items() if "validation" in k}
        return splits.hold_out_clients(synthetic.glyphs(100), **validation)

    monkeypatch.setattr(tasks.DatasetSpec, "open", open_glyphs)
    return asked


def test_every_option_of_the_data_counts(opened, tmp_path):
    """A figure of other data than the run's would look like any."""
    run = run_folders.write_run(
        tmp_path,
        "omniglot_fedss_m5",
        1,
        50.0,
        flags={
            "dataset": "images:folders=class,test_share=0.25,num_public_classes=3",
            "data_dir": "somewhere",
            "partition": "dirichlet:alpha=0.25",
            "validation_share": "0.1",
            "on_validation": "true",
        },
    )
    figures.load([read_run(run)])
    assert opened == [
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


def test_the_clients_are_those_of_the_run(opened, tmp_path):
    """Own images keep the best round, for clients that flags.txt does not name."""
    flags = {"dataset": "images", "data_dir": "somewhere", "partition": None}
    unset = {"client_learning_rate": None}
    cell = "omniglot_fedss_m5"
    run = run_folders.write_run(tmp_path, cell, 0, 50.0, flags={**flags, **unset})
    used, task = figures.load([read_run(run)])
    assert opened[0]["validation_share"] == 0.1
    assert task.dataset.num_clients < synthetic.glyphs(100).num_clients
    assert used.client_learning_rate == used.learning_rate("fedss")
    assert used.logit_scale < 20 and used.clients_per_round
    (run / "data.json").write_text(json.dumps({"data": task.fingerprint()}))
    figures.load([read_run(run)])
    (run / "data.json").write_text('{"data": {"classes": 7}}')
    with pytest.raises(InvalidInputError, match="is a run on other data"):
        figures.load([read_run(run)])
    edited = (run / "flags.txt").read_text().replace("=small_cnn", "=big")
    (run / "flags.txt").write_text(edited)
    with refused("flags.txt: flag --model=big: expected small_cnn"):
        figures.load([read_run(run)])


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
    run_folders.check_figure(tmp_path / "8.png")
    num_classes, share = drawn[0].get_lines()[0].get_data()
    at = np.argmin(abs(num_classes - 11_318))
    n = num_classes[at]
    assert share[at] == pytest.approx(100 * n * 64 / (3_677_016 + n * 64))
    assert share[at] == pytest.approx(16, abs=1)  # the paper's
    assert np.all(shares[1280] > shares[64])
    assert np.all(np.diff(shares[64]) > 0) and shares[1280][-1] > 99


@pytest.fixture
def three_clients():
    """The task of three clients with five of 13 classes each."""
    rng = np.random.default_rng(0)
    clients = {
        name: (
            rng.integers(0, 256, (40, *toy.IMAGE_SHAPE)).astype(np.uint8),
            np.resize(rng.permutation(13)[:5], 40).astype(np.int32),
        )
        for name in ("anna", "ben", "chloe")
    }
    dataset = FederatedDataset.from_arrays(clients, clients["anna"], num_classes=13)
    return tasks.Classification(dataset, toy.dense_features)


_NOISE_FLAGS = RunConfig(
    clients_per_round=2,
    client_learning_rate=0.1,
    logit_scale=20.0,
    initial_norm=0.3,
    seed=0,
)


def test_gradient_noise_falls_with_more_negatives(three_clients, tmp_path, drawn):
    flags, path = _NOISE_FLAGS, tmp_path / "9.png"
    with pytest.raises(InvalidInputError, match=r"n - \|P_k\| = 8"):
        figures.figure9(three_clients, path, (9,), 4, flags)
    noises = figures.figure9(three_clients, path, (1, 8, 9), 2, flags)
    run_folders.check_figure(path)
    assert list(noises) == [1, 8]
    assert noises[1].model.shape == (2,)
    means = [noise.model.mean() for noise in noises.values()]
    assert means[0] > 1e-4
    assert means[1] < 1e-6  # S_k = [n]
    (line,) = (x for x in drawn[-1].get_lines() if x.get_label() == "all parameters")
    np.testing.assert_allclose(line.get_ydata(), means)


def test_gradient_noise_is_that_of_the_runs_loss(three_clients, tmp_path):
    """A smaller scale of the logits makes smaller gradients."""
    flags = dataclasses.replace(_NOISE_FLAGS, logit_scale=1.0)
    small, large = (
        figures.figure9(three_clients, tmp_path / "9.png", (1,), 2, used)[1]
        for used in (flags, _NOISE_FLAGS)
    )
    assert small.model.mean() < large.model.mean() / 2


def test_each_law_of_decrease_is_distinguished_from_the_other():
    m = np.array([5, 10, 20, 40, 80])
    by_exp, by_power = figures.laws(m, 3 * np.exp(-0.05 * m)).values()
    assert by_exp == pytest.approx(1) and by_power < 0.9
    by_exp, by_power = figures.laws(m, 3 * m**-0.5).values()
    assert by_power == pytest.approx(1) and by_exp < 0.9


def test_gradient_noise_is_measured_with_the_settings_of_the_run(
    run_program, tmp_path, monkeypatch, opened
):
    asked = []
    monkeypatch.setattr(figures, "figure9", lambda *args: asked.append(args))
    own = {"clients_per_round": 7, "initial_norm": 0.1, "logit_scale": 5.0}
    own |= {"dataset": "glyphs", "partition": None}
    run = run_folders.write_run(tmp_path, "omniglot_full_softmax", 3, 50.0, flags=own)
    flags = (f"--runs={run}", f"--output_dir={tmp_path}", "--num_negatives=5,20")
    for more in ((), ("--clients_per_round=8", "--num_batches=16")):
        run_program(figures, "--figure=9", *flags, *more).ok()
    (_, path, sizes, batches, used), (*_, again) = asked
    assert path == tmp_path / "figure9.png" and (sizes, batches) == ((5, 20), 4)
    found = (used.clients_per_round, used.client_learning_rate, used.initial_norm)
    assert found == (7, 0.03, 0.1) and used.seed == 3 and used.logit_scale == 5
    assert again.clients_per_round == 8 and asked[1][3] == 16
