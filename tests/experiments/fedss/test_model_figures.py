"""Figures 7 to 9: what they show, and the files."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.fedss import figures, model_figures, noise_figure, table_results
from tests.algorithms import toy
from tests.experiments import run_folders
from tff_fedss import tasks
from tff_fedss.datasets import synthetic
from tff_fedss.datasets.federated import partitioners
from tff_fedss.datasets.federated.clients import InMemoryClientData
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.errors import InvalidInputError


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
    with pytest.raises(figures.NothingToDraw, match="the data of the runs: .*gone"):
        model_figures.load_task_of_flags(
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


def test_flags_of_a_run_that_are_no_numbers():
    flags = {"dataset": "omniglot", "task": "classification", "image_size": "many"}
    with pytest.raises(InvalidInputError, match="flags.txt of a run: .*image_size"):
        model_figures.load_task_of_flags(flags)


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
