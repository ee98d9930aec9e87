"""The description of a data set: its counts, its table, its picture."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from experiments.fedss import describe
from tff_fedss.datasets import synthetic
from tff_fedss.datasets.federated.clients import Counted
from tff_fedss.datasets.federated.dataset import FederatedDataset

TOY = {
    "images per client": [5, 1, 4],
    "classes per client": [2, 1, 3],
    "images per class": [5, 3, 2, 0],
    "clients per class": [2, 3, 1, 0],
}


def _dataset(**changes):
    """Three clients of four classes, the last of which no client has."""

    def images(n):
        return np.zeros([n, 2, 2, 1], np.uint8)

    labels = {"a": [0, 0, 0, 1, 0], "b": [1], "c": [0, 1, 2, 2]}
    clients = {name: (images(len(own)), np.array(own)) for name, own in labels.items()}
    test = (images(7), np.zeros(7, int))
    dataset = FederatedDataset.from_arrays(clients, test, num_classes=4)
    return dataclasses.replace(dataset, **changes)


def _without_labels():
    """Client data that cannot tell their labels without their images."""
    data = _dataset().train
    return Counted(data, data.client_ids, data.num_examples, data.positives)


def _counts(**changes):
    counts = describe.counts_of(_dataset(**changes))
    return {title: list(values) for title, values in counts.items()}


def test_counts_of_a_dataset():
    assert _counts() == TOY


def test_images_per_class_from_the_pooled_references():
    labels = np.array([0, 0, 1, 0, 0, 1, 0, 1, 2, 2], np.int32)
    references = {"image": {"offset": np.arange(10)}, "label": labels}

    def pooled():
        return tf.data.Dataset.from_tensor_slices(references)

    assert _counts(train=_without_labels(), pooled=pooled) == TOY


def test_images_per_class_are_left_out_where_they_cost_all_images():
    known = {title: some for title, some in TOY.items() if title != "images per class"}
    assert _counts(train=_without_labels()) == known


def test_glyphs_are_described_without_drawing_one(monkeypatch):
    dataset = synthetic.glyphs(num_classes=2000)
    monkeypatch.setattr(
        type(dataset.train), "client_arrays", lambda *_: pytest.fail("drawn")
    )
    counts = describe.counts_of(dataset)
    assert list(counts["clients per class"]) == [4] * 2000
    assert counts["classes per client"].sum() == 4 * 2000


def test_a_name_with_dollars_is_no_formula(tmp_path):
    counts = {"images per client": np.array([1, 2])}
    describe.plot(counts, "my $x_$ images", "no images in $x_$", tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


# --- The program ------------------------------------------------------------------


@pytest.mark.parametrize("flags, num_clients", [((), 12), (("--keep=best",), 11)])
def test_program_describes_the_clients_that_train(
    run_program, tmp_path, flags, num_clients
):
    picture = tmp_path / "a" / "glyphs.png"
    output, _ = run_program(
        describe,
        "--dataset=glyphs:num_classes=60",
        *flags,
        f"--results_dir={tmp_path / 'a'}",
    ).ok()
    assert output.startswith(f"glyphs: {num_clients} clients, n = 60 classes, ")
    assert output.endswith(f"Histograms: {picture}\n")
    assert picture.stat().st_size > 10_000
