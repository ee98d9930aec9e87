import functools
from typing import Literal

import pytest

from tff_fedss import models, tasks
from tff_fedss.datasets import synthetic
from tff_fedss.datasets.federated import partitioners

# FedSS, sections 4.2, 4.3, A.2 and A.4 and Tables 1-3: rounds, K, eta, m.
PAPER = {
    "landmarks": (5000, 64, 0.01, 80, True),
    "sop": (2000, 32, 0.01, 80, True),
    "imagenet21k": (25_000, 64, 0.001, 800, False),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings(name):
    (settings,) = tasks.DATASETS[name].settings.values()
    assert PAPER[name] == (
        settings.rounds,
        settings.clients_per_round,
        settings.client_learning_rate,
        settings.num_negatives,
        settings.starts_pretrained,
    )
    assert settings.image_size == 224


@pytest.mark.slow
def test_omniglot_retrieves_unseen_characters(test_data):
    for partition, num_clients, max_classes in (
        ("mixed", 192, 21),
        ("drawer", 600, 55),
    ):
        dataset = tasks.DATASETS["omniglot"].open(
            "retrieval",
            data_dir=test_data / "omniglot28",
            partition=partition,
            image_size=28,
        )
        assert dataset.num_classes == 964
        assert dataset.num_clients == num_clients
        assert dataset.max_positives == max_classes
        sizes = [dataset.num_examples(k) for k in dataset.train.client_ids]
        assert sum(sizes) == 964 * 20
        held = {int(c) for k in dataset.train.client_ids for c in dataset.positives(k)}
        labels = {int(e["label"]) for e in dataset.test_examples()}
        assert held == set(range(964)) and labels == set(range(964, 1623))
        assert dataset.test.num_examples == 659 * 20
    phi_fn = functools.partial(models.small_cnn, dataset.image_shape)
    # 19 of the 13,179 other drawings are of the same character.
    assert tasks.Retrieval(dataset, phi_fn).chance == pytest.approx(
        19 / 13_179 * 0.2929, rel=5e-3
    )


def test_options_are_the_keywords_of_the_load():
    def load(*, image_size, partition: Literal["one", "two"] = "one", letters=26):
        found.append((image_size, partition, letters))
        return synthetic.glyphs(letters, image_size=image_size)

    found = []
    spec = tasks.DatasetSpec("toy", {}, load)
    assert spec.options == ["letters"]
    assert spec.partitions == {"one": None, "two": None}
    dataset = spec.open(
        "classification", image_size=12, letters=30, validation_share=0.5
    )
    assert found == [(12, "one", 30)] and "held out for validation" in dataset.note
    own = tasks.DATASETS["images"]
    assert own.options[:2] == ["resize_size", "test"] and "folders" in own.options
    assert list(own.partitions)[:2] == ["iid", "natural"]
    assert own.partitions["dirichlet"] is partitioners.Dirichlet
    assert tasks.DATASETS["glyphs"].partitions == {}
