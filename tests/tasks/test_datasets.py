from typing import Literal

import pytest

from tff_fedss import tasks
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
