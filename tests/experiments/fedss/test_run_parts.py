"""Flags that are not given are set by the data: no default is refused."""

import dataclasses

import numpy as np
import pytest

from experiments.common import cells
from experiments.common import config as config_lib
from experiments.fedss import run_config, run_methods, run_parts, train
from tests.datasets.images import own_images
from tests.experiments import central_runs
from tests.refusals import refused
from tff_fedss import models, tasks
from tff_fedss.datasets import splits
from tff_fedss.datasets.federated.dataset import FederatedDataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of twelve images of 20 by 24 pixels."""
    names = [f"{name}/{i}.png" for name in "abc" for i in range(12)]
    images = own_images.images(*names, size=(20, 24))
    return own_images.write(tmp_path_factory.mktemp("few classes"), images)


def test_few_images_train_by_defaults(run_train, folder, tmp_path, one_layer):
    run = tmp_path / "run"
    output, _ = run_train(
        "--dataset=images",
        f"--data_dir={folder}",
        "--partition=classes:per_client=1,clients=3",
        "--rounds=1",
        f"--results_dir={run}",
    ).ok()
    assert "--clients_per_round=3: of 3 clients." in output
    assert "--num_negatives=2: a client has at most 1 of the n = 3 classes." in output
    assert "--image_size=20" in output and "--logit_scale=3:" in output
    assert [row["round"] for row in central_runs.rows_of(run)] == ["0", "1"]
    # Chosen again from the same data when the flagfile repeats the run.
    assert "num_negatives" not in (run / "flags.txt").read_text()


@pytest.mark.parametrize("partition", ["iid", "classes:per_client=1,clients=3"])
def test_what_is_chosen(folder, partition):
    config = run_config.with_defaults(
        run_config.RunConfig(
            dataset="images", data_dir=str(folder), partition=partition
        )
    )
    dataset = run_parts.load_dataset(config)
    chosen, lines = run_parts.with_data_defaults(config, dataset, ["fedss", "neg_only"])
    assert chosen.learning_rate("fedss") == 0.3
    assert chosen.learning_rate("neg_only") == 0.01
    assert any("rate=0.01, for NegOnly alone" in line for line in lines)
    given = dataclasses.replace(chosen, client_learning_rate=0.1)
    assert given.learning_rate("neg_only") == 0.1
    assert chosen.clients_per_round == dataset.num_clients
    # At least 1, where a client has all classes; FedSS then trains all of them.
    assert chosen.num_negatives == max(1, 3 - dataset.max_positives)
    assert (chosen.batch_size, chosen.initial_norm) == (16, 0.03)
    assert chosen.gradient_clip_norm == 1.0
    assert chosen.logit_scale == models.adacos_scale(3) == 3.0


def test_the_papers_settings_stay():
    config = run_config.with_defaults(
        run_config.RunConfig(dataset="glyphs:num_classes=30")
    )
    chosen, lines = run_parts.with_data_defaults(
        config, run_parts.load_dataset(config), ["fedss", "neg_only"]
    )
    assert not lines
    assert chosen.learning_rate("neg_only") == 0.1
    assert (chosen.logit_scale, chosen.gradient_clip_norm) == (20.0, 0.0)
    assert chosen.initial_norm == models.INITIAL_NORM
    assert (chosen.clients_per_round, chosen.batch_size) == (16, 32)


def own(**flags):
    return run_config.with_defaults(
        run_config.RunConfig(dataset="images", data_dir="x", results_dir="x", **flags)
    )


def opened(monkeypatch, dataset):
    """Lets `own` have a data set."""
    monkeypatch.setattr(
        tasks.DatasetSpec,
        "open",
        lambda self, task, validation_share, on_validation, **_: (
            splits.hold_out_clients(dataset, validation_share, on_validation)
        ),
    )


@pytest.mark.parametrize(
    "labels, why",
    [
        (np.arange(9) % 3, "validation clients have only 9 images"),
        (np.zeros(11, int), "validation clients have one class only, or no class"),
        (np.arange(11), "validation clients have one class only, or no class"),
    ],
)
def test_few_validation_images_cannot_choose_a_round_of_retrieval(
    labels, why, monkeypatch
):
    clients = {
        f"client {i}": (np.zeros([len(labels), 4, 4, 1], np.uint8), labels)
        for i in range(12)
    }
    test = np.zeros([40, 4, 4, 1], np.uint8), np.arange(40) % 4 + 10
    dataset = FederatedDataset.from_arrays(clients, test, test_is_unseen=True)
    opened(monkeypatch, dataset)
    config, _, validation, notes = run_methods.load(own(task="retrieval"))
    assert config.keep == "last" and validation is None
    assert notes[0].startswith(f"--keep=last: {why}")


def test_clients_without_common_classes_choose_no_round(monkeypatch):
    clients = {
        f"client {i}": (np.zeros([9, 4, 4, 1], np.uint8), np.full(9, i))
        for i in range(12)
    }
    test = np.zeros([12, 4, 4, 1], np.uint8), np.arange(12)
    opened(monkeypatch, FederatedDataset.from_arrays(clients, test))
    config, dataset, _, notes = run_methods.load(own(validation_share=0.25))
    assert (config.keep, dataset.num_clients) == ("last", 9)
    assert notes[0].startswith("--keep=last: no validation client has a class")
    with refused("no validation client has a class that is trained: use a larger"):
        run_methods.load(own(validation_share=0.25, keep="best"))


def test_no_validation_clients_choose_no_round():
    with refused("--validation_share=0 leaves no validation clients"):
        own(keep="best", validation_share=0.0)
    assert "validation_top1" in run_methods.columns(own(), ["fedss"])
    unasked = own(validation_share=0.0)
    assert "validation_top1" not in run_methods.columns(unasked, ["fedss"])


def test_no_column_is_there_twice():
    config = own(keep="best", on_validation=True, validation_share=0.2)
    columns = run_methods.columns(config, ["fedss"])
    assert len({*columns}) == len(columns)


def test_from_scratch_means_from_scratch(tmp_path, monkeypatch):
    """The weights of ImageNet are a default."""
    path = tmp_path / "weights.h5"
    path.touch()
    monkeypatch.setattr(models, "imagenet_file", lambda network: path)
    assert own().pretrained == "imagenet"
    assert not own(warm_start_epochs=0).pretrained and not own(pretrained="").pretrained


@pytest.mark.parametrize("key", cells.tables_of("fedss"), ids="/".join)
def test_the_page_of_a_table_has_the_metric_of_its_cells(key):
    table = cells.tables_of("fedss")[key]
    for cell in table.cells.values():
        flags = train.Config(results_dir="x", data_dir="x")
        asked = config_lib.parse(flags, *cells.as_arguments(cell.settings))
        found = run_config.with_defaults(asked)
        metric = tasks.KINDS[found.task].metric
        assert metric in {m.name for m in table.metrics}
